"""Loops whose select discards all tiles on one side of a line that moves with the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.index import Comparison, Indices, launch_value
from kopt.agent.playbook.inert import Inert
from kopt.agent.playbook.polynomial import ONE, Polynomial, Symbol, bounds
from kopt.agent.playbook.ttir import Loop, Operation

WORTHWHILE = 0.1
"""Share of the tiles that must be masked as a whole."""


@dataclass(frozen=True)
class Edge:
    """One side from which on every tile of a loop is masked.

    A tile of iteration `i` has an unmasked element only if `sign · i + rest >= 0` for some element.
    """

    ordinal: int
    """Of the loop, in program order."""
    loop: Loop
    side: Literal["end", "begin"]
    rest: Polynomial
    select: Operation
    share: float
    """Of all tiles of the launch, those that are masked as a whole."""


def masked_edges(kernel: KernelEvidence) -> list[Edge]:
    """Edges of a kernel's loops that are worth a tighter bound."""
    module = kernel.ttir
    indices = Indices(module)
    found = []
    for ordinal, loop in enumerate(module.loops()):
        if indices.depends_on_program(loop.lower) or any(
            op.name in {"tt.store", "tt.atomic_rmw", "tt.atomic_cas"}
            for op in module.walk(loop.body)
        ):
            continue
        bounded = bool(indices.depends_on_program(loop.upper))
        for select, condition, masked in _conditions(indices, loop):
            edge = _edge(kernel, indices, ordinal, loop, select, condition)
            if edge is None or edge.share < WORTHWHILE or (bounded and edge.side == "end"):
                continue
            if _inert(indices, edge, {select.results[0]: masked}):
                found.append(edge)
    return found


def _conditions(indices: Indices, loop: Loop) -> Iterator[tuple[Operation, Comparison, str]]:
    """Selects of a loop, each comparison that must hold for the unmasked side, and the masked
    side."""
    module = indices.module
    for op in module.walk(loop.body):
        if op.name != "arith.select":
            continue
        comparisons = indices.conditions(op.operands[0])
        if comparisons is None:
            continue
        for comparison in comparisons:
            yield op, comparison, op.operands[2]
        if len(comparisons) == 1:
            # `where(masked, -inf, x)`: the other side is the one that is kept.
            opposite = -comparisons[0].difference - ONE
            yield op, Comparison(opposite, comparisons[0].operation), op.operands[1]


def _edge(
    kernel: KernelEvidence,
    indices: Indices,
    ordinal: int,
    loop: Loop,
    select: Operation,
    condition: Comparison,
) -> Edge | None:
    variable = Symbol("loop", str(ordinal))
    factor = condition.difference.factor(variable).number
    if factor not in {1, -1}:
        return None
    rest = condition.difference - Polynomial.of(variable) * Polynomial.constant(factor)
    if not rest.has(lambda s: s.kind == "program"):
        return None
    if rest.has(lambda s: s.kind not in {"program", "argument", "range"}):
        return None
    share = _share(kernel, indices, loop, factor, rest)
    if share is None:
        return None
    return Edge(ordinal, loop, "end" if factor < 0 else "begin", rest, select, share)


def reach(rest: Polynomial) -> Polynomial:
    """The largest value over the elements of a tile."""
    values: dict[Symbol, Polynomial] = {}
    for symbol in set(rest.symbols()):
        if symbol.kind == "range":
            start, end, _ = bounds(symbol)
            factor = rest.factor(symbol).number or 0
            values[symbol] = Polynomial.constant(end - 1 if factor > 0 else start)
    return rest.replace(values)


def _share(
    kernel: KernelEvidence, indices: Indices, loop: Loop, factor: int, rest: Polynomial
) -> float | None:
    """The share of the launch's tiles that are masked as a whole."""
    limit = reach(rest)
    axes = {int(s.name) for s in limit.symbols() if s.kind == "program"}
    numbers = [launch_value(kernel, indices.value(v)) for v in (loop.lower, loop.upper, loop.step)]
    if len(axes) != 1 or None in numbers:
        return None
    lower, upper, step = (int(n or 0) for n in numbers)
    (axis,) = axes
    total = masked = 0
    for program in range(kernel.event.grid[axis]):
        bound = launch_value(kernel, limit, {axis: program})
        if bound is None or step <= 0:
            return None
        tiles = range(lower, upper, step)
        total += len(tiles)
        masked += sum(factor * i + bound < 0 for i in tiles)
    return masked / total if total else None


def _inert(indices: Indices, edge: Edge, masked: dict[str, str]) -> bool:
    """Whether a masked tile leaves everything as it was that is needed later."""
    module = indices.module
    inert = Inert(module, edge.loop, masked)
    outside = {
        operand
        for op in module.walk()
        for operand in op.operands
        if not _within(module_block=edge.loop, operation=op, indices=indices)
    }
    for position, carried in enumerate(edge.loop.carried):
        results = edge.loop.operation.results
        if edge.side == "end" and results[position] not in outside:
            # What only later iterations need may change with the last ones.
            continue
        if not inert.unchanged(carried):
            return False
    return bool(edge.loop.carried)


def _within(*, module_block: Loop, operation: Operation, indices: Indices) -> bool:
    return any(operation is op for op in indices.module.walk(module_block.body))
