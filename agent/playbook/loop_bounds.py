"""Tighter bounds of a loop, in the words of the kernel that it stands in."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.masked_edges import Edge, reach
from kopt.agent.playbook.polynomial import ONE, ZERO, Polynomial, Symbol, bounds, span
from kopt.agent.playbook.reading import Reading, assigned_names, free_name, read
from kopt.agent.playbook.source import Source, names_read


def tightened(text: str, kernel: KernelEvidence, edges: list[Edge]) -> str | None:
    """The file with tighter bounds of the loops; None where the source has no words for them."""
    source = Source(text)
    reading = read(source, kernel.kernel)
    if reading is None or len(reading.loops) != len(kernel.ttir.loops()):
        return None
    changes: list[tuple[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement]]] = []
    for ordinal in sorted({e.ordinal for e in edges}):
        node = reading.loops[ordinal]
        owner = _owner(source, reading, node)
        if owner is None:
            return None
        writer = _Bounds(source, owner, node)
        for edge in edges:
            if edge.ordinal == ordinal and not writer.tighten(edge):
                return None
        changes.append((node, cst.FlattenSentinel(writer.statements())))
    return source.replace(changes)


def _owner(source: Source, reading: Reading, node: cst.For) -> Reading | None:
    """The kernel with this loop, or a helper of it that nothing else calls."""
    function = source.enclosing(node)
    if function is reading.function or function is None:
        return reading
    found = reading.helpers.get(function.name.value, [])
    uses = m.findall(source.module, m.Name(function.name.value))
    return found[0] if len(found) == 1 and len(uses) == 2 else None


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
        index = program + Polynomial.of(span(start, end))
        given = [
            cst.Name(name)
            for name, held in self.reading.values_of_parameters.items()
            if held == index and name not in assigned_names(self.reading.function.body)
        ]
        for node in [*given, *self.reading.expressions(index)]:
            if isinstance(node, cst.Name) and (node in given or self._before(node)):
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
