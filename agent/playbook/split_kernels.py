"""Two kernels in place of one with a long loop: parts of the loop, and what combines them."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.host import grid, on_host
from kopt.agent.playbook.reading import (
    Reading,
    assigned_names,
    free_name,
    is_jitted,
    language_names,
    read,
)
from kopt.agent.playbook.signature import call_with, function_with, keyword, parameters
from kopt.agent.playbook.source import Site, Source, names_read, target_name
from kopt.agent.playbook.split_loop import TORCH_NAMES, Combine, Reduction
from kopt.agent.playbook.stages import launch_line
from kopt.agent.playbook.tidy import live
from kopt.gpu.trace import PointerArg


@dataclass(frozen=True)
class _Total:
    """A variable that accumulates over the loop."""

    name: str
    combine: Combine
    dtype: str
    shape: tuple[str, ...]
    """Source code of each dimension."""


def in_parts(text: str, kernel: KernelEvidence, reduction: Reduction, parts: int) -> str | None:
    """The file after it; None where the source does not show what the TTIR does."""
    source = Source(text)
    reading = read(source, kernel.kernel)
    sites = source.sites(kernel.kernel.name)
    if reading is None or len(sites) != 1 or len(reading.loops) != 1:
        return None
    if not is_jitted(reading.function):
        return None
    return _Writer(source, reading, sites[0], kernel, reduction, parts).write()


class _Writer:
    """Writes the two kernels and their launches."""

    def __init__(
        self,
        source: Source,
        reading: Reading,
        site: Site,
        kernel: KernelEvidence,
        reduction: Reduction,
        parts: int,
    ) -> None:
        self.source = source
        self.reading = reading
        self.site = site
        self.kernel = kernel
        self.reduction = reduction
        self.parts = parts
        self.loop = reading.loops[0]
        language = sorted(language_names(source))
        self.tl = language[0] if language else "tl"

    def write(self) -> str | None:
        """The whole file; None where the source does not show what the TTIR does."""
        function = self.reading.function
        body = function.body
        components = grid(self.source, self.site)
        if not isinstance(body, cst.IndentedBlock) or self.loop not in body.body:
            return None
        totals = self._totals()
        if totals is None or components is None or len(components) > 2:
            return None
        axis = len(components)
        position = next(i for i, s in enumerate(body.body) if s is self.loop)
        before, after = list(body.body[:position]), list(body.body[position + 1 :])
        names = {t.name: free_name(f"{t.name}_parts_ptr", function) for t in totals}
        part = free_name("part", function)
        place = free_name("slot", function)
        stem = function.name.value.removesuffix("_kernel")
        suffix = "_kernel" if function.name.value.endswith("_kernel") else ""
        stored = self._stores(totals, names, part, place, axis)
        first = function.with_changes(
            name=cst.Name(free_name(f"{stem}_parts{suffix}", self.source.module)),
            body=body.with_changes(
                body=[*_part_of(before), *self._split_loop(part, axis), *stored]
            ),
        )
        second = function.with_changes(
            name=cst.Name(free_name(f"{stem}_combine{suffix}", self.source.module)),
            leading_lines=[cst.EmptyLine(), cst.EmptyLine()],
            body=body.with_changes(
                body=[*before, *self._combining(totals, names, part, place, axis), *after]
            ),
        )
        text = self.source.module.code
        count = free_name("n_parts", function)
        first, used_first = self._with_parameters(first, [*names.values()], [], text)
        second, used_second = self._with_parameters(second, [*names.values()], [count], text)
        launches = self._launches(
            totals, names, components, (first, used_first), (second, used_second), count
        )
        line = launch_line(self.source, self.site)
        if launches is None or line is None:
            return None
        return self.source.replace(
            [
                (function, cst.FlattenSentinel([first, second])),
                (line, cst.FlattenSentinel(launches)),
            ]
        )

    # Accumulators ----------------------------------------------------------------------

    def _totals(self) -> list[_Total] | None:
        """The loop's accumulators as the source has them, in the order of their first setting."""
        body = self.reading.function.body
        assert isinstance(body, cst.IndentedBlock)
        inner = assigned_names(self.loop)
        starts = {
            target_name(s): s
            for s in body.body[: list(body.body).index(self.loop)]
            if target_name(s) in inner
        }
        found = []
        for name, start in starts.items():
            if name is None or not self._is_read_later(name):
                continue
            combine = self._combine(name)
            shape = self._shape(start)
            if combine is None or shape is None:
                return None
            found.append((name, combine, shape))
        if sorted(c for _, c, _ in found) != sorted(self.reduction.combines):
            return None
        if len({*zip(self.reduction.combines, self.reduction.dtypes, strict=True)}) != len(
            set(self.reduction.combines)
        ):
            return None
        dtypes = dict(zip(self.reduction.combines, self.reduction.dtypes, strict=True))
        return [_Total(n, c, dtypes[c], s) for n, c, s in found]

    def _is_read_later(self, name: str) -> bool:
        body = self.reading.function.body
        assert isinstance(body, cst.IndentedBlock)
        later = body.body[list(body.body).index(self.loop) + 1 :]
        return any(name in names_read(s) for s in [*later, self.loop])

    def _combine(self, name: str) -> Combine | None:
        """How the loop's source adds to a variable, which it must set once."""
        found: list[Combine] = []
        assert isinstance(self.loop.body, cst.IndentedBlock)
        for statement in self.loop.body.body:
            if name not in assigned_names(statement):
                continue
            if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
                return None
            small = statement.body[0]
            if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
                found.append("add")
            elif isinstance(small, cst.Assign) and name in names_read(small.value):
                value = small.value
                if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
                    found.append("add")
                elif isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
                    called = value.func.attr.value
                    if called in {"maximum", "minimum"}:
                        found.append("maximum" if called == "maximum" else "minimum")
                    elif called == "dot":
                        found.append("add")
        return found[0] if len(found) == 1 else None

    def _shape(self, start: cst.BaseStatement) -> tuple[str, ...] | None:
        """Source code of the shape that an accumulator starts with."""
        assert isinstance(start, cst.SimpleStatementLine)
        assign = start.body[0]
        if not isinstance(assign, cst.Assign):
            return None
        value = assign.value
        if m.matches(value, m.Call(func=m.Attribute(attr=m.Name("zeros") | m.Name("full")))):
            assert isinstance(value, cst.Call)
            first = value.args[0].value
            if isinstance(first, cst.List | cst.Tuple):
                return tuple(self.source.code(e.value) for e in first.elements)
            return None
        number = value.expression if isinstance(value, cst.UnaryOperation) else value
        plain = isinstance(number, cst.Integer | cst.Float) or m.matches(
            number, m.Call(func=m.Name("float"))
        )
        return () if plain else None

    # The two kernels -------------------------------------------------------------------

    def _split_loop(self, part: str, axis: int) -> list[cst.BaseStatement]:
        assert isinstance(self.loop.iter, cst.Call)
        args = [self.source.code(a.value) for a in self.loop.iter.args if a.keyword is None]
        low, high, step = {
            1: ("0", args[0], "1"),
            2: (args[0], args[-1], "1"),
        }.get(len(args), (args[0], args[1 % len(args)], args[-1]))
        share = part if step == "1" else f"{part} * {_factor(step)}"
        start = share if low == "0" else f"{low} + {share}"
        count = f"{self.tl}.num_programs({axis})"
        stride = count if step == "1" else f"{count} * {_factor(step)}"
        keywords = [a for a in self.loop.iter.args if a.keyword is not None]
        new = [
            cst.Arg(
                cst.parse_expression(text),
                comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
            )
            for text in (start, high, stride)
        ]
        iterator = self.loop.iter.with_changes(args=_closed([*new, *keywords]))
        head = _lines(
            "# The loop's iterations are dealt out to the programs along this axis.\n"
            f"{part} = {self.tl}.program_id({axis})\n"
        )
        return [*head, self.loop.with_changes(iter=iterator)]

    def _slot(self, part: str, count: str, axis: int) -> str:
        """Source code for the number of a part among those of all programs."""
        tl = self.tl
        program = f"{tl}.program_id(0)"
        if axis == 2:
            program = f"({tl}.program_id(1) * {tl}.num_programs(0) + {tl}.program_id(0))"
        return f"{program} * {count} + {part}"

    def _stores(
        self, totals: list[_Total], names: dict[str, str], part: str, place: str, axis: int
    ) -> list[cst.BaseStatement]:
        text = f"{place} = {self._slot(part, f'{self.tl}.num_programs({axis})', axis)}\n"
        for total in totals:
            text += f"{self.tl}.store({self._address(total, names, place)}, {total.name})\n"
        return _lines(text)

    def _combining(
        self, totals: list[_Total], names: dict[str, str], part: str, place: str, axis: int
    ) -> list[cst.BaseStatement]:
        count = free_name("n_parts", self.reading.function)
        slot = self._slot(part, count, axis)
        text = f"for {part} in range({count}):\n    {place} = {slot}\n"
        for total in totals:
            loaded = f"{self.tl}.load({self._address(total, names, place)})"
            if total.combine == "add":
                text += f"    {total.name} += {loaded}\n"
            else:
                text += f"    {total.name} = {self.tl}.{total.combine}({total.name}, {loaded})\n"
        return _lines(text)

    def _address(self, total: _Total, names: dict[str, str], place: str) -> str:
        if not total.shape:
            return f"{names[total.name]} + {place}"
        size = " * ".join(_factor(s) for s in total.shape)
        return f"{names[total.name]} + {place} * {size} + {_offsets(self.tl, total.shape)}"

    def _with_parameters(
        self, kernel: cst.FunctionDef, pointers: list[str], numbers: list[str], text: str
    ) -> tuple[cst.FunctionDef, list[str]]:
        """A kernel with the parameters that it still needs and new ones; their names."""
        assert isinstance(kernel.body, cst.IndentedBlock)
        kernel = kernel.with_changes(body=kernel.body.with_changes(body=live(kernel.body.body)))
        used = names_read(kernel.body)
        known = [p for p in parameters(self.reading.function) if p.name.value in used]
        is_pointer = {a.name for a in self.kernel.event.args if isinstance(a, PointerArg)}
        split = next((i for i, p in enumerate(known) if p.name.value not in is_pointer), len(known))
        tail = next(
            (i for i, p in enumerate(known) if p.annotation is not None or p.default is not None),
            len(known),
        )
        params = [
            *known[:split],
            *(cst.Param(cst.Name(n)) for n in pointers),
            *known[split:tail],
            *(cst.Param(cst.Name(n)) for n in numbers),
            *known[tail:],
        ]
        fresh = kernel.with_changes(whitespace_before_params=cst.SimpleWhitespace(""))
        return function_with(fresh, params, text), [p.name.value for p in params]

    # The host --------------------------------------------------------------------------

    def _launches(
        self,
        totals: list[_Total],
        names: dict[str, str],
        components: list[str],
        first: tuple[cst.FunctionDef, list[str]],
        second: tuple[cst.FunctionDef, list[str]],
        count: str,
    ) -> list[cst.BaseStatement] | None:
        owner = self.source.functions().get(self.site.function)
        line = launch_line(self.source, self.site)
        tensor = self._tensor()
        if owner is None or line is None or tensor is None:
            return None
        lines: list[cst.BaseStatement] = []
        buffers: dict[str, str] = {}
        for total in totals:
            dimensions = [on_host(self.source, self.site, s) for s in total.shape]
            if None in dimensions:
                return None
            name = free_name(f"{total.name}_parts", owner)
            buffers[names[total.name]] = name
            shape = ", ".join([*components, str(self.parts), *(str(d) for d in dimensions)])
            lines += _lines(
                f"{name} = torch.empty(({shape}), device={tensor}.device,"
                f" dtype=torch.{TORCH_NAMES[total.dtype]})\n"
            )
        grids = [f"({', '.join([*components, str(self.parts)])})", None]
        for (kernel, wanted), new_grid in zip((first, second), grids, strict=True):
            call = self._call(kernel, wanted, buffers, count, new_grid)
            lines.append(line.with_changes(body=[cst.Expr(call)], leading_lines=()))
        head = lines[0]
        assert isinstance(head, cst.SimpleStatementLine)
        lines[0] = head.with_changes(leading_lines=line.leading_lines)
        return lines

    def _call(
        self,
        kernel: cst.FunctionDef,
        wanted: list[str],
        buffers: dict[str, str],
        count: str,
        new_grid: str | None,
    ) -> cst.Call:
        old = self.site.call
        assert isinstance(old.func, cst.Subscript)
        args = []
        named = False
        for name in wanted:
            if name in buffers:
                value: cst.BaseExpression = cst.Name(buffers[name])
                by_name = False
            elif name == count:
                value, by_name = cst.Integer(str(self.parts)), False
            elif name in self.site.arguments:
                arg = self.site.arguments[name]
                value, by_name = arg.value, arg.keyword is not None
            else:
                continue
            named = named or by_name
            args.append(keyword(name, value) if named else cst.Arg(value))
        for extra in ("num_warps", "num_stages"):
            if extra in self.site.arguments:
                args.append(keyword(extra, self.site.arguments[extra].value))
        subscript = old.func.with_changes(value=kernel.name)
        if new_grid is not None:
            index = cst.SubscriptElement(cst.Index(cst.parse_expression(new_grid)))
            subscript = subscript.with_changes(slice=[index])
        plain = old.with_changes(
            func=subscript, args=(), whitespace_before_args=cst.SimpleWhitespace("")
        )
        return call_with(plain, args, self.source.module.code, self.source.module.default_indent)

    def _tensor(self) -> str | None:
        """Host code for some tensor of the launch."""
        for arg in self.kernel.event.args:
            if isinstance(arg, PointerArg) and arg.name in self.site.arguments:
                value = self.site.arguments[arg.name].value
                if isinstance(value, cst.Name):
                    return value.value
        return None


def _offsets(tl: str, shape: tuple[str, ...]) -> str:
    """Source code for the offsets within a tile."""
    if len(shape) == 1:
        return f"{tl}.arange(0, {shape[0]})"
    if len(shape) == 2:
        return (
            f"{tl}.arange(0, {shape[0]})[:, None] * {_factor(shape[1])}"
            f" + {tl}.arange(0, {shape[1]})[None, :]"
        )
    return ""


def _part_of(before: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """The statements before the loop with a docstring, if there is one, that fits a part."""
    documented = m.matches(before[0], m.SimpleStatementLine(body=[m.Expr(m.SimpleString())]))
    if not documented:
        return before
    return [*_lines('"""Accumulate one part of each reduction."""\n'), *before[1:]]


def _closed(args: list[cst.Arg]) -> list[cst.Arg]:
    return [*args[:-1], args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _factor(text: str) -> str:
    node = cst.parse_expression(text)
    return f"({text})" if isinstance(node, cst.BinaryOperation) and not node.lpar else text


def _lines(text: str) -> list[cst.BaseStatement]:
    module = cst.parse_module(text)
    body: list[cst.BaseStatement] = [*module.body]
    head = body[0]
    if module.header and isinstance(head, cst.SimpleStatementLine | cst.For):
        body[0] = head.with_changes(leading_lines=[*module.header, *head.leading_lines])
    return body
