"""Whether an iteration of a loop changes anything when its tile is masked as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kopt.agent.playbook.ttir import Loop, Module, Operation

MASKED = -1e4
"""What is at most this stands for minus infinity: its exponential is zero in every dtype."""

Abstract = float | str | None
"""A number everywhere in a tile, the name of a value that it equals, or neither."""

_VIEWS = {
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "arith.extf",
    "arith.truncf", "ttg.convert_layout",
}  # fmt: skip


@dataclass
class Inert:
    """The values of one iteration in which each of `selects` yields what it does under a mask."""

    module: Module
    loop: Loop
    masked: dict[str, str]
    """Result of a select to its masked operand."""
    _known: dict[str, Abstract] = field(default_factory=dict)

    def unchanged(self, carried: str) -> bool:
        """Whether the iteration leaves a carried value as it was."""
        position = self.loop.carried.index(carried)
        return self.value(self.loop.yields[position]) == carried

    def value(self, name: str) -> Abstract:
        """What is known about a value in such an iteration."""
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self._compute(name)
        return self._known[name]

    def _compute(self, name: str) -> Abstract:
        if name in self.loop.carried:
            return name
        if name in self.masked:
            return self.value(self.masked[name])
        number = self.module.constant(name)
        operation = self.module.definitions.get(name)
        if number is not None or operation is None:
            return number
        if operation.name in _VIEWS:
            return self.value(operation.operands[0])
        operands = [self.value(o) for o in operation.operands]
        match operation.name, operands:
            case "arith.addf", [left, right]:
                return _sum(left, right)
            case "arith.subf", [left, right]:
                return _difference(left, right)
            case "arith.mulf", [left, right]:
                return _product(left, right)
            case (("arith.maxnumf" | "arith.maximumf"), [left, right]):
                return _largest(left, right)
            case "arith.divf", [0.0, _]:
                return 0.0
            case "math.exp", [float() as power]:
                return 0.0 if power <= MASKED else math.exp(power) if power < 80 else None
            case "math.exp2", [float() as power]:
                return 0.0 if power <= MASKED else 2.0**power if power < 80 else None
            case "tt.dot", [left, right, total, *_] if 0.0 in (left, right):
                return total
            case "tt.reduce", [float() as each]:
                return self._reduced(operation, each)
            case "arith.select", [_, left, right] if left == right:
                return left
        return None

    def _reduced(self, operation: Operation, each: float) -> Abstract:
        combine = self.module.combine(operation)
        if combine in {"arith.maxnumf", "arith.maximumf", "arith.minnumf", "arith.minimumf"}:
            return each
        return 0.0 if combine == "arith.addf" and each == 0.0 else None


def _is_masked(value: Abstract) -> bool:
    return isinstance(value, float) and value <= MASKED


def _sum(left: Abstract, right: Abstract) -> Abstract:
    if left == 0.0:
        return right
    if right == 0.0:
        return left
    if _is_masked(left) or _is_masked(right):
        return -math.inf
    if isinstance(left, float) and isinstance(right, float):
        return left + right
    return None


def _difference(left: Abstract, right: Abstract) -> Abstract:
    if isinstance(left, str) and left == right:
        return 0.0
    if _is_masked(left):
        return -math.inf
    if right == 0.0:
        return left
    if isinstance(left, float) and isinstance(right, float):
        return left - right
    return None


def _product(left: Abstract, right: Abstract) -> Abstract:
    if left == 1.0:
        return right
    if right == 1.0:
        return left
    if 0.0 in (left, right):
        return 0.0
    if isinstance(left, float) and isinstance(right, float):
        return left * right
    return None


def _largest(left: Abstract, right: Abstract) -> Abstract:
    if _is_masked(left):
        return right
    if _is_masked(right):
        return left
    if isinstance(left, float) and isinstance(right, float):
        return max(left, right)
    return left if left == right else None
