"""Kernels that walk an array with one flat index and take its digits with `//` and `%`."""

from __future__ import annotations

from dataclasses import dataclass

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.index import Address, Indices, launch_value
from kopt.agent.playbook.polynomial import ONE, Polynomial, Symbol, quotient, remainder
from kopt.agent.playbook.ttir import Module, Operation

_ELEMENTWISE_ONLY = {
    "tt.reduce", "tt.dot", "tt.scan", "tt.reshape", "tt.trans", "scf.for", "scf.while",
    "tt.atomic_rmw", "tt.atomic_cas", "tt.gather", "tt.join", "tt.cat", "tt.histogram",
}  # fmt: skip


@dataclass(frozen=True)
class Digit:
    """`(index // stride) % radix`; the topmost has no radix."""

    stride: Polynomial
    radix: Polynomial | None

    def of(self, index: Polynomial) -> Polynomial:
        """Its value for an index."""
        value = quotient(index, self.stride)
        return value if self.radix is None else remainder(value, self.radix)


@dataclass(frozen=True)
class FlatIndex:
    """What was found in a kernel: one flat index, its digits from the innermost out, and the two
    that are to be tiled."""

    index: Polynomial
    digits: tuple[Digit, ...]
    other: int
    """Position of the digit that the scattered accesses walk with unit stride; the first digit is
    the one of the contiguous accesses."""
    total: Polynomial
    """`index < total` is the mask of every access; a multiple of the radices in this launch."""
    scattered: tuple[Operation, ...]
    wide: bool
    """The index has 64 bits."""

    def digit(self, position: int) -> Polynomial:
        """The value of a digit."""
        return self.digits[position].of(self.index)

    @property
    def count(self) -> Polynomial:
        """How many values the topmost digit takes."""
        return quotient(self.total, self.digits[-1].stride)


def flat_index(kernel: KernelEvidence) -> FlatIndex | None:
    """The flat index of an elementwise kernel whose accesses disagree about what is contiguous."""
    module = kernel.ttir
    indices = Indices(module)
    operations = list(module.walk())
    if any(op.name in _ELEMENTWISE_ONLY for op in operations):
        return None
    accesses: list[tuple[Operation, Address]] = []
    for op in operations:
        if op.name in {"tt.load", "tt.store"}:
            address = indices.address(op.operands[0])
            if address is None:
                return None
            accesses.append((op, address))
    index = _only_index([a.offset for _, a in accesses])
    if index is None:
        return None
    total = _total(indices, [op for op, _ in accesses], index)
    digits = _digits([a.offset for _, a in accesses], index)
    if total is None or digits is None:
        return None
    length, row = (launch_value(kernel, v) for v in (total, digits[-1].stride))
    if not length or not row or length % row:
        return None
    steps = [(op, _steps(a.offset, index, digits)) for op, a in accesses]
    others = set()
    for _, step in steps:
        if step is None:
            return None
        if step[0] != ONE:
            others |= {k for k, s in enumerate(step) if s == ONE}
    if len(others) != 1 or not any(step is not None and step[0] == ONE for _, step in steps):
        return None
    other = others.pop()
    scattered = tuple(
        op for op, step in steps if step is not None and step[0] != ONE and step[other] == ONE
    )
    wide = any(
        op.name in {"arith.divsi", "arith.remsi"} and op.type.endswith("xi64>") for op in operations
    )
    return FlatIndex(index, digits, other, total, scattered, wide)


def _only_index(offsets: list[Polynomial]) -> Polynomial | None:
    """The one value of which all quotients and remainders are taken."""
    found = {
        s.inner[0]
        for offset in offsets
        for s in offset.symbols()
        if s.kind in {"quotient", "remainder"} and s.inner[0].has(lambda i: i.kind == "range")
    }
    bases = {_innermost(value) for value in found}
    if len(bases) != 1:
        return None
    index = bases.pop()
    ranges = {s for s in index.symbols() if s.kind == "range"}
    if len(ranges) != 1 or index.factor(next(iter(ranges))) != ONE:
        return None
    return index


def _innermost(value: Polynomial) -> Polynomial:
    while len(value.terms) == 1 and value.terms[0][0] and value.terms[0][0][0].inner:
        value = value.terms[0][0][0].inner[0]
    return value


def _total(indices: Indices, operations: list[Operation], index: Polynomial) -> Polynomial | None:
    """The bound of the index, if it alone masks every access."""
    found = set()
    for op in operations:
        mask = mask_of(indices.module, op)
        conditions = indices.conditions(mask) if mask is not None else None
        if not conditions:
            return None
        for condition in conditions:
            bound = condition.difference + index + ONE
            if bound.has(lambda s: s.kind in {"range", "program"}):
                return None
            found.add(bound)
    return found.pop() if len(found) == 1 else None


def mask_of(module: Module, operation: Operation) -> str | None:
    """The mask operand of a load or a store."""
    position = 2 if operation.name == "tt.store" else 1
    if len(operation.operands) <= position:
        return None
    mask = operation.operands[position]
    definition = module.definitions.get(mask)
    if definition is not None and definition.name == "arith.constant":
        return None
    return mask


def _digits(offsets: list[Polynomial], index: Polynomial) -> tuple[Digit, ...] | None:
    """The digits of the index from the innermost out, if they are those of one number system."""
    used = {
        Polynomial.of(s)
        for offset in offsets
        for monomial, _ in offset.terms
        for s in monomial
        if s.kind in {"quotient", "remainder"}
    }
    digits: list[Digit] = []
    stride = ONE
    while used:
        top = Digit(stride, None)
        if top.of(index) in used and stride != ONE:
            used.discard(top.of(index))
            digits.append(top)
            break
        radices = {
            s.inner[1]
            for value in used
            for s in [value.terms[0][0][0]]
            if s.kind == "remainder" and s.inner[0] == quotient(index, stride)
        }
        if len(radices) != 1:
            return None
        radix = radices.pop()
        digit = Digit(stride, radix)
        used.discard(digit.of(index))
        digits.append(digit)
        stride = stride * radix
    whole = not used and len(digits) >= 2 and digits[-1].radix is None
    return tuple(digits) if whole else None


def _steps(
    offset: Polynomial, index: Polynomial, digits: tuple[Digit, ...]
) -> list[Polynomial] | None:
    """How far an address moves for a step of each digit."""
    marks = [Symbol("opaque", f"digit {k}") for k in range(len(digits))]
    values: dict[Symbol, Polynomial] = {}
    whole = Polynomial.constant(0)
    for mark, digit in zip(marks, digits, strict=True):
        value = digit.of(index)
        values[value.terms[0][0][0]] = Polynomial.of(mark)
        whole = whole + Polynomial.of(mark) * digit.stride
    (lanes,) = {s for s in index.symbols() if s.kind == "range"}
    base = index - Polynomial.of(lanes)
    plain = offset.replace(values).replace({lanes: whole - base})
    if plain.has(lambda s: s.kind in {"range", "quotient", "remainder"}):
        return None
    rest = plain
    for mark in marks:
        rest = rest - plain.factor(mark) * Polynomial.of(mark)
    if rest.has(lambda s: s in marks):
        return None
    return [plain.factor(mark) for mark in marks]
