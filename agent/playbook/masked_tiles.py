"""Skip tiles that are masked as a whole.

A loop over all tiles of a row, whose select then discards the tiles on one side of a line that
moves with the program id: causal attention, sliding windows, triangular products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.index import Comparison, Indices, launch_value
from kopt.agent.playbook.inert import Inert
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.polynomial import ONE, ZERO, Polynomial, Symbol, bounds, span
from kopt.agent.playbook.reading import Reading, assigned_names, free_name, read
from kopt.agent.playbook.source import Source, names_read
from kopt.agent.playbook.tidy import tidied
from kopt.agent.playbook.ttir import Loop, Operation
from kopt.tools.models import Effect

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


class MaskedTiles:
    """Loops that compute tiles which a select then discards as a whole."""

    name = "skip_masked_tiles"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each kernel with such loops."""
        found = []
        for kernel in call.ranked:
            edges = [e for e in masked_edges(kernel) if _counted(kernel, e)]
            if not edges:
                continue
            text = _written(call.source, kernel, edges) or _written(
                inlined(call.source, kernel.kernel.name), kernel, edges
            )
            if text is not None:
                found.append(self._proposal(kernel, edges, tidied(call.source, text)))
        return found

    def _proposal(self, kernel: KernelEvidence, edges: list[Edge], text: str) -> Proposal:
        share = sum(e.share for e in edges)
        issued = float(sum(kernel.launch.counters.instructions.values()))
        lines = ", ".join(sorted({str(e.select.line) for e in edges}))
        counted = [_selects(kernel, e.select) for e in edges]
        requests, uniform = (sum(pair[i] for pair in counted) for i in (0, 1))
        sides = " and ".join(
            "after the last visible column" if e.side == "end" else "before the first visible one"
            for e in edges
        )
        return Proposal(
            technique=self.name,
            source=text,
            rationale=f"the loop leaves out the tiles {sides}: a masked tile changes nothing",
            evidence=(
                f"{100 * share:.0f} % of the tiles in the loop of {kernel.kernel.name} are masked"
                f" as a whole by the select at line {lines}; {uniform:,} of its {requests:,} warp"
                " executions took one side in every lane",
            ),
            predicted=(
                Effect(
                    metric="instructions",
                    before=issued,
                    after=issued * (1 - share),
                    direction="down",
                    sentence="masked tiles are neither loaded nor computed",
                ),
            ),
            conditions="more programs than SMs: those with fewer tiles finish earlier",
        )


def _selects(kernel: KernelEvidence, select: Operation) -> tuple[int, int]:
    """Warp executions of a select, and those in which every lane took one side."""
    sites = [
        s
        for s in kernel.launch.counters.sites
        if s.kind == "select" and s.line == select.line and s.requests
    ]
    return (
        sum(s.requests for s in sites),
        sum(max(s.uniform_true, s.uniform_false) for s in sites),
    )


def _counted(kernel: KernelEvidence, edge: Edge) -> bool:
    """Whether the executor saw as many one-sided selects as there are masked tiles."""
    requests, uniform = _selects(kernel, edge.select)
    return requests > 0 and uniform >= 0.9 * edge.share * requests


# Detection ---------------------------------------------------------------------------------


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


# Writing -----------------------------------------------------------------------------------


def _written(text: str, kernel: KernelEvidence, edges: list[Edge]) -> str | None:
    source = Source(text)
    reading = read(source, kernel.kernel)
    if reading is None or len(reading.loops) != len(kernel.ttir.loops()):
        return None
    changes: list[tuple[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement]]] = []
    for ordinal in sorted({e.ordinal for e in edges}):
        node = reading.loops[ordinal]
        if source.enclosing(node) is not reading.function:
            return None
        writer = _Bounds(source, reading, node)
        for edge in edges:
            if edge.ordinal == ordinal and not writer.tighten(edge):
                return None
        changes.append((node, cst.FlattenSentinel(writer.statements())))
    return source.replace(changes)


class _Bounds:
    """Writes tighter bounds for one loop."""

    def __init__(self, source: Source, reading: Reading, node: cst.For) -> None:
        self.source = source
        self.reading = reading
        self.node = node
        assert isinstance(node.iter, cst.Call)
        self.args = [a.value for a in node.iter.args if a.keyword is None]
        self.new: list[cst.BaseStatement] = []
        self.replaced: dict[int, cst.BaseExpression] = {}

    def tighten(self, edge: Edge) -> bool:
        """Add one bound; False where the source has no words for it."""
        if not 1 <= len(self.args) <= 3:
            return False
        return self._end(edge) if edge.side == "end" else self._begin(edge)

    def _end(self, edge: Edge) -> bool:
        text = self._text(reach(edge.rest) + ONE, edge)
        if text is None:
            return False
        position = 0 if len(self.args) == 1 else 1
        old = self.source.code(self.args[position])
        name = free_name("end", self.reading.function)
        self._add(
            "# Tiles beyond the last one that this program sees are masked as a whole.",
            f"{name} = tl.minimum({old}, {text})",
        )
        self.replaced[position] = cst.Name(name)
        return True

    def _begin(self, edge: Edge) -> bool:
        columns = [
            s for s in edge.rest.symbols() if s.kind == "range" and edge.rest.factor(s) == ONE
        ]
        if len(self.args) != 3 or len(columns) != 1:
            return False
        low = self.reading.value(self.args[0])
        step = self.reading.value(self.args[2])
        start, end, _ = bounds(columns[0])
        if low != ZERO or start != 0 or step != Polynomial.constant(end):
            return False
        first = -reach(edge.rest - Polynomial.of(columns[0]))
        text = self._text(first, edge)
        if text is None:
            return False
        width = self.source.code(self.args[2])
        name = free_name("begin", self.reading.function)
        self._add(
            "# Tiles before the first one that this program sees are masked as a whole.",
            f"{name} = tl.maximum({text}, 0) // {width} * {width}",
        )
        self.replaced[0] = cst.Name(name)
        return True

    def _add(self, comment: str, line: str) -> None:
        statement = cst.parse_statement(line + "\n")
        assert isinstance(statement, cst.SimpleStatementLine)
        why = cst.EmptyLine(comment=cst.Comment(comment))
        self.new.append(statement.with_changes(leading_lines=[why]))

    def statements(self) -> list[cst.BaseStatement]:
        """The new bounds and the loop."""
        assert isinstance(self.node.iter, cst.Call)
        args = list(self.node.iter.args)
        for position, value in self.replaced.items():
            args[position] = args[position].with_changes(value=value)
        loop = self.node.with_changes(iter=self.node.iter.with_changes(args=args))
        first = self.new[0]
        assert isinstance(first, cst.SimpleStatementLine)
        lines = list(self.node.leading_lines)
        blank = [line for line in lines if line.comment is None]
        if blank:
            first = first.with_changes(leading_lines=[*blank, *first.leading_lines])
            loop = loop.with_changes(leading_lines=[x for x in lines if x.comment is not None])
        return [first, *self.new[1:], loop]

    # Words for a bound -----------------------------------------------------------------

    def _text(self, value: Polynomial, edge: Edge) -> str | None:
        """Source code for a bound of the loop, from what the kernel has named before it."""
        program, rest = value.split(lambda s: s.kind == "program")
        rows = [s for s in edge.rest.symbols() if s.kind == "range" and _row(edge, s)]
        height = bounds(rows[0])[1] if len(rows) == 1 and edge.side == "end" else 0
        base = self._base(program)
        width = self._width(height) if height else None
        if base is None or (height and width is None):
            return self._by_reduction(value, edge, rows)
        number = rest - Polynomial.constant(height)
        tail = self._tail(number)
        if tail is None:
            return None
        if width is not None:
            node = cst.parse_expression(base)
            factors = _factors(self.source, node)
            if len(factors) == 2 and width in factors:
                (other,) = [f for f in factors if f != width] or [width]
                base = f"({other} + 1) * {width}"
            else:
                base = f"{base} + {width}"
        return base + tail

    def _base(self, program: Polynomial) -> str | None:
        """The scalar part of the bound: an expression that the kernel computes before the loop."""
        candidates = [
            node
            for node in self.reading.expressions(program)
            if self._before(node)
            and not m.findall(node, m.Call(func=m.Attribute(attr=m.Name("arange"))))
        ]
        named = [n for n in candidates if not isinstance(n, cst.Name)]
        for node in [*named, *candidates]:
            return self.source.code(node.with_changes(lpar=(), rpar=()))
        return None

    def _before(self, node: cst.CSTNode) -> bool:
        """Whether an expression means the same just before the loop as where it stands."""
        owner: cst.CSTNode | None = node
        while owner is not None and self.source.parent(owner) is not self.reading.function.body:
            owner = self.source.parent(owner)
        loop: cst.CSTNode | None = self.node
        while loop is not None and self.source.parent(loop) is not self.reading.function.body:
            loop = self.source.parent(loop)
        body = list(self.reading.function.body.body)
        if owner is None or loop is None:
            return False
        places = [next(i for i, s in enumerate(body) if s is x) for x in (owner, loop)]
        if places[0] >= places[1]:
            return False
        between = {n for s in body[places[0] : places[1]] for n in assigned_names(s)}
        stays = names_read(node)
        own = assigned_names(owner) if isinstance(owner, cst.SimpleStatementLine) else set()
        return not (stays & (between - own)) and not isinstance(owner, cst.For)

    def _width(self, height: int) -> str | None:
        """The name of a tile's length."""
        wanted = Polynomial.of(span(0, height))
        for node in self.reading.expressions(wanted):
            if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("arange")))):
                assert isinstance(node, cst.Call)
                return self.source.code(node.args[1].value)
        return None

    def _by_reduction(self, value: Polynomial, edge: Edge, rows: list[Symbol]) -> str | None:
        """The bound as a reduction over the row indices, where no scalar is named."""
        if len(rows) != 1:
            return None
        start, end, _ = bounds(rows[0])
        program, _ = value.split(lambda s: s.kind == "program")
        sign = ONE if edge.side == "end" else -ONE
        index = program * sign * sign + Polynomial.of(span(start, end))
        for node in self.reading.expressions(index):
            if isinstance(node, cst.Name) and self._before(node):
                _, rest = value.split(lambda s: s.kind == "program")
                last = Polynomial.constant(end - 1 if edge.side == "end" else start)
                tail = self._tail(rest - last)
                which = "max" if edge.side == "end" else "min"
                return None if tail is None else f"tl.{which}({node.value}, axis=0){tail}"
        return None

    def _tail(self, number: Polynomial) -> str | None:
        """` + 1`, ` - WINDOW + 1`, or nothing."""
        if number == ZERO:
            return ""
        parameters = [p.name.value for p in self.reading.function.params.params]
        for name in parameters:
            value = self.reading.values_of_parameters.get(name)
            if not isinstance(value, Polynomial) or value.number in {0, 1}:
                continue
            for extra in (-1, 0, 1):
                constant = Polynomial.constant(extra)
                suffix = "" if extra == 0 else f" + {extra}" if extra > 0 else f" - {-extra}"
                if number == value + constant:
                    return f" + {name}{suffix}"
                if number == -value + constant:
                    return f" - {name}{suffix}"
        if number.number is not None:
            return f" + {number.number}" if number.number > 0 else f" - {-number.number}"
        return None


def _row(edge: Edge, symbol: Symbol) -> bool:
    """Whether a range runs along the rows: it moves with the program id."""
    factor = edge.rest.factor(symbol).number
    return factor == (1 if edge.side == "end" else -1)


def _factors(source: Source, node: cst.BaseExpression) -> list[str]:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        return [source.code(node.left), source.code(node.right)]
    return []
