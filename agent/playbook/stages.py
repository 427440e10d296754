"""Launches as the source and the TTIR show them: what each reads, writes and is passed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.index import Indices
from kopt.agent.playbook.polynomial import Polynomial
from kopt.agent.playbook.source import Site, Source, substitute
from kopt.agent.playbook.ttir import Operation
from kopt.gpu.trace import PointerArg, ScalarArg


@dataclass(frozen=True)
class Access:
    """A load or a store outside of loops, in terms of what the host passed."""

    operation: Operation
    parameter: str
    offset: Polynomial
    mask: tuple[Polynomial, ...] | None
    """Sorted differences that must not be negative; None without a mask."""


@dataclass
class Stage:
    """One launch of a chain."""

    evidence: KernelEvidence
    site: Site
    texts: dict[str, str]
    """What the host passes for each parameter, with variables that are set once written out."""
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    """Numbers of the buffers."""

    def pointer(self, parameter: str) -> tuple[int, int] | None:
        """Buffer and byte offset of a parameter."""
        for arg in self.evidence.event.args:
            if isinstance(arg, PointerArg) and arg.name == parameter:
                return arg.buffer, arg.byte_offset
        return None

    def value(self, parameter: str) -> int | float | None:
        """The number passed for a parameter."""
        for arg in self.evidence.event.args:
            if isinstance(arg, ScalarArg) and arg.name == parameter:
                return arg.value
        constant = self.evidence.kernel.constexprs.get(parameter)
        return constant if isinstance(constant, int | float) else None


def stage(source: Source, original: Source, evidence: KernelEvidence) -> Stage | None:
    """A launch with its accesses; None where some of them cannot be told.

    `original` is the file as it ran; `source` may have helpers written out.
    """
    site = _site(source, original, evidence)
    function = source.functions().get(evidence.kernel.name)
    if site is None or function is None or len(function.decorators) != 1:
        return None
    texts = {
        name: source.code(written_out(source, arg.value, site.function))
        for name, arg in site.arguments.items()
    }
    for parameter in function.params.params:
        if parameter.default is not None:
            texts.setdefault(parameter.name.value, source.code(parameter.default))
    made = Stage(evidence, site, texts)
    module = evidence.ttir
    indices = Indices(module)
    for operation in module.walk():
        stored = operation.name in {"tt.store", "tt.atomic_rmw", "tt.atomic_cas"}
        if not stored and operation.name != "tt.load":
            if operation.name.startswith(("tt.descriptor", "tt.experimental", "tt.extern")):
                return None
            continue
        base = module.base(operation.operands[0])
        pointer = made.pointer(base) if base is not None else None
        if pointer is None:
            return None
        (made.writes if stored else made.reads).add(pointer[0])
        if operation.name.startswith("tt.atomic"):
            made.reads.add(pointer[0])
            continue
        access = _access(indices, operation, made)
        if access is not None:
            (made.stores if stored else made.loads).append(access)
    return made


def _site(source: Source, original: Source, evidence: KernelEvidence) -> Site | None:
    """The launch in the source that was recorded."""
    found = re.search(r":(\d+)$", evidence.event.host_line)
    if found is None:
        return None
    line = int(found.group(1))
    name = evidence.kernel.name
    places = [
        position
        for position, s in enumerate(original.sites(name))
        if original.line(s.call)
        <= line
        <= original.line(s.call) + original.code(s.call).count("\n")
    ]
    # Writing helpers out moves lines, but no launches.
    sites = source.sites(name)
    return sites[places[0]] if len(places) == 1 and places[0] < len(sites) else None


def written_out(source: Source, node: cst.BaseExpression, function: str) -> cst.BaseExpression:
    """An expression with variables that a function sets once, to a number or a size, replaced."""

    def test(inner: cst.BaseExpression) -> cst.BaseExpression | None:
        if not isinstance(inner, cst.Name):
            return None
        assigned = source.assigned(inner.value, function)
        if len(assigned) != 1 or isinstance(assigned[0], cst.Name | cst.Tuple):
            return None
        text = source.code(assigned[0])
        size = re.search(r"next_power_of_2|cdiv|numel\(|\.shape\[|\.size\(|\.stride\(", text)
        return assigned[0] if size or isinstance(assigned[0], cst.Integer) else None

    if isinstance(node, cst.Name):
        return test(node) or node
    changed = substitute(node, test)
    assert isinstance(changed, cst.BaseExpression)
    return changed


def _access(indices: Indices, operation: Operation, made: Stage) -> Access | None:
    """The access, if it is made once by every program."""
    if operation.block is not indices.module.body:
        return None
    address = indices.address(operation.operands[0])
    if address is None:
        return None
    position = 2 if operation.name == "tt.store" else 1
    mask: tuple[Polynomial, ...] | None = None
    if len(operation.operands) > position:
        conditions = indices.conditions(operation.operands[position])
        if conditions is None:
            return None
        mask = tuple(sorted(c.difference for c in conditions))
    return Access(operation, address.base, address.offset, mask)


def statements_between(
    source: Source, one: Site, two: Site
) -> list[cst.SimpleStatementLine] | None:
    """The lines between two launches of one body; None if they are not in one."""
    lines = [launch_line(source, s) for s in (one, two)]
    if lines[0] is None or lines[1] is None:
        return None
    owner = source.parent(lines[0])
    if owner is not source.parent(lines[1]) or not isinstance(owner, cst.IndentedBlock):
        return None
    body = list(owner.body)
    first, second = (next(i for i, s in enumerate(body) if s is line) for line in lines)
    inner = body[first + 1 : second]
    if first >= second or not all(isinstance(s, cst.SimpleStatementLine) for s in inner):
        return None
    return [s for s in inner if isinstance(s, cst.SimpleStatementLine)]


def launch_line(source: Source, site: Site) -> cst.SimpleStatementLine | None:
    """The statement that is a launch and nothing else."""
    expression = source.parent(site.call)
    line = source.parent(expression) if isinstance(expression, cst.Expr) else None
    single = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    return line if single and isinstance(line, cst.SimpleStatementLine) else None


def same_argument(one: Stage, two: Stage, parameter: str) -> str | None:
    """The parameter of the first stage that always equals a parameter of the second: the host
    passes the same expression, or a stride that is the same number."""
    text = two.texts.get(parameter)
    if text is None:
        return None
    for name, other in one.texts.items():
        if other == text and one.value(name) == two.value(parameter):
            if one.pointer(name) == two.pointer(parameter):
                return name
            return None
    value = two.value(parameter)
    for name, other in one.texts.items():
        if value is not None and one.value(name) == value and ".stride(" in other + text:
            return name
    return None
