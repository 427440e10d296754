"""Putting jitted helper functions back into the kernel that calls them.

A rewrite that changes how tiles are indexed has to change code that may be spread over helpers,
which other kernels may share. It works on the kernel with its helpers written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.reading import assigned_names, is_jitted
from kopt.agent.playbook.source import Source, names_read

Node = TypeVar("Node", bound=cst.CSTNode)

_MOST = 40
"""Calls written out in one kernel."""


def inlined(text: str, kernel: str) -> str:
    """The file with every call of a simple jitted helper in a kernel written out.

    A helper is simple if its only `return` is its last statement. Helpers that nothing calls any
    more are removed, and `a, b = x, y` becomes two assignments.
    """
    text = _untupled(text, kernel)
    for _ in range(_MOST):
        source = Source(text)
        function = source.functions().get(kernel)
        if function is None:
            return text
        found = _next_call(source, function)
        if found is None:
            return text
        text = _without_unused(found.written_out(), found.helper.name.value)
    return text


def _untupled(text: str, kernel: str) -> str:
    """With every assignment of several values at once taken apart."""
    source = Source(text)
    function = source.functions().get(kernel)
    if function is None:
        return text
    changes: list[tuple[cst.CSTNode, cst.FlattenSentinel[cst.BaseStatement]]] = []
    for line in source.inside(function.body, cst.SimpleStatementLine):
        assert isinstance(line, cst.SimpleStatementLine)
        small = line.body[0]
        if len(line.body) != 1 or not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        target = small.targets[0].target
        pairs = _elementwise(target, small.value) if isinstance(target, cst.Tuple) else []
        if pairs:
            lines = [_assignment(name, value) for name, value in pairs]
            head = lines[0]
            assert isinstance(head, cst.SimpleStatementLine)
            lines[0] = head.with_changes(leading_lines=line.leading_lines)
            changes.append((line, cst.FlattenSentinel(lines)))
    return source.replace(changes) if changes else text


def _next_call(source: Source, function: cst.FunctionDef) -> _Inlining | None:
    functions = source.functions()
    for line in source.inside(function.body, cst.SimpleStatementLine):
        assert isinstance(line, cst.SimpleStatementLine)
        if len(line.body) != 1:
            continue
        for call in source.inside(line, cst.Call):
            assert isinstance(call, cst.Call)
            if not isinstance(call.func, cst.Name):
                continue
            helper = functions.get(call.func.value)
            if helper is not None and is_jitted(helper) and helper is not function:
                simple = _simple(helper)
                bound = _bound(helper, call)
                if simple is not None and bound is not None:
                    return _Inlining(source, function, line, call, helper, *simple, bound)
    return None


def _simple(
    helper: cst.FunctionDef,
) -> tuple[list[cst.BaseStatement], cst.BaseExpression | None] | None:
    """The statements of a helper without its docstring, and what it returns."""
    if not isinstance(helper.body, cst.IndentedBlock):
        return None
    body = [s for s in helper.body.body if not _is_docstring(s)]
    returns = m.findall(helper.body, m.Return())
    if not returns:
        return body, None
    last = body[-1]
    if len(returns) != 1 or not m.matches(last, m.SimpleStatementLine(body=[m.Return()])):
        return None
    returned = returns[0]
    assert isinstance(returned, cst.Return)
    return body[:-1], returned.value


def _is_docstring(statement: cst.BaseStatement) -> bool:
    return m.matches(statement, m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString())]))


def _bound(helper: cst.FunctionDef, call: cst.Call) -> dict[str, cst.BaseExpression] | None:
    """The argument of each parameter."""
    if any(a.star for a in call.args):
        return None
    parameters = [*helper.params.params, *helper.params.kwonly_params]
    names = [p.name.value for p in parameters]
    bound: dict[str, cst.BaseExpression] = {}
    for position, arg in enumerate(call.args):
        if arg.keyword is None and position >= len(names):
            return None
        bound[arg.keyword.value if arg.keyword else names[position]] = arg.value
    for parameter in parameters:
        if parameter.name.value not in bound and parameter.default is not None:
            bound[parameter.name.value] = parameter.default
    return bound if set(bound) == set(names) else None


@dataclass
class _Inlining:
    """One call that is to be written out."""

    source: Source
    function: cst.FunctionDef
    line: cst.SimpleStatementLine
    call: cst.Call
    helper: cst.FunctionDef
    body: list[cst.BaseStatement]
    returned: cst.BaseExpression | None
    bound: dict[str, cst.BaseExpression]

    def written_out(self) -> str:
        """The file after it."""
        names = self._names()
        before: list[cst.BaseStatement] = []
        values: dict[str, cst.BaseExpression] = {}
        assigned = {n for s in self.body for n in assigned_names(s)}
        uses = [n for s in [*self.body, self.returned] if s is not None for n in _reads(s)]
        for name, argument in self.bound.items():
            if name in self._taken_over(assigned):
                assert isinstance(argument, cst.Name)
                names[name] = argument.value
                continue
            plain = isinstance(argument, cst.Name | cst.Integer | cst.Float | cst.Attribute)
            if name not in assigned and (plain or (uses.count(name) <= 1 and _is_pure(argument))):
                values[name] = argument
            else:
                before.append(_assignment(names.get(name, name), argument))
        statements = [*before, *(_renamed(s, names, values) for s in self.body)]
        written = [*statements, *self._last(names, values)]
        if written and isinstance(written[0], cst.SimpleStatementLine | cst.For):
            lines = [*self.line.leading_lines, *written[0].leading_lines]
            written[0] = written[0].with_changes(leading_lines=lines)
        return self.source.replace([(self.line, cst.FlattenSentinel(written))])

    def _taken_over(self, assigned: set[str]) -> set[str]:
        """Parameters that the helper changes and returns to the variable that it was given."""
        small = self.line.body[0]
        if not isinstance(small, cst.Assign) or small.value is not self.call:
            return set()
        back = {v: n for n, v in _elementwise_names(small.targets[0].target, self.returned)}
        return {
            name
            for name, argument in self.bound.items()
            if name in assigned
            and isinstance(argument, cst.Name)
            and back.get(name) == argument.value
            and all(
                argument.value not in names_read(other)
                for key, other in self.bound.items()
                if key != name
            )
        }

    def _last(
        self, names: dict[str, str], values: dict[str, cst.BaseExpression]
    ) -> list[cst.BaseStatement]:
        """What remains of the statement that called."""
        small = self.line.body[0]
        bare = self.line.with_changes(leading_lines=())
        if self.returned is None:
            return []
        result = _renamed(self.returned, names, values)
        assert isinstance(result, cst.BaseExpression)
        if isinstance(small, cst.Assign) and small.value is self.call and len(small.targets) == 1:
            target = small.targets[0].target
            if self.source.code(target) == cst.Module([]).code_for_node(result).strip("()"):
                return []
            pair = _elementwise(target, result)
            if pair:
                return [
                    _assignment(name, value)
                    for name, value in pair
                    if not (isinstance(value, cst.Name) and value.value == name)
                ]
        if isinstance(small, cst.Expr) and small.value is self.call:
            return []
        simple = isinstance(
            result, cst.Name | cst.Call | cst.Subscript | cst.Attribute | cst.Integer | cst.Tuple
        )
        if not simple and not (isinstance(small, cst.Assign) and small.value is self.call):
            result = result.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

        class Replace(cst.CSTTransformer):
            def leave_Call(
                self, original_node: cst.Call, updated_node: cst.Call
            ) -> cst.BaseExpression:
                return result if original_node is call else updated_node

        call = self.call
        new = bare.visit(Replace())
        assert isinstance(new, cst.SimpleStatementLine)
        return [new]

    def _names(self) -> dict[str, str]:
        """New names for the helper's variables that mean something else in the kernel."""
        used = names_read(self.function)
        local = {n for s in self.body for n in assigned_names(s)} | set(self.bound)
        names: dict[str, str] = {}
        small = self.line.body[0]
        wanted = {}
        if isinstance(small, cst.Assign) and small.value is self.call and len(small.targets) == 1:
            free = set()
            for argument in self.bound.values():
                free |= names_read(argument)
            for name, value in _elementwise_names(small.targets[0].target, self.returned):
                if value in local and value not in self.bound and name not in free:
                    wanted[value] = name
        for name in sorted(local):
            if name in wanted:
                names[name] = wanted[name]
                continue
            new, number = name, 2
            while new in used and (name not in self.bound or name in assigned_names(self.function)):
                new, number = f"{name}_{number}", number + 1
            names[name] = new
            used.add(new)
        return names


def _reads(node: cst.CSTNode) -> list[str]:
    return [n.value for n in m.findall(node, m.Name()) if isinstance(n, cst.Name)]


def _is_pure(node: cst.BaseExpression) -> bool:
    return not m.findall(node, m.Call(func=m.Attribute(attr=m.Name("load"))))


def _elementwise_names(
    target: cst.BaseExpression, returned: cst.BaseExpression | None
) -> list[tuple[str, str]]:
    if returned is None:
        return []
    return [
        (name, value.value)
        for name, value in _elementwise(target, returned)
        if isinstance(value, cst.Name)
    ]


def _elementwise(
    target: cst.BaseExpression, result: cst.BaseExpression
) -> list[tuple[str, cst.BaseExpression]]:
    """Names and their values, where no value reads a name that an earlier one sets."""
    if isinstance(target, cst.Name):
        return [(target.value, result)]
    if not isinstance(target, cst.Tuple) or not isinstance(result, cst.Tuple):
        return []
    pairs = []
    done: set[str] = set()
    for left, right in zip(target.elements, result.elements, strict=False):
        if not isinstance(left.value, cst.Name) or names_read(right.value) & done:
            return []
        pairs.append((left.value.value, right.value))
        done.add(left.value.value)
    return pairs


def _assignment(name: str, value: cst.BaseExpression) -> cst.BaseStatement:
    return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])


def _renamed(node: Node, names: dict[str, str], values: dict[str, cst.BaseExpression]) -> Node:
    """With variables renamed, and parameters replaced by what they stand for."""

    class Rename(cst.CSTTransformer):
        def visit_Attribute_attr(self, node: cst.Attribute) -> None:
            self.skip: cst.CSTNode | None = node.attr

        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            if original_node is getattr(self, "skip", None):
                return updated_node
            if original_node.value in values:
                return _grouped(values[original_node.value])
            return updated_node.with_changes(
                value=names.get(original_node.value, original_node.value)
            )

        def visit_Arg_keyword(self, node: cst.Arg) -> None:
            self.skip = node.keyword

        def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
            if isinstance(original_node.value, cst.Name):
                return updated_node.with_changes(value=_bare(updated_node.value))
            return updated_node

        def leave_ComparisonTarget(
            self, original_node: cst.ComparisonTarget, updated_node: cst.ComparisonTarget
        ) -> cst.ComparisonTarget:
            if isinstance(original_node.comparator, cst.Name):
                return updated_node.with_changes(comparator=_bare(updated_node.comparator))
            return updated_node

    new = node.visit(Rename())
    assert isinstance(new, cst.CSTNode)
    return new


def _bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """An arithmetic expression that stands alone."""
    if isinstance(node, cst.BinaryOperation) and node.lpar:
        return node.with_changes(lpar=(), rpar=())
    return node


def _grouped(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression that can stand inside another."""
    if node.lpar or not isinstance(
        node, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison | cst.BooleanOperation
    ):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _without_unused(text: str, helper: str) -> str:
    source = Source(text)
    function = source.functions()[helper]
    if sum(n == helper for n in _reads(source.module)) > 1:
        return text
    return source.replace([(function, cst.RemoveFromParent())])


__all__: Sequence[str] = ("inlined",)
