"""Merge the pass for the mean with the pass for the squared deviations (Welford's algorithm).

Each lane keeps the mean and the squared deviations of the values it has seen; the lanes are
joined after the loop. B. P. Welford, Technometrics 4(3), 1962; joining as in T. F. Chan,
G. H. Golub and R. J. LeVeque, 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.loops import RowLoop, located, reread_sentence, row_loops, siblings
from kopt.agent.playbook.reading import assigned_names, language_names
from kopt.agent.playbook.source import Source, fresh_name, names_read, substitute, target_name
from kopt.agent.playbook.ttir import Module, Operation
from kopt.tools.models import Effect

_WELFORD = "# Welford: each lane keeps the mean and the squared deviations of what it saw."
_WIDENED = {"arith.extf", "tt.splat", "tt.broadcast", "tt.fp_to_fp", "arith.sitofp"}


class OnePassVariance:
    """A loop that sums the row, then one that sums the squared deviations from its mean."""

    name = "one_pass_mean_and_variance"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such pair of loops."""
        found = []
        for kernel in call.ranked:
            for group in siblings(row_loops(kernel)):
                for first, second in pairwise(group):
                    if _is_pair(kernel.ttir, first, second):
                        found += self._pair(call, kernel, group, first, second)
        return found

    def _pair(
        self,
        call: CallEvidence,
        kernel: KernelEvidence,
        group: list[RowLoop],
        first: RowLoop,
        second: RowLoop,
    ) -> list[Proposal]:
        masked = len(first.loads[0].operands) > 1
        texts = (
            _rewritten(source, fors, first, masked)
            for source, fors in located(call, kernel, [first, second])
        )
        text = next((t for t in texts if t is not None), None)
        if text is None:
            return []
        traffic = kernel.launch.traffic
        passes = len(group)
        ratio = traffic.dram_read_bytes / max(1, traffic.compulsory_read_bytes)
        return [
            Proposal(
                technique=self.name,
                source=text,
                rationale=(
                    "a running mean and running squared deviations (Welford) need one pass over"
                    f" the row: {passes - 1} passes remain of {passes}"
                ),
                evidence=(reread_sentence(call, kernel, [first, second]),),
                predicted=(
                    Effect(
                        metric="dram_read_over_compulsory",
                        before=ratio,
                        after=ratio * (passes - 1) / passes,
                        direction="down",
                        sentence="one pass over the row less",
                    ),
                ),
                conditions="pays where the rows do not stay in a cache between passes",
            )
        ]


# Detection --------------------------------------------------------------------------------


def _is_pair(module: Module, first: RowLoop, second: RowLoop) -> bool:
    """A sum of loaded values, then a sum of the squares of the same values less their mean."""
    one, two = _addend(module, first), _addend(module, second)
    if one is None or two is None or len(first.loads) != 1 or len(second.loads) != 1:
        return False
    if first.keys != second.keys or not _is_float(first.loads[0]):
        return False
    masked = len(first.loads[0].operands) > 1
    plain, was_zero = _value(module, one)
    if plain is not first.loads[0]:
        return False
    other = first.loads[0].operands[2:3]
    if masked and not was_zero and not (other and module.constant(other[0]) == 0.0):
        return False
    return _is_squared_deviation(module, first, second, two, masked)


def _is_squared_deviation(
    module: Module, first: RowLoop, second: RowLoop, value: str, masked: bool
) -> bool:
    square, zeroed = _value(module, value)
    if square is None or square.name != "arith.mulf" or len(set(square.operands)) != 1:
        return False
    difference, inner = _value(module, square.operands[0])
    if difference is None or difference.name != "arith.subf":
        return False
    loaded, _ = _value(module, difference.operands[0])
    return (
        loaded is second.loads[0]
        and (zeroed or inner or not masked)
        and _is_mean(module, first, difference.operands[1])
    )


def _addend(module: Module, row: RowLoop) -> str | None:
    """What the loop adds to the one value that it carries; without the reduction over the tile."""
    loop = row.loop
    stores = any(
        op.name in {"tt.store", "scf.if"} or "atomic" in op.name for op in module.walk(loop.body)
    )
    if len(loop.carried) != 1 or stores:
        return None
    update = module.definitions.get(loop.yields[0])
    if update is None or update.name != "arith.addf" or loop.carried[0] not in update.operands:
        return None
    other = [o for o in update.operands if o != loop.carried[0]]
    if len(other) != 1 or module.constant(loop.initial[0]) != 0.0:
        return None
    reduce = module.definitions.get(other[0])
    if reduce is not None and reduce.name == "tt.reduce":
        return reduce.operands[0] if module.combine(reduce) == "arith.addf" else None
    return other[0]


def _value(module: Module, value: str) -> tuple[Operation | None, bool]:
    """The operation behind casts and behind a selection of zero where the mask ends."""
    zeroed = False
    operation = module.definitions.get(value)
    while operation is not None:
        if operation.name in _WIDENED:
            operation = module.definitions.get(operation.operands[0])
        elif operation.name == "arith.select" and module.constant(operation.operands[2]) == 0.0:
            zeroed = True
            operation = module.definitions.get(operation.operands[1])
        else:
            return operation, zeroed
    return None, zeroed


def _is_mean(module: Module, first: RowLoop, value: str) -> bool:
    """Whether a value is what the first loop summed, over the length of the row."""
    quotient, _ = _value(module, value)
    if quotient is None or quotient.name != "arith.divf":
        return False
    total, by = quotient.operands
    length, cast = by, module.definitions.get(by)
    while cast is not None and cast.name in {"arith.sitofp", "arith.uitofp", "tt.splat"}:
        length = cast.operands[0]
        cast = module.definitions.get(length)
    reduce = module.definitions.get(total)
    if reduce is not None and reduce.name == "tt.reduce":
        if module.combine(reduce) != "arith.addf":
            return False
        total = reduce.operands[0]
    return total in first.loop.operation.results and module.argument(length) == first.length


def _is_float(load: Operation) -> bool:
    kinds = ("f32>", "f16>", "bf16>")
    return any(kind in load.text.replace("!tt.ptr<", "x") for kind in kinds)


# Writing ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """A statement of a loop that adds to a variable, and what it adds."""

    statement: cst.SimpleStatementLine
    variable: str
    value: cst.BaseExpression
    """Without the reduction over the tile."""
    reduce: str
    """`sum` as the file calls it; "" if the variable is a tile."""


def _rewritten(source: Source, fors: list[cst.For], row: RowLoop, masked: bool) -> str | None:
    one, two = fors
    language = next(iter(sorted(language_names(source))), None)
    owner = source.parent(one)
    first, second = _sum(source, one), _sum(source, two)
    if language is None or first is None or second is None:
        return None
    if not isinstance(owner, cst.IndentedBlock):
        return None
    start, end = owner.body.index(one), owner.body.index(two)
    between = _statements(owner.body[start + 1 : end])
    mean = _mean(between, two)
    mask = _mask(one) if masked else ""
    if mean is None or mask is None or not isinstance(one.target, cst.Name):
        return None
    names = _Names(source, first)
    seen, squares, count = names.mean, names.squares, names.count
    offset = one.target.value
    difference = f"{names.value} - {seen}"
    if mask:
        difference = f"{language}.where({mask}, {difference}, 0.0)"
    update = [
        f"{names.delta} = {difference}",
        f"{seen} += {names.delta} * (1.0 / ({offset} // {row.block} + 1))",
        f"{squares} += {names.delta} * ({names.value} - {seen})",
    ]
    if not isinstance(first.value, cst.Name):
        update.insert(0, f"{names.value} = {source.code(first.value)}")
    loop = _with_update(one, first, update)
    lanes = [
        f"{seen} = {language}.zeros([{row.block}], dtype={language}.float32)",
        f"{squares} = {language}.zeros([{row.block}], dtype={language}.float32)",
    ]
    joined = f"{squares} + {count} * ({seen} - {mean}) * ({seen} - {mean})"
    if second.reduce:
        joined = f"{second.reduce}({joined}, axis=0)"
    total = f"{seen} * {count}"
    if first.reduce:
        total = f"{first.reduce}({total}, axis=0)"
    after = [
        f"{count} = ({source.code(_length(one))} - {language}.arange(0, {row.block})"
        f" + {row.block} - 1) // {row.block}"
    ]
    kept = _with_total(between, _statements(owner.body[end + 1 :]), first.variable, total)
    if kept is None:
        after.append(f"{first.variable} = {total}")
        kept = list(between)
    before = _without(_without(_statements(owner.body[:start]), first.variable), second.variable)
    body = [
        *before,
        *_parsed(
            lanes,
            one,
            "# Welford: each lane keeps the mean and the squared deviations of what it saw.",
        ),
        loop,
        *_parsed(after, None, "# Join the lanes; the last block fills only some of them."),
        *_without(kept, second.variable),
        *_parsed([f"{second.variable} = {joined}"], None, ""),
        *owner.body[end + 1 :],
    ]
    return source.replace([(owner, owner.with_changes(body=body))])


class _Names:
    """Names that the file does not use yet."""

    def __init__(self, source: Source, first: _Sum) -> None:
        module = source.module
        self.mean = fresh_name("lane_mean", module)
        self.squares = fresh_name("lane_squares", module)
        self.count = fresh_name("lane_count", module)
        self.delta = fresh_name("delta", module)
        named = first.value.value if isinstance(first.value, cst.Name) else None
        self.value = named or fresh_name("value", module)


def _sum(source: Source, loop: cst.For) -> _Sum | None:
    """The statement of a loop that adds to what the loop carries."""
    found = []
    for statement in loop.body.body:
        name = target_name(statement) if isinstance(statement, cst.SimpleStatementLine) else None
        if name is None or not isinstance(statement, cst.SimpleStatementLine):
            continue
        small = statement.body[0]
        added: cst.BaseExpression | None = None
        if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
            added = small.value
        elif isinstance(small, cst.Assign) and isinstance(small.value, cst.BinaryOperation):
            sides = [small.value.left, small.value.right]
            rest = [s for s in sides if not m.matches(s, m.Name(name))]
            if isinstance(small.value.operator, cst.Add) and len(rest) == 1:
                added = rest[0]
        if added is None or name in names_read(added):
            continue
        reduce = ""
        if m.matches(added, m.Call(func=m.Attribute(attr=m.Name("sum")) | m.Name("sum"))):
            assert isinstance(added, cst.Call)
            reduce, added = source.code(added.func), added.args[0].value
        found.append(_Sum(statement, name, added, reduce))
    return found[0] if len(found) == 1 else None


def _mean(between: Sequence[cst.BaseStatement], two: cst.For) -> str | None:
    """The variable, set between the loops, that the second loop subtracts."""
    fixed = {name for s in between for name in assigned_names(s)}
    found = {
        node.right.value
        for node in m.findall(two.body, m.BinaryOperation(operator=m.Subtract(), right=m.Name()))
        if isinstance(node, cst.BinaryOperation) and isinstance(node.right, cst.Name)
    }
    means = found & fixed
    return next(iter(means)) if len(means) == 1 else None


def _mask(loop: cst.For) -> str | None:
    """The mask of the loop's load."""
    for call in m.findall(
        loop.body, m.Call(func=m.Attribute(attr=m.Name("load")) | m.Name("load"))
    ):
        assert isinstance(call, cst.Call)
        for position, arg in enumerate(call.args):
            named = arg.keyword.value if arg.keyword is not None else ""
            if named == "mask" or (not named and position == 1):
                return cst.Module([]).code_for_node(arg.value)
    return None


def _length(loop: cst.For) -> cst.BaseExpression:
    """Where the loop's range ends."""
    assert isinstance(loop.iter, cst.Call)
    ends = [a.value for a in loop.iter.args if a.keyword is None]
    return ends[1] if len(ends) > 1 else ends[0]


def _with_update(loop: cst.For, first: _Sum, update: list[str]) -> cst.For:
    body: list[cst.BaseStatement] = []
    for statement in loop.body.body:
        if statement is not first.statement:
            assert isinstance(statement, cst.BaseStatement)
            body.append(statement)
            continue
        new = [_statement(text) for text in update]
        new[0] = new[0].with_changes(leading_lines=first.statement.leading_lines)
        body.extend(new)
    return loop.with_changes(body=loop.body.with_changes(body=body), leading_lines=())


def _with_total(
    between: Sequence[cst.BaseStatement],
    after: Sequence[cst.BaseStatement],
    variable: str,
    total: str,
) -> list[cst.BaseStatement] | None:
    """The statements between the loops with the sum written where its only use was."""
    statements = list(between)
    uses = [n for s in [*statements, *after] for n in m.findall(s, m.Name(variable))]
    inside = [n for s in statements for n in m.findall(s, m.Name(variable))]
    if len(uses) != 1 or len(inside) != 1:
        return None
    new = cst.parse_expression(total)
    if not isinstance(new, cst.Call) and not any(
        m.findall(s, m.Arg(value=m.Name(variable))) for s in statements
    ):
        return None  # it would need parentheses
    changed = []
    for statement in statements:
        result = substitute(statement, lambda n: new if m.matches(n, m.Name(variable)) else None)
        assert isinstance(result, cst.BaseStatement)
        changed.append(result)
    return changed


def _sets(statement: cst.BaseStatement, variable: str) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and target_name(statement) == variable


def _without(statements: Sequence[cst.BaseStatement], variable: str) -> list[cst.BaseStatement]:
    """Without the zeros that a sum started from, unless something else reads them."""
    if any(variable in names_read(s) for s in statements if not _sets(s, variable)):
        return list(statements)
    return [s for s in statements if not _sets(s, variable)]


def _statements(nodes: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    return list(nodes)


def _statement(text: str) -> cst.SimpleStatementLine:
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement


def _parsed(texts: list[str], after: cst.For | None, comment: str) -> list[cst.SimpleStatementLine]:
    """Statements below a comment, and below what stood above the loop that they come before."""
    new = [_statement(text) for text in texts]
    lines = list(after.leading_lines) if after is not None else []
    if comment:
        lines.append(cst.EmptyLine(comment=cst.Comment(comment)))
    new[0] = new[0].with_changes(leading_lines=lines)
    return new
