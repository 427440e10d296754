"""Leaving no dead code behind a rewrite."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.reading import nodes
from kopt.agent.playbook.source import Source, names_read, target_name

_EFFECTS = ("store", "atomic_", "debug_barrier", "device_", "static_", "assume", "inline_asm")
_HARMLESS = {
    "cdiv", "next_power_of_2", "min", "max", "int", "len", "numel", "size", "stride", "dim",
    "empty", "empty_like", "new_empty", "element_size", "sqrt",
}  # fmt: skip


def tidied(old: str, new: str) -> str:
    """The new file without assignments and parameters whose last use the rewrite removed."""
    known = Source(old).functions()
    for _ in range(100):
        source = Source(new)
        found = next(
            (
                statement
                for name, function in source.functions().items()
                for statement in _unused(source, function, known.get(name))
            ),
            None,
        )
        if found is None:
            return new
        new = source.replace([(found, cst.RemoveFromParent())])
    return new


def _unused(
    source: Source, function: cst.FunctionDef, before: cst.FunctionDef | None
) -> list[cst.SimpleStatementLine]:
    """Assignments of this function that nothing reads, but something read before."""
    reads = _reads(function)
    once = _reads(before) if before is not None else None
    found = []
    for line in source.inside(function.body, cst.SimpleStatementLine):
        assert isinstance(line, cst.SimpleStatementLine)
        name = target_name(line)
        if name is None or name in reads or not isinstance(line.body[0], cst.Assign):
            continue
        value = line.body[0].value
        if (once is None or name in once or name not in _all_names(before)) and _harmless(value):
            found.append(line)
    return found


def _all_names(function: cst.FunctionDef | None) -> set[str]:
    return names_read(function) if function is not None else set()


def _reads(function: cst.FunctionDef) -> set[str]:
    """Variables whose value a function uses."""
    targets = set()
    for node in m.findall(function.body, m.AssignTarget(target=m.Name())):
        assert isinstance(node, cst.AssignTarget)
        targets.add(id(node.target))
    found = set()
    for name in m.findall(function.body, m.Name()):
        assert isinstance(name, cst.Name)
        if id(name) not in targets:
            found.add(name.value)
    return found


def _harmless(value: cst.BaseExpression) -> bool:
    """Whether dropping an expression changes nothing else."""
    for call in m.findall(value, m.Call()):
        assert isinstance(call, cst.Call)
        if not isinstance(call.func, cst.Attribute | cst.Name):
            return False
        attribute = isinstance(call.func, cst.Attribute)
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else call.func.value
        language = attribute and m.matches(call.func, m.Attribute(value=m.Name("tl")))
        if language and not name.startswith(_EFFECTS):
            continue
        if name not in _HARMLESS:
            return False
    return True


def live(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Statements without assignments that nothing after them reads."""
    kept: list[cst.BaseStatement] = []
    needed: set[str] = set()
    for statement in reversed(list(body)):
        name = target_name(statement)
        plain = m.matches(statement, m.SimpleStatementLine(body=[m.Assign()]))
        if plain and name is not None and name not in needed:
            continue
        for node in nodes(statement):
            if isinstance(node, cst.Name):
                needed.add(node.value)
        kept.append(statement)
    return kept[::-1]
