"""A kernel whose tile indices are taken in groups."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.polynomial import Polynomial
from kopt.agent.playbook.reading import Reading, assigned_names, free_name, is_jitted, nodes, read
from kopt.agent.playbook.signature import constexpr, function_with, parameters
from kopt.agent.playbook.source import Source, names_read, target_name
from kopt.agent.playbook.tile_order import TileOrder


def in_groups(text: str, kernel: KernelEvidence, order: TileOrder, size: int) -> str | None:
    """The file after it; None where the source does not show what the TTIR does."""
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
