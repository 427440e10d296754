"""One kernel that does what several did, with the data they handed over in registers."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.handovers import Chain, Handover, label
from kopt.agent.playbook.polynomial import Polynomial, argument
from kopt.agent.playbook.reading import Reading, assigned_names, read
from kopt.agent.playbook.signature import parameters
from kopt.agent.playbook.source import Source, fresh_name, names_read, target_name
from kopt.agent.playbook.stages import Access, Stage, same_argument


@dataclass
class FusedParameter:
    """A parameter of the fused kernel."""

    node: cst.Param
    value: cst.BaseExpression
    """What the host passes."""
    by_name: bool
    kind: int
    """0 for pointers, 1 for numbers, 2 for constexprs: their order in the signature."""


@dataclass
class FusedKernel:
    """One kernel in place of several: its statements and parameters so far."""

    source: Source
    chain: Chain
    dropped: set[int]
    """Buffers that nothing needs any more."""
    body: list[cst.BaseStatement] = field(default_factory=list)
    parameters: dict[str, FusedParameter] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)
    """Text of a value to the variable that holds it."""
    held: dict[int, str] = field(default_factory=dict)
    """Buffer to the variable with the program's part of it."""
    origins: dict[tuple[int, str], str] = field(default_factory=dict)
    """Stage and parameter to the parameter of the fused kernel."""

    # One stage -------------------------------------------------------------------------

    def add(self, stage: Stage) -> bool:
        """Take up the next launch; False where the source does not show what the TTIR does."""
        reading = read(self.source, stage.evidence.kernel)
        if reading is None or not isinstance(reading.function.body, cst.IndentedBlock):
            return False
        taken = [h for h in self.chain.handovers if h.reader is stage]
        given = {h.store.parameter: h for h in self.chain.handovers if h.writer is stage}
        names = self._parameters(stage, reading, taken, given)
        if names is None:
            return False
        loads: dict[int, Handover] = {}
        for handover in taken:
            calls = _calls(reading, "load", handover.loads[0])
            if not calls:
                return False
            loads.update({id(c): handover for c in calls})
        stores: dict[int, Handover] = {}
        for handover in given.values():
            calls = _calls(reading, "store", handover.store)
            if len(calls) != 1:
                return False
            stores[id(calls[0])] = handover
        for statement in reading.function.body.body:
            if m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])):
                continue
            if not self._statement(statement, names, loads, stores):
                return False
        reads = {n for s in self.body for n in names_read(s)}
        return not any(
            names.get(h.loads[0].parameter) is None and h.loads[0].parameter in reads
            and h.loads[0].parameter not in self.parameters
            for h in taken
        )  # fmt: skip

    def _parameters(
        self,
        stage: Stage,
        reading: Reading,
        taken: list[Handover],
        given: dict[str, Handover],
    ) -> dict[str, str] | None:
        """Add a stage's parameters; what each of its variables is called in the fused kernel."""
        names: dict[str, str] = {}
        gone = {h.loads[0].parameter for h in taken if h.buffer in self.dropped}
        gone |= {p for p, h in given.items() if h.buffer in self.dropped}
        number = self.chain.stages.index(stage)
        for node in parameters(reading.function):
            name = node.name.value
            arg = stage.site.arguments.get(name)
            if name in gone:
                continue
            if arg is None:
                if node.default is None:
                    return None
                value: cst.BaseExpression = node.default
            else:
                value = arg.value
            twin = self._twin(number, name)
            if twin is not None:
                names[name] = self.origins[number, name] = twin
                continue
            new = name if name not in self.used else fresh_name(name, self.source.module)
            if new in self.used:
                return None
            self.used.add(new)
            names[name] = self.origins[number, name] = new
            is_constexpr = "constexpr" in self.source.code(node)
            pointer = stage.pointer(name) is not None
            self.parameters[new] = FusedParameter(
                node.with_changes(name=cst.Name(new)),
                value,
                is_constexpr or (arg is not None and arg.keyword is not None),
                0 if pointer else 2 if is_constexpr else 1,
            )
        for name in sorted(assigned_names(reading.function.body)):
            if name in names:
                continue
            if name in self._handed_on(reading, taken):
                names[name] = name
                continue
            new = name if name not in self.used else fresh_name(name, self.source.module)
            number_of = 2
            while new in self.used:
                new, number_of = f"{name}_{number_of}", number_of + 1
            names[name] = new
        self.used |= set(names.values())
        return names

    def _handed_on(self, reading: Reading, taken: list[Handover]) -> set[str]:
        """Variables that hold a value at hand now and what this stage makes of its only load."""
        found = set()
        for handover in taken:
            calls = _calls(reading, "load", handover.loads[0])
            readers = [h for h in self.chain.handovers if h.buffer == handover.buffer]
            held = self.held.get(handover.buffer)
            for line in reading.source.inside(reading.function.body, cst.SimpleStatementLine):
                assert isinstance(line, cst.SimpleStatementLine)
                inside = [c for c in calls if c in m.findall(line, m.Call())]
                if inside and len(calls) == len(readers) == 1 and target_name(line) == held:
                    found.add(str(held))
        return found

    def _twin(self, number: int, name: str) -> str | None:
        """The fused kernel's parameter that always equals this one."""
        for earlier in range(number):
            twin = same_argument(self.chain.stages[earlier], self.chain.stages[number], name)
            if twin is not None and (earlier, twin) in self.origins:
                return self.origins[earlier, twin]
        return None

    # One statement ---------------------------------------------------------------------

    def _statement(
        self,
        statement: cst.BaseStatement,
        names: dict[str, str],
        loads: dict[int, Handover],
        stores: dict[int, Handover],
    ) -> bool:
        if m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
            assert isinstance(statement, cst.SimpleStatementLine)
            expression = statement.body[0]
            assert isinstance(expression, cst.Expr)
            if id(expression.value) in stores:
                assert isinstance(expression.value, cst.Call)
                return self._store(statement, expression.value, stores, names, loads)
        if any(id(c) in stores for c in m.findall(statement, m.Call())):
            return False
        whole = self._whole_load(statement, loads, names)
        if whole:
            return True
        target = target_name(statement)
        changed = self._renamed(statement, names, loads)
        assert isinstance(changed, cst.BaseStatement)
        if self._repeats(changed, target, names):
            return True
        for name in assigned_names(changed):
            self.used.add(name)
            self.known = {
                text: holder
                for text, holder in self.known.items()
                if holder != name and name not in _words(text)
            }
        if isinstance(changed, cst.SimpleStatementLine) and isinstance(changed.body[0], cst.Assign):
            text = self.source.module.code_for_node(changed.body[0].value)
            holder = target_name(changed)
            if holder is not None and holder not in _words(text):
                self.known[text] = holder
        self.body.append(changed)
        return True

    def _repeats(
        self, changed: cst.BaseStatement, target: str | None, names: dict[str, str]
    ) -> bool:
        """Whether a statement computes what a variable already holds; it is then left out."""
        if target is None or not isinstance(changed, cst.SimpleStatementLine):
            return False
        assign = changed.body[0]
        if not isinstance(assign, cst.Assign):
            return False
        holder = self.known.get(self.source.module.code_for_node(assign.value))
        if holder is None:
            return False
        names[target] = holder
        return True

    def _whole_load(
        self, statement: cst.BaseStatement, loads: dict[int, Handover], names: dict[str, str]
    ) -> bool:
        """Leave out `x = tl.load(…)` of a value that is at hand."""
        target = target_name(statement)
        if target is None or not isinstance(statement, cst.SimpleStatementLine):
            return False
        assign = statement.body[0]
        if not isinstance(assign, cst.Assign) or id(assign.value) not in loads:
            return False
        handover = loads[id(assign.value)]
        if handover.fill or handover.buffer not in self.held:
            return False
        names[target] = self.held[handover.buffer]
        return True

    def _store(
        self,
        statement: cst.SimpleStatementLine,
        call: cst.Call,
        stores: dict[int, Handover],
        names: dict[str, str],
        loads: dict[int, Handover],
    ) -> bool:
        """Keep the stored value in a variable, and the store only if it is needed."""
        handover = stores[id(call)]
        values = [a for a in call.args if a.keyword is None or a.keyword.value == "value"]
        if len(values) < 2:
            return False
        value = self._renamed(values[1].value, names, loads)
        assert isinstance(value, cst.BaseExpression)
        if isinstance(value, cst.Name):
            holder = value.value
        else:
            wanted = label(handover)
            holder = wanted if wanted not in self.used else fresh_name(wanted, self.source.module)
            self.used.add(holder)
            lines = [*statement.leading_lines]
            if handover.buffer in self.dropped and not self.held.keys() & self.dropped:
                lines.append(_comment("# Used from registers, so it never crosses memory."))
            elif handover.buffer not in self.dropped:
                lines.append(_comment("# Stored for later use, but used from registers here."))
            line = cst.SimpleStatementLine(
                [cst.Assign([cst.AssignTarget(cst.Name(holder))], value)], leading_lines=lines
            )
            self.body.append(line)
            statement = statement.with_changes(leading_lines=())
        self.held[handover.buffer] = holder
        if handover.buffer not in self.dropped:
            changed = self._renamed(statement, names, loads)
            assert isinstance(changed, cst.SimpleStatementLine)
            kept = changed.body[0]
            assert isinstance(kept, cst.Expr)
            assert isinstance(kept.value, cst.Call)
            position = next(i for i, a in enumerate(call.args) if a is values[1])
            args = list(kept.value.args)
            args[position] = args[position].with_changes(value=cst.Name(holder))
            self.body.append(
                changed.with_changes(
                    body=[kept.with_changes(value=kept.value.with_changes(args=args))]
                )
            )
        return True

    def _renamed(
        self, node: cst.CSTNode, names: dict[str, str], loads: dict[int, Handover]
    ) -> cst.CSTNode | cst.BaseStatement:
        writer = self

        class Rename(cst.CSTTransformer):
            skip: cst.CSTNode | None = None

            def visit_Attribute_attr(self, node: cst.Attribute) -> None:
                self.skip = node.attr

            def visit_Arg_keyword(self, node: cst.Arg) -> None:
                self.skip = node.keyword

            def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
                if original_node is self.skip:
                    return updated_node
                new = names.get(original_node.value, original_node.value)
                return updated_node.with_changes(value=new)

            def leave_Call(
                self, original_node: cst.Call, updated_node: cst.Call
            ) -> cst.BaseExpression:
                handover = loads.get(id(original_node))
                if handover is None or handover.buffer not in writer.held:
                    return updated_node
                return writer._taken(handover, updated_node)

        return node.visit(Rename())  # type: ignore[return-value]

    def _taken(self, handover: Handover, load: cst.Call) -> cst.BaseExpression:
        """The value in place of its load."""
        name = cst.Name(self.held[handover.buffer])
        if not handover.fill:
            return name
        mask = _argument(load, "mask", 1)
        other = _argument(load, "other", 2)
        if mask is None or other is None:
            return name
        function = load.func.with_changes(attr=cst.Name("where"))
        return cst.Call(function, [cst.Arg(mask), cst.Arg(name), cst.Arg(other)])


def _calls(reading: Reading, kind: str, access: Access) -> list[cst.Call]:
    """The `tl.load` or `tl.store` calls of an access in the source."""
    wanted = Polynomial.of(argument(access.parameter)) + access.offset
    found = []
    for node in reading.source.inside(reading.function.body, cst.Call):
        assert isinstance(node, cst.Call)
        named = m.matches(node.func, m.Attribute(attr=m.Name(kind)))
        if named and node.args and reading.value(node.args[0].value) == wanted:
            found.append(node)
    return found


def _argument(call: cst.Call, name: str, position: int) -> cst.BaseExpression | None:
    for index, arg in enumerate(call.args):
        if (arg.keyword is not None and arg.keyword.value == name) or (
            arg.keyword is None and index == position
        ):
            return arg.value
    return None


def _comment(text: str) -> cst.EmptyLine:
    return cst.EmptyLine(comment=cst.Comment(text))


def _words(text: str) -> set[str]:
    return names_read(cst.parse_expression(text.strip()))
