"""What the addresses and masks of a kernel are computed from, read from its TTIR."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.loops import argument_value
from kopt.agent.playbook.polynomial import (
    ZERO,
    Polynomial,
    Symbol,
    argument,
    difference,
    moved,
    program,
    quotient,
    remainder,
    span,
)
from kopt.agent.playbook.ttir import Module, Operation

_CASTS = {
    "tt.splat", "tt.broadcast", "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast",
}  # fmt: skip
_AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True)
class Address:
    """A pointer: the argument at its root and the offset in elements."""

    base: str
    offset: Polynomial


@dataclass(frozen=True)
class Comparison:
    """`difference >= 0`, elementwise: the normal form of an integer comparison."""

    difference: Polynomial
    operation: Operation


@dataclass
class Indices:
    """Index values of one kernel as polynomials, computed once each."""

    module: Module
    _known: dict[str, Polynomial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ordinal, loop in enumerate(self.module.loops()):
            self._known[loop.variable] = Polynomial.of(Symbol("loop", str(ordinal)))

    def value(self, name: str) -> Polynomial:
        """An integer value; what is no index arithmetic is an opaque symbol."""
        if name not in self._known:
            self._known[name] = self._compute(name)
        return self._known[name]

    def _compute(self, name: str) -> Polynomial:
        operation = self.module.definitions.get(name)
        if operation is None:
            bare = name.removeprefix("%")
            known = bare in self.module.arguments
            return Polynomial.of(argument(bare) if known else Symbol("opaque", name))
        number = self.module.constant(name)
        if number is not None and number == int(number):
            return Polynomial.constant(int(number))
        if operation.name in _CASTS:
            return self.value(operation.operands[0])
        if operation.name == "tt.get_program_id":
            axis = re.search(r"tt\.get_program_id ([xyz])", operation.text)
            assert axis is not None, operation.text
            return Polynomial.of(program(_AXES[axis.group(1)]))
        if operation.name == "tt.make_range":
            return Polynomial.of(span(_attribute(operation, "start"), _attribute(operation, "end")))
        if operation.name == "tt.expand_dims":
            place = _attribute(operation, "axis")
            return moved(self.value(operation.operands[0]), lambda d: d + (d >= place))
        if operation.name == "tt.trans":
            found = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
            order = [int(n) for n in found.group(1).split(",")] if found else []
            if order:
                return moved(self.value(operation.operands[0]), order.index)
        return self._arithmetic(name, operation)

    def _arithmetic(self, name: str, operation: Operation) -> Polynomial:
        if len(operation.operands) == 2 and operation.name.startswith("arith."):
            left, right = (self.value(o) for o in operation.operands)
            match operation.name:
                case "arith.addi":
                    return left + right
                case "arith.subi":
                    return difference(left, right)
                case "arith.muli":
                    return left * right
                case "arith.divsi" | "arith.divui":
                    return quotient(left, right)
                case "arith.remsi" | "arith.remui":
                    return remainder(left, right)
                case "arith.shli" if right.number is not None:
                    return left * Polynomial.constant(1 << right.number)
        inner = tuple(self.value(o) for o in operation.operands)
        kind = operation.name if inner and not operation.regions else name
        return Polynomial.of(Symbol("opaque", kind, inner))

    def address(self, pointer: str) -> Address | None:
        """The address that a pointer value is."""
        offset = ZERO
        current = pointer
        while True:
            bare = current.removeprefix("%")
            if bare in self.module.arguments:
                return Address(bare, offset)
            operation = self.module.definitions.get(current)
            if operation is None:
                return None
            if operation.name == "tt.addptr":
                offset = offset + self.value(operation.operands[1])
            elif operation.name not in {"tt.splat", "tt.broadcast", "tt.bitcast"}:
                return None
            current = operation.operands[0]

    def conditions(self, mask: str) -> list[Comparison] | None:
        """The comparisons that a mask is the conjunction of; None if it is anything else."""
        operation = self.module.definitions.get(mask)
        if operation is None:
            return None
        if operation.name in {"tt.broadcast", "tt.splat"}:
            return self.conditions(operation.operands[0])
        if operation.name == "tt.expand_dims":
            inner = self.conditions(operation.operands[0])
            axis = _attribute(operation, "axis")
            return inner and [
                Comparison(moved(c.difference, lambda d: d + (d >= axis)), c.operation)
                for c in inner
            ]
        if operation.name == "arith.andi":
            both = [self.conditions(o) for o in operation.operands]
            return None if None in both else [c for part in both for c in part or []]
        if operation.name != "arith.cmpi":
            return None
        left, right = (self.value(o) for o in operation.operands)
        order = re.search(r"arith\.cmpi (\w+),", operation.text)
        one = Polynomial.constant(1)
        difference = {
            "slt": right - left - one,
            "sle": right - left,
            "sgt": left - right - one,
            "sge": left - right,
            "ult": right - left - one,
            "ule": right - left,
            "ugt": left - right - one,
            "uge": left - right,
        }.get(order.group(1) if order else "")
        return None if difference is None else [Comparison(difference, operation)]

    def depends_on_program(self, name: str) -> frozenset[int]:
        """Axes of the program ids that a value of any type is computed from."""
        stack, seen, axes = [name], set(), set()
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            operation = self.module.definitions.get(current)
            if operation is None:
                stack.extend(self._carried_from(current))
                continue
            if operation.name == "tt.get_program_id":
                found = re.search(r"tt\.get_program_id ([xyz])", operation.text)
                assert found is not None, operation.text
                axes.add(_AXES[found.group(1)])
            stack.extend(operation.operands)
            for region in operation.regions:
                for inner in self.module.walk(region):
                    stack.extend(inner.operands)
        return frozenset(axes)

    def _carried_from(self, name: str) -> list[str]:
        for loop in self.module.loops():
            if name == loop.variable:
                return [loop.lower, loop.upper, loop.step]
            if name in loop.carried:
                position = loop.carried.index(name)
                return [loop.initial[position], *loop.yields[position : position + 1]]
        return []


def launch_value(
    kernel: KernelEvidence, value: Polynomial, programs: Mapping[int, int] | None = None
) -> int | None:
    """What a value was in a launch, for given program ids by axis; None where that is unknown."""
    numbers: dict[Symbol, Polynomial] = {}
    for symbol in set(value.symbols()):
        number: int | None = None
        if symbol.kind == "argument":
            number = argument_value(kernel, symbol.name)
        elif symbol.kind == "program" and programs is not None:
            number = programs.get(int(symbol.name))
        if number is not None:
            numbers[symbol] = Polynomial.constant(number)
    return value.replace(numbers).number


def _attribute(operation: Operation, name: str) -> int:
    found = re.search(rf"\b{name} = (-?\d+) : i32", operation.text)
    assert found is not None, operation.text
    return int(found.group(1))
