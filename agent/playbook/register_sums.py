"""A kernel that takes many programs' shares in a loop and adds atomically once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.contention import Addition, Contention
from kopt.agent.playbook.host import grid, relaunched
from kopt.agent.playbook.polynomial import Polynomial, argument, bounds, program
from kopt.agent.playbook.reading import Reading, assigned_names, free_name, is_jitted, read
from kopt.agent.playbook.signature import function_with, parameters, with_number
from kopt.agent.playbook.source import Site, Source, names_read, target_name

_DTYPES = {
    "f16": "float32",
    "bf16": "float32",
    "f32": "float32",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
}


def summed_in_registers(
    text: str, kernel: KernelEvidence, contention: Contention, programs: int
) -> str | None:
    """The file after it; None where the source does not show what the TTIR does."""
    source = Source(text)
    reading = read(source, kernel.kernel)
    sites = source.sites(kernel.kernel.name)
    if reading is None or len(sites) != 1:
        return None
    return _Writer(source, reading, sites[0], contention, programs).write()


@dataclass
class _Writer:
    """Writes the kernel with a loop over former programs, and its launch."""

    source: Source
    reading: Reading
    site: Site
    contention: Contention
    programs: int
    before: list[cst.BaseStatement] = field(default_factory=list)
    inside: list[cst.BaseStatement] = field(default_factory=list)
    after: list[cst.BaseStatement] = field(default_factory=list)
    totals: list[cst.BaseStatement] = field(default_factory=list)
    added: set[int] = field(default_factory=set)

    def write(self) -> str | None:
        """The whole file; None where the source does not show what the TTIR does."""
        function = self.reading.function
        components = grid(self.source, self.site)
        axis = self.contention.axis
        if components is None or len(components) <= axis or not is_jitted(function):
            return None
        variable = self._variable()
        if not self._sort(variable) or len(self.added) != len(self.contention.additions):
            return None
        bound, extra = self._bound(components[axis], variable)
        loop = self._loop(variable, bound)
        assert isinstance(function.body, cst.IndentedBlock)
        body = [*self.before, *self.totals, loop, *self.after]
        params, args = parameters(function), list(self.site.call.args)
        if extra is not None:
            params, args = with_number(params, args, extra, components[axis])
        changed = function_with(
            function.with_changes(body=function.body.with_changes(body=body)),
            params,
            self.source.module.code,
        )
        components[axis] = f"min({components[axis]}, {self.programs})"
        return self.source.replace(
            [
                (function, changed),
                *relaunched(self.source, self.site, components, args if extra else None),
            ]
        )

    # The loop variable -----------------------------------------------------------------

    def _program(self) -> Polynomial:
        return Polynomial.of(program(self.contention.axis))

    def _variable(self) -> str:
        """The name that the program id has, or a new one."""
        for node in self.reading.expressions(self._program()):
            if isinstance(node, cst.Name):
                return node.value
        return free_name("share", self.reading.function)

    def _bound(self, component: str, variable: str) -> tuple[str, str | None]:
        """The kernel's name for the former number of programs; a new parameter if it has none."""
        for name, arg in self.site.arguments.items():
            if self.source.code(arg.value) == component and not component.isdigit():
                return name, None
        known = names_read(self.reading.function)
        if component.isidentifier() and component not in known:
            return component, component
        name = free_name(
            "n_programs" if variable.startswith("pid") else f"n_{variable}s", self.reading.function
        )
        return name, name

    # Sorting statements ----------------------------------------------------------------

    def _sort(self, variable: str) -> bool:
        """Put each statement before, inside or after the loop."""
        body = self.reading.function.body
        assert isinstance(body, cst.IndentedBlock)
        varying = {variable}
        for statement in body.body:
            if m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])):
                self.before.append(statement)
                continue
            if self._names_program(statement):
                continue
            addition = self._addition(statement)
            if addition is not None:
                if not self._add(statement, addition, varying):
                    return False
                continue
            changed = self._with_variable(statement, variable)
            reads, sets = names_read(changed), assigned_names(changed)
            effect = m.findall(changed, m.Call(func=m.Attribute(attr=m.Name("store"))))
            if reads & varying or effect or sets & varying:
                varying |= sets
                self.inside.append(changed)
            else:
                self.before.append(changed)
        # What is set inside the loop must not be needed before it, nor carried around it.
        totals = {n for s in self.totals for n in assigned_names(s)}
        early = {n for s in [*self.before, *self.after] for n in names_read(s)}
        late = {n for s in self.inside for n in assigned_names(s)} - totals
        return not early & late and not self._carried(late)

    def _carried(self, sets: set[str]) -> bool:
        """Whether an iteration would read what the one before set."""
        done: set[str] = set()
        for statement in self.inside:
            plain = m.matches(statement, m.SimpleStatementLine(body=[m.Assign()]))
            own = assigned_names(statement)
            if plain:
                assert isinstance(statement, cst.SimpleStatementLine)
                assign = statement.body[0]
                assert isinstance(assign, cst.Assign)
                reads = names_read(assign.value)
            else:
                # A loop or an addition in place also reads what it sets, unless it is set before.
                reads = names_read(statement) - _own_locals(statement)
            if reads & sets - done:
                return True
            done |= own
        return False

    def _names_program(self, statement: cst.BaseStatement) -> bool:
        """`row = tl.program_id(0)`: the loop takes its place."""
        if not m.matches(statement, m.SimpleStatementLine(body=[m.Assign()])):
            return False
        name = target_name(statement)
        assert isinstance(statement, cst.SimpleStatementLine)
        assign = statement.body[0]
        assert isinstance(assign, cst.Assign)
        return name is not None and self.reading.value(assign.value) == self._program()

    def _with_variable(self, statement: cst.BaseStatement, variable: str) -> cst.BaseStatement:
        """With the program id written as the loop's variable."""
        calls = {
            id(n) for n in self.reading.expressions(self._program()) if not isinstance(n, cst.Name)
        }
        others = {
            n.value for n in self.reading.expressions(self._program()) if isinstance(n, cst.Name)
        }

        class Change(cst.CSTTransformer):
            def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
                if id(original_node) in calls:
                    return cst.Name(variable)
                if isinstance(original_node, cst.Name) and original_node.value in others:
                    return updated_node.with_changes(value=variable)
                return updated_node

        changed = statement.visit(Change())
        assert isinstance(changed, cst.BaseStatement)
        return changed

    def _addition(self, statement: cst.BaseStatement) -> Addition | None:
        if not m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
            return None
        assert isinstance(statement, cst.SimpleStatementLine)
        expression = statement.body[0]
        assert isinstance(expression, cst.Expr)
        call = expression.value
        if not m.matches(call, m.Call(func=m.Attribute(attr=m.Name("atomic_add")))):
            return None
        assert isinstance(call, cst.Call)
        for addition in self.contention.additions:
            address = addition.address
            wanted = Polynomial.of(argument(address.base)) + address.offset
            if call.args and self.reading.value(call.args[0].value) == wanted:
                return addition
        return None

    def _add(self, statement: cst.BaseStatement, addition: Addition, varying: set[str]) -> bool:
        """Replace an atomic addition: a total before the loop, a sum inside, one addition after."""
        assert isinstance(statement, cst.SimpleStatementLine)
        expression = statement.body[0]
        assert isinstance(expression, cst.Expr)
        call = expression.value
        assert isinstance(call, cst.Call)
        named = [a.keyword.value if a.keyword is not None else None for a in call.args]
        position = named.index("val") if "val" in named else 1 if len(named) > 1 else None
        start = self._zero(addition)
        if position is None or start is None:
            return False
        rest = [a for i, a in enumerate(call.args) if i != position]
        if any(names_read(a.value) & varying for a in rest):
            return False
        stem = re.sub(r"(_ptr|_pointer)$", "", addition.address.base)
        several = len(self.contention.additions) > 1
        name = free_name(f"{stem}_total" if several else "total", self.reading.function)
        self.totals.append(_statement(f"{name} = {start}"))
        value = call.args[position].value
        self.inside.append(
            cst.SimpleStatementLine(
                [cst.AugAssign(cst.Name(name), cst.AddAssign(), value)],
                leading_lines=statement.leading_lines,
            )
        )
        args = list(call.args)
        args[position] = args[position].with_changes(value=cst.Name(name))
        self.after.append(
            statement.with_changes(
                body=[expression.with_changes(value=call.with_changes(args=args))],
                leading_lines=(),
            )
        )
        self.added.add(id(addition))
        return True

    def _zero(self, addition: Addition) -> str | None:
        """Source code for a total of nothing."""
        dtype = _DTYPES.get(addition.dtype)
        if dtype is None:
            return None
        if not addition.shape:
            return "0.0" if dtype.startswith("float") else "0"
        lengths = self._lengths(addition)
        return f"tl.zeros([{', '.join(lengths)}], dtype=tl.{dtype})" if lengths else None

    def _lengths(self, addition: Addition) -> list[str] | None:
        """Source code for each dimension of the added tile: the end of the `tl.arange` along it."""
        names: list[str] = []
        for dimension, length in enumerate(addition.shape):
            spans = {
                s
                for s in addition.address.offset.symbols()
                if s.kind == "range" and bounds(s) == (0, length, dimension)
            }
            text = next(
                (
                    t
                    for call in self.source.inside(self.reading.function.body, cst.Call)
                    if isinstance(call, cst.Call) and spans
                    for t in [_range_end(self.source, self.reading, call, length)]
                    if t is not None
                ),
                None,
            )
            if text is None:
                return None
            names.append(text)
        return names

    def _loop(self, variable: str, bound: str) -> cst.BaseStatement:
        axis = self.contention.axis
        head = (
            "# Each program adds up many shares in registers, so that few programs queue for the\n"
            "# same addresses.\n"
            f"for {variable} in range(tl.program_id({axis}), {bound}, tl.num_programs({axis})):\n"
            "    pass\n"
        )
        module = cst.parse_module(head)
        loop = module.body[0]
        assert isinstance(loop, cst.For)
        inside = list(self.inside)
        block = cst.IndentedBlock(inside)
        return loop.with_changes(body=block, leading_lines=[*module.header, *loop.leading_lines])


def _range_end(source: Source, reading: Reading, call: cst.Call, length: int) -> str | None:
    """The end of `tl.arange(0, END)` if it has this length."""
    if not m.matches(call.func, m.Attribute(attr=m.Name("arange"))) or len(call.args) != 2:
        return None
    if reading.value(call.args[1].value) != Polynomial.constant(length):
        return None
    return source.code(call.args[1].value)


def _own_locals(statement: cst.BaseStatement) -> set[str]:
    """Variables that a compound statement plainly sets before anything in it can read them."""
    if not isinstance(statement, cst.For):
        return set()
    found = names_read(statement.target)
    seen: set[str] = set()
    for inner in statement.body.body:
        if m.matches(inner, m.SimpleStatementLine(body=[m.Assign()])):
            assert isinstance(inner, cst.SimpleStatementLine)
            assign = inner.body[0]
            assert isinstance(assign, cst.Assign)
            seen |= names_read(assign.value)
            found |= assigned_names(inner) - seen
        else:
            seen |= names_read(inner)
    return found


def _statement(text: str) -> cst.BaseStatement:
    return cst.parse_statement(text + "\n")
