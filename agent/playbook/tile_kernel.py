"""An elementwise kernel over two-dimensional tiles in place of one flat index."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.flat_index import FlatIndex
from kopt.agent.playbook.host import ceiling, on_host, relaunched
from kopt.agent.playbook.polynomial import Polynomial
from kopt.agent.playbook.reading import Reading, Value, free_name, is_jitted, read
from kopt.agent.playbook.signature import constexpr, function_with, keyword, parameters, with_number
from kopt.agent.playbook.source import Source, names_read
from kopt.agent.playbook.tidy import live


def tiled(text: str, kernel: KernelEvidence, flat: FlatIndex, edge: int) -> str | None:
    """The file after it; None where the source does not show what the TTIR does."""
    source = Source(text)
    reading = read(source, kernel.kernel)
    sites = source.sites(kernel.kernel.name)
    if reading is None or len(sites) != 1:
        return None
    return _Writer(source, reading, flat, edge).write()


class _Writer:
    """Writes the tiled kernel and its launch."""

    def __init__(self, source: Source, reading: Reading, flat: FlatIndex, edge: int) -> None:
        self.source = source
        self.reading = reading
        self.flat = flat
        self.edge = edge
        self.site = source.sites(reading.function.name.value)[0]
        self.names = self._names()
        exact = flat.total.over(flat.digits[-1].stride)
        # A number of its own, so that the compiler learns whether it is a multiple of 16.
        self.count_name = (
            free_name(f"n_{self.names[-1]}s", reading.function) if exact is None else None
        )

    def _names(self) -> list[str]:
        """A variable for each digit: the one that holds it, or a new one."""
        usual = ["col", "row", "plane", "volume"]
        found = []
        for position in range(len(self.flat.digits)):
            value = self.flat.digit(position)
            held = [n.value for n in self.reading.expressions(value) if isinstance(n, cst.Name)]
            wanted = usual[position] if position < len(usual) else f"digit_{position}"
            found.append(held[0] if held else free_name(wanted, self.reading.function))
        return found

    def write(self) -> str | None:
        """The whole file, or None where the source does not show what the TTIR does."""
        body = self._body()
        function = self.reading.function
        assert isinstance(function.body, cst.IndentedBlock)
        if body is None:
            return None
        body = live(body)
        first, other = self._block_names()
        known = parameters(function)
        used = {n for s in body for n in names_read(s)}
        before = names_read(function.body)
        gone = {p.name.value for p in known if p.name.value in before - used}
        kept = [p for p in known if p.name.value not in gone]
        grid = self._grid()
        if grid is None:
            return None
        names = [p.name.value for p in known]
        args = [
            arg
            for position, arg in enumerate(self.site.call.args)
            if (arg.keyword.value if arg.keyword else names[position]) not in gone
        ]
        if self.count_name is not None and self.count_name in used:
            kept, args = with_number(kept, args, self.count_name, str(self._host_count()))
        args += [keyword(name, str(self.edge)) for name in (other, first)]
        changed = function_with(
            function.with_changes(body=function.body.with_changes(body=body)),
            [*kept, constexpr(other, known), constexpr(first, known)],
            self.source.module.code,
        )
        return self.source.replace(
            [(function, changed), *relaunched(self.source, self.site, grid, args)]
        )

    def _block_names(self) -> tuple[str, str]:
        first, other = self.names[0], self.names[self.flat.other]
        return f"BLOCK_{first.upper()}", f"BLOCK_{other.upper()}"

    def _body(self) -> list[cst.BaseStatement] | None:
        function = self.reading.function
        assert isinstance(function.body, cst.IndentedBlock)
        values: dict[Polynomial, str] = {
            self.flat.digit(k): name for k, name in enumerate(self.names)
        }
        kept: list[cst.BaseStatement | None] = []
        index_name = self._index_name()
        for statement in function.body.body:
            if self._defines(statement, {*values, self.flat.index}):
                if None not in kept:
                    kept.append(None)
                continue
            changed = self._changed(statement, values, index_name)
            if changed is None:
                return None
            if None not in kept and changed is not statement:
                kept.append(None)
            kept.append(changed)
        if self.masks == 0:
            return None
        text = "".join(cst.Module([]).code_for_node(s) for s in kept if s is not None)
        used = names_read(cst.parse_module(text if text.strip() else "pass"))
        top = self._definitions(index_name if index_name in used else None)
        if top is None:
            return None
        place = kept.index(None)
        return [
            *(s for s in kept[:place] if s is not None),
            *top,
            *(s for s in kept[place + 1 :] if s is not None),
        ]

    masks = 0

    def _index_name(self) -> str:
        held = [
            n.value for n in self.reading.expressions(self.flat.index) if isinstance(n, cst.Name)
        ]
        return held[0] if held else free_name("index", self.reading.function)

    def _defines(self, statement: cst.BaseStatement, values: set[Polynomial]) -> bool:
        """Whether a statement does nothing but name the index or its digits."""
        if not m.matches(statement, m.SimpleStatementLine(body=[m.Assign()])):
            return False
        assert isinstance(statement, cst.SimpleStatementLine)
        assign = statement.body[0]
        assert isinstance(assign, cst.Assign)
        found: list[Value] = []
        for target in assign.targets:
            value = self.reading.value(target.target)
            found.extend(value if isinstance(value, tuple) else [value])
        return bool(found) and all(v in values for v in found)

    def _changed(
        self, statement: cst.BaseStatement, values: dict[Polynomial, str], index_name: str
    ) -> cst.BaseStatement | None:
        """A statement with masks and digits in the new form; None if a helper hides them."""
        writer = self
        hidden: list[cst.Call] = []

        class Change(cst.CSTTransformer):
            def on_visit(self, node: cst.CSTNode) -> bool:
                if isinstance(node, cst.Call) and writer._hides(node):
                    hidden.append(node)
                return not isinstance(node, cst.Comparison) or not writer._is_mask(node)

            def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
                if isinstance(original_node, cst.Comparison) and writer._is_mask(original_node):
                    writer.masks += 1
                    return writer._mask(original_node)
                if isinstance(original_node, cst.BaseExpression) and not isinstance(
                    original_node, cst.Name
                ):
                    value = writer.reading.value(original_node)
                    if isinstance(value, Polynomial):
                        if value in values:
                            return cst.Name(values[value])
                        if value == writer.flat.index:
                            return cst.Name(index_name)
                return updated_node

        changed = statement.visit(Change())
        assert isinstance(changed, cst.BaseStatement)
        if hidden:
            return None
        same = self.source.code(changed) == self.source.code(statement)
        return statement if same else changed

    def _hides(self, call: cst.Call) -> bool:
        """Whether a jitted function of this file is handed the index or a digit."""
        if not isinstance(call.func, cst.Name):
            return False
        function = self.source.functions().get(call.func.value)
        if function is None or not is_jitted(function):
            return False
        watched = {self.flat.index, *(self.flat.digit(k) for k in range(len(self.names)))}
        return any(self.reading.value(a.value) in watched for a in call.args)

    def _is_mask(self, node: cst.Comparison) -> bool:
        sides = [node.left, *(t.comparator for t in node.comparisons)]
        return any(self.reading.value(s) == self.flat.index for s in sides)

    def _mask(self, node: cst.Comparison) -> cst.BaseExpression:
        """The bounds of both tiled digits."""
        parts = []
        for position in sorted({self.flat.other, 0}, reverse=True):
            limit = self._limit(position)
            if limit is not None:
                parts.append(f"({self.names[position]} < {limit})")
        text = " & ".join(parts)
        parent = self.source.parent(node)
        alone = isinstance(parent, cst.Assign | cst.Arg)
        return cst.parse_expression(text if alone else f"({text})")

    def _definitions(self, index_name: str | None) -> list[cst.BaseStatement] | None:
        """The statements that compute the digits, and the index where it is still used."""
        top = len(self.flat.digits) - 1
        first, other = self._block_names()
        lines = []
        axes = self._axes()
        for position, block, shape in (
            (self.flat.other, other, "[:, None]"),
            (0, first, "[None, :]"),
        ):
            start = f"tl.program_id({axes[position]})"
            if self.flat.wide:
                start = f"{start}.to(tl.int64)"
            lines.append(
                f"{self.names[position]} = {start} * {block} + tl.arange(0, {block}){shape}"
            )
        rest = self._rest()
        left = "tl.program_id(2)"
        if len(rest) > 1:
            left = free_name("slab", self.reading.function)
            lines.append(f"{left} = tl.program_id(2)")
        for number, position in enumerate(rest):
            radix = self.flat.digits[position].radix
            last = number == len(rest) - 1
            if last:
                lines.append(f"{self.names[position]} = {left}")
            else:
                limit = self._text(radix) if radix is not None else None
                if limit is None:
                    return None
                lines.append(f"{self.names[position]} = {left} % {limit}")
                left = f"{left} // {_factor(limit)}"
        if index_name is not None:
            text = self.names[top]
            for position in range(top - 1, -1, -1):
                radix = self.flat.digits[position].radix
                limit = self._text(radix) if radix is not None else None
                if limit is None:
                    return None
                inner = text if text.isidentifier() else f"({text})"
                text = f"{inner} * {_factor(limit)} + {self.names[position]}"
            lines.append(f"{index_name} = {text}")
        if any(self._limit(position) is None for position in range(len(self.flat.digits))):
            return None
        lines[0] = (
            "# A tile is contiguous along both dimensions, so loads and stores use whole sectors.\n"
            + lines[0]
        )
        module = cst.parse_module("\n".join(lines) + "\n")
        body = list(module.body)
        head = body[0]
        assert isinstance(head, cst.SimpleStatementLine)
        body[0] = head.with_changes(leading_lines=[*module.header, *head.leading_lines])
        return [s for s in body if isinstance(s, cst.BaseStatement)]

    def _rest(self) -> list[int]:
        return [k for k in range(len(self.flat.digits)) if k not in {0, self.flat.other}]

    def _axes(self) -> dict[int, int]:
        """The grid axis of each tiled digit; the unbounded one gets the axis without a limit."""
        top = len(self.flat.digits) - 1
        return {self.flat.other: 0, 0: 1} if self.flat.other == top else {self.flat.other: 1, 0: 0}

    def _grid(self) -> list[str] | None:
        """Host expressions for the new grid."""
        limits = []
        for position in range(len(self.flat.digits)):
            limit = self._limit(position)
            if limit is None:
                return None
            text = (
                self._host_count()
                if limit == self.count_name
                else on_host(self.source, self.site, limit)
            )
            if text is None:
                return None
            limits.append(text)
        grid = ["", ""]
        for position, axis in self._axes().items():
            grid[axis] = ceiling(self.source, limits[position], str(self.edge))
        rest = [limits[k] for k in self._rest()]
        if rest:
            grid.append(rest[0] if len(rest) == 1 else " * ".join(_factor(r) for r in rest))
        return grid

    def _limit(self, position: int) -> str | None:
        """How many values a digit takes, as the kernel writes it."""
        radix = self.flat.digits[position].radix
        if radix is not None:
            return self._text(radix)
        exact = self.flat.total.over(self.flat.digits[-1].stride)
        return self._text(exact) if exact is not None else self.count_name

    def _host_count(self) -> str | None:
        """How many values the topmost digit takes, on the host."""
        total, row = self._text(self.flat.total), self._text(self.flat.digits[-1].stride)
        if total is None or row is None:
            return None
        one, two = (on_host(self.source, self.site, t) for t in (total, row))
        return f"{_factor(one)} // {_factor(two)}" if one and two else None

    def _text(self, value: Polynomial) -> str | None:
        """Kernel code for a polynomial of parameters: as the source has it, else written out."""
        parameters = {p.name.value for p in self.reading.function.params.params}
        for node in self.reading.expressions(value):
            if names_read(node) and names_read(node) <= parameters:
                return self.source.code(node)
        if value.has(lambda s: s.kind != "argument"):
            return None
        products = []
        for monomial, factor in value.terms:
            if not monomial or factor != 1:
                # A number here may be a constexpr that changes with the launch.
                return None
            products.append(" * ".join(s.name for s in monomial))
        return " + ".join(products) if products else None


def _factor(text: str) -> str:
    """An expression that can stand in a product."""
    node = cst.parse_expression(text)
    return f"({text})" if isinstance(node, cst.BinaryOperation) and not node.lpar else text
