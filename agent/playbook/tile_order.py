"""How the programs of a matrix product are numbered."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.index import Indices, launch_value
from kopt.agent.playbook.polynomial import Polynomial, Symbol, program
from kopt.agent.playbook.ttir import Module, Operation

_VIEWS = {
    "tt.trans", "tt.reshape", "tt.broadcast", "arith.extf", "arith.truncf", "tt.fp_to_fp",
    "arith.select", "arith.mulf",
}  # fmt: skip


@dataclass(frozen=True)
class TileOrder:
    """How the programs of a product are numbered."""

    slow: Polynomial
    """The tile index that changes slowest from program to program."""
    fast: Polynomial
    axis: int | None
    """The grid axis whose id is split by // and %; None if the tiles have two axes of their own."""
    slow_extent: int
    fast_extent: int
    """Elements of the output along one tile."""
    fast_count: int
    """Tiles along the fast index."""

    def panels(self, slow_tiles: float, resident: int) -> float:
        """What the programs of one wave read, up to a factor, if they cover so many slow tiles."""
        return slow_tiles * self.slow_extent + resident / slow_tiles * self.fast_extent


def tile_order(kernel: KernelEvidence) -> TileOrder | None:
    """The order of a kernel's tiles, if each operand of its dot follows one tile index alone."""
    module = kernel.ttir
    indices = Indices(module)
    for dot in module.walk():
        if dot.name != "tt.dot":
            continue
        loads = [_origin(module, operand) for operand in dot.operands[:2]]
        if loads[0] is None or loads[1] is None:
            continue
        shapes = re.findall(r"tensor<(\d+)x(\d+)x", dot.text)
        rows = _tile_indices(indices, loads[0].operands[0])
        columns = _tile_indices(indices, loads[1].operands[0])
        shared = rows & columns
        rows, columns = rows - shared, columns - shared
        if len(rows) == 1 and len(columns) == 1 and len(shapes) >= 2:
            extents = int(shapes[0][0]), int(shapes[1][1])
            order = _order(kernel, rows.pop(), columns.pop(), extents)
            if order is not None:
                return order
    return None


def _origin(module: Module, value: str) -> Operation | None:
    """The load behind an operand."""
    operation = module.definitions.get(value)
    while operation is not None and operation.name in _VIEWS:
        source = operation.operands[1 if operation.name == "arith.select" else 0]
        operation = module.definitions.get(source)
    return operation if operation is not None and operation.name == "tt.load" else None


def _tile_indices(indices: Indices, value: str) -> set[Polynomial]:
    """Program ids, and quotients and remainders of program ids, that a value is computed from."""
    module = indices.module
    found: set[Polynomial] = set()
    stack, seen = [value], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        operation = module.definitions.get(current)
        if operation is None:
            for loop in module.loops():
                if current in loop.carried:
                    stack.append(loop.initial[loop.carried.index(current)])
            continue
        if operation.name == "tt.get_program_id" or _of_program(indices, operation):
            found.add(indices.value(current))
        else:
            stack.extend(operation.operands)
    return found


def _of_program(indices: Indices, operation: Operation) -> bool:
    """Whether an operation computes `program // n` or `program % n`."""
    if operation.name not in {"arith.divsi", "arith.remsi"}:
        return False
    symbol = _symbol(indices.value(operation.results[0]))
    if symbol is None or symbol.kind not in {"quotient", "remainder"}:
        return False
    inner = _symbol(symbol.inner[0])
    return inner is not None and inner.kind == "program"


def _symbol(value: Polynomial) -> Symbol | None:
    if len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        return value.terms[0][0][0]
    return None


def _order(
    kernel: KernelEvidence, rows: Polynomial, columns: Polynomial, extents: tuple[int, int]
) -> TileOrder | None:
    one, two = _symbol(rows), _symbol(columns)
    assert one is not None
    assert two is not None
    grid = kernel.event.grid
    if {one, two} == {program(0), program(1)}:
        if grid[0] < 2 or grid[1] < 2:
            return None
        slow_is_rows = one == program(1)
        axis = None
        width: int | None = grid[0]
    elif {one.kind, two.kind} == {"quotient", "remainder"} and one.inner == two.inner:
        inner = _symbol(one.inner[0])
        assert inner is not None
        axis = int(inner.name)
        width = launch_value(kernel, one.inner[1])
        if width is None or grid[axis] % width or width < 2 or grid[axis] < 2 * width:
            return None
        slow_is_rows = one.kind == "quotient"
    else:
        return None
    pair = (rows, columns) if slow_is_rows else (columns, rows)
    lengths = extents if slow_is_rows else (extents[1], extents[0])
    return TileOrder(*pair, axis, *lengths, width or 1)
