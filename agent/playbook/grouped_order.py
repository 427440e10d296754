"""Walk the tiles of a matrix product in groups, so that programs that run together share operands.

In row-major order one wave of programs needs few rows of one operand and all of the other; a
squarer patch of tiles needs less of both.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.index import Indices, launch_value
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.polynomial import Polynomial, Symbol, program
from kopt.agent.playbook.reading import Reading, assigned_names, free_name, is_jitted, nodes, read
from kopt.agent.playbook.signature import constexpr, function_with, parameters
from kopt.agent.playbook.source import Source, names_read, target_name
from kopt.agent.playbook.ttir import Module, Operation
from kopt.tools.models import Effect

EXCESS = 1.2
"""DRAM bytes over compulsory bytes."""
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


class GroupedOrder:
    """Products whose programs read operands again from DRAM."""

    name = "grouped_program_order"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such kernel."""
        found = []
        for kernel in call.ranked:
            traffic = kernel.launch.traffic
            moved = traffic.dram_read_bytes + traffic.dram_write_bytes
            needed = traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
            resident = call.spec.sms * max(1, kernel.launch.compiled.ctas_per_sm)
            waves = kernel.launch.counters.ctas / resident
            order = tile_order(kernel)
            if order is None or moved <= EXCESS * needed or waves <= 1:
                continue
            size = _group(order, resident)
            text = _written(call.source, kernel, order, size) or _written(
                inlined(call.source, kernel.kernel.name), kernel, order, size
            )
            if text is not None:
                wide = max(1.0, resident / order.fast_count)
                change = min(1.0, order.panels(size, resident) / order.panels(wide, resident))
                after = max(float(needed), traffic.dram_read_bytes * change)
                found.append(self._proposal(kernel, size, (moved, needed, after), waves, text))
        return found

    def _proposal(
        self,
        kernel: KernelEvidence,
        size: int,
        bytes_: tuple[int, int, float],
        waves: float,
        text: str,
    ) -> Proposal:
        moved, needed, after = bytes_
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                f"groups of {size} rows of tiles keep both operands of a wave small enough to stay"
                " in L2"
            ),
            evidence=(
                f"{kernel.kernel.name} moves {moved / 1e6:.1f} MB through DRAM,"
                f" {moved / max(1, needed):.2f}x the {needed / 1e6:.1f} MB that it touches, in"
                f" {waves:.1f} waves whose programs are numbered along one axis of the tiles",
            ),
            predicted=(
                Effect(
                    metric="dram_bytes",
                    before=float(moved),
                    after=after,
                    direction="down",
                    sentence="tiles of both operands are read again from L2",
                ),
            ),
            conditions="more than one wave, and operands that do not fit in L2 together",
        )


def _group(order: TileOrder, resident: int) -> int:
    """Rows of tiles in a group that make a wave's patch of the output about square."""
    ideal = math.sqrt(resident * order.fast_extent / order.slow_extent)
    return int(min(32, max(2, 1 << round(math.log2(max(2.0, ideal))))))


# Detection ---------------------------------------------------------------------------------


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


# Writing -----------------------------------------------------------------------------------


def _written(text: str, kernel: KernelEvidence, order: TileOrder, size: int) -> str | None:
    source = Source(text)
    reading = read(source, kernel.kernel)
    if reading is None or not is_jitted(reading.function):
        return None
    group = free_name("GROUP", reading.function)
    if order.axis is None:
        counts = [f"tl.num_programs({axis})" for axis in (1, 0)]
    else:
        width = _width(reading, order)
        if width is None:
            return None
        counts = [f"tl.num_programs({order.axis}) // {width[1]}", width[0]]
    body = _body(reading, order, [*counts, group])
    if body is None:
        return None
    function = reading.function
    assert isinstance(function.body, cst.IndentedBlock)
    params = parameters(function)
    params.append(constexpr(group, params, str(size)))
    changed = function_with(
        function.with_changes(body=function.body.with_changes(body=body)), params, text
    )
    return source.replace([(function, changed)])


def _width(reading: Reading, order: TileOrder) -> tuple[str, str] | None:
    """How the source writes the number of tiles along the fast index, alone and in a product."""
    for node in reading.expressions(order.slow):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide):
            text = reading.source.code(node.right)
            alone = reading.source.code(node.right.with_changes(lpar=(), rpar=()))
            return alone, text
    return None


@dataclass
class _Named:
    """A statement that does nothing but name a tile index."""

    position: int
    statement: cst.SimpleStatementLine
    name: str


def _body(reading: Reading, order: TileOrder, counts: list[str]) -> list[cst.BaseStatement] | None:
    """The kernel's statements with the tile indices put in groups."""
    assert isinstance(reading.function.body, cst.IndentedBlock)
    statements = list(reading.function.body.body)
    slow, fast = (_named(reading, statements, v) for v in (order.slow, order.fast))
    if slow is None or fast is None:
        return _from_the_top(reading, statements, order, counts)
    early, late = sorted((slow, fast), key=lambda n: n.position)
    between = statements[early.position + 1 : late.position]
    sets = {n for s in between for n in assigned_names(s)}
    reads = {n for s in between for n in names_read(s)}
    pair = [early.statement, late.statement.with_changes(leading_lines=())]
    if not names_read(_value(late.statement)) & sets:
        place = early.position
    elif early.name not in reads:
        place = late.position - 1
        pair = [early.statement.with_changes(leading_lines=()), late.statement]
    else:
        return None
    rest = [s for i, s in enumerate(statements) if i not in {early.position, late.position}]
    new = [*pair, _swizzle(slow.name, fast.name, counts)]
    ordered = [*rest[:place], *new, *rest[place:]]
    later = {id(s) for s in rest[place:]}
    names = {order.slow: slow.name, order.fast: fast.name}
    changed = []
    for statement in ordered:
        if id(statement) in later:
            changed.append(_with_names(reading, statement, names))
        elif id(statement) in {id(s) for s in rest[:place]} and _mentions(
            reading, statement, names
        ):
            return None
        else:
            changed.append(statement)
    return changed


def _value(statement: cst.SimpleStatementLine) -> cst.BaseExpression:
    assign = statement.body[0]
    assert isinstance(assign, cst.Assign)
    return assign.value


def _named(
    reading: Reading, statements: list[cst.BaseStatement], value: Polynomial
) -> _Named | None:
    """The statement that first names a tile index."""
    for position, statement in enumerate(statements):
        name = target_name(statement)
        if name is None or not m.matches(statement, m.SimpleStatementLine(body=[m.Assign()])):
            continue
        assert isinstance(statement, cst.SimpleStatementLine)
        if reading.value(_value(statement)) == value:
            return _Named(position, statement, name)
    return None


def _from_the_top(
    reading: Reading, statements: list[cst.BaseStatement], order: TileOrder, counts: list[str]
) -> list[cst.BaseStatement] | None:
    """Name both program ids first, where the kernel uses them without a name."""
    if order.axis is not None:
        return None
    names = {
        order.slow: free_name("tile_row", reading.function),
        order.fast: free_name("tile_column", reading.function),
    }
    head: list[cst.BaseStatement] = []
    while statements and m.matches(
        statements[0], m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])
    ):
        head.append(statements.pop(0))
    lines = [
        cst.parse_statement(f"{names[order.fast]} = tl.program_id(0)\n"),
        cst.parse_statement(f"{names[order.slow]} = tl.program_id(1)\n"),
        _swizzle(names[order.slow], names[order.fast], counts),
    ]
    changed = [_with_names(reading, s, names) for s in statements]
    return [*head, *lines, *changed]


def _swizzle(slow: str, fast: str, counts: list[str]) -> cst.BaseStatement:
    statement = cst.parse_statement(
        f"{slow}, {fast} = tl.swizzle2d({slow}, {fast}, {', '.join(counts)})\n"
    )
    assert isinstance(statement, cst.SimpleStatementLine)
    why = [
        "# Programs that run together work on a square patch of tiles, so that both operands",
        "# are read again from L2.",
    ]
    return statement.with_changes(
        leading_lines=[cst.EmptyLine(comment=cst.Comment(line)) for line in why]
    )


def _mentions(reading: Reading, statement: cst.BaseStatement, names: dict[Polynomial, str]) -> bool:
    """Whether a statement computes a tile index."""
    values = [reading.value(node) for node in nodes(statement)]
    return any(isinstance(value, Polynomial) and value in names for value in values)


def _with_names(
    reading: Reading, statement: cst.BaseStatement, names: dict[Polynomial, str]
) -> cst.BaseStatement:
    """A statement in which every computation of a tile index is its variable."""

    class Change(cst.CSTTransformer):
        def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
            if isinstance(original_node, cst.Call | cst.BinaryOperation):
                value = reading.value(original_node)
                if isinstance(value, Polynomial) and value in names:
                    return cst.Name(names[value])
            return updated_node

    changed = statement.visit(Change())
    assert isinstance(changed, cst.BaseStatement)
    return changed
