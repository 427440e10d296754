"""Finding and changing kernels and their launches in a file, with formatting kept (libcst)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider


@dataclass(frozen=True)
class Site:
    """One launch `kernel[grid](…)` in the source."""

    call: cst.Call
    arguments: dict[str, cst.Arg]
    """By the kernel's parameter name; `num_warps` and `num_stages` too where they are given."""
    function: str
    """Name of the enclosing function."""


class Source:
    """A parsed file. Nodes found here belong to `module` and can be replaced with `replace`."""

    def __init__(self, text: str) -> None:
        self._wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = self._wrapper.module
        self._positions = self._wrapper.resolve(PositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)

    # Reading ---------------------------------------------------------------------------

    def line(self, node: cst.CSTNode) -> int:
        """The first line of a node."""
        return self._positions[node].start.line

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that holds this one."""
        return self._parents.get(node)

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node."""
        return self.module.code_for_node(node).strip()

    def functions(self) -> dict[str, cst.FunctionDef]:
        """Module-level functions by name."""
        return {
            node.name.value: node for node in self.module.body if isinstance(node, cst.FunctionDef)
        }

    def enclosing(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function that holds a node."""
        current = self.parent(node)
        while current is not None and not isinstance(current, cst.FunctionDef):
            current = self.parent(current)
        return current

    def inside(self, root: cst.CSTNode, kind: type[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        """Nodes of a kind at and below a node, in source order."""
        if isinstance(root, kind):
            yield root
        for child in root.children:
            yield from self.inside(child, kind)

    def loop(self, line: int) -> cst.For | None:
        """The `for` statement that starts at a line."""
        for node in self.inside(self.module, cst.For):
            if self.line(node) == line:
                assert isinstance(node, cst.For)
                return node
        return None

    def sites(self, kernel: str) -> list[Site]:
        """The launches of a kernel, by the name of its function."""
        definition = self.functions().get(kernel)
        if definition is None:
            return []
        names = [p.name.value for p in definition.params.params]
        found = []
        for node in self.inside(self.module, cst.Call):
            assert isinstance(node, cst.Call)
            if not m.matches(node.func, m.Subscript(value=m.Name(kernel))):
                continue
            if any(a.star for a in node.args):
                continue
            arguments: dict[str, cst.Arg] = {}
            for position, arg in enumerate(node.args):
                if arg.keyword is not None:
                    arguments[arg.keyword.value] = arg
                elif position < len(names):
                    arguments[names[position]] = arg
            owner = self.enclosing(node)
            found.append(Site(node, arguments, owner.name.value if owner else ""))
        return found

    def literal(self, site: Site, name: str) -> tuple[int, cst.CSTNode] | None:
        """The integer that an argument of a launch is, and the node that holds it: the argument
        itself, or the value assigned to the variable that is passed."""
        arg = site.arguments.get(name)
        if arg is None:
            return None
        value = _integer(arg.value)
        if value is not None:
            return value, arg.value
        if isinstance(arg.value, cst.Name):
            assigned = self.assigned(arg.value.value, site.function)
            if len(assigned) == 1:
                value = _integer(assigned[0])
                if value is not None:
                    return value, assigned[0]
        return None

    def assigned(self, variable: str, function: str) -> list[cst.BaseExpression]:
        """What a variable is assigned in a function, or else at module level."""
        owner = self.functions().get(function)
        for root in [owner, self.module]:
            if root is None:
                continue
            found = [
                value
                for node in self.inside(root, cst.Assign)
                if isinstance(node, cst.Assign)
                and (root is not self.module or self.enclosing(node) is None)
                for value in _values(node, variable)
            ]
            if found:
                return found
        return []

    def imports(self, name: str) -> bool:
        """Whether the file has `import name`."""
        return any(
            m.matches(alias.name, m.Name(name)) and alias.asname is None
            for node in self.inside(self.module, cst.Import)
            if isinstance(node, cst.Import)
            for alias in node.names
        )

    # Writing ---------------------------------------------------------------------------

    def replace(
        self,
        changes: Sequence[
            tuple[
                cst.CSTNode,
                cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel,
            ]
        ],
    ) -> str:
        """The file's text with nodes replaced."""
        table = {id(old): new for old, new in changes}

        class Replacer(cst.CSTTransformer):
            def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
                new = table.get(id(original_node))
                if new is None:
                    return super().on_leave(original_node, updated_node)
                return new

        return self.module.visit(Replacer()).code


def _values(node: cst.Assign, variable: str) -> list[cst.BaseExpression]:
    """What an assignment gives a variable, `a, b = 1, 2` included."""
    if len(node.targets) != 1:
        return []
    target = node.targets[0].target
    if m.matches(target, m.Name(variable)):
        return [node.value]
    if isinstance(target, cst.Tuple) and isinstance(node.value, cst.Tuple):
        pairs = zip(target.elements, node.value.elements, strict=False)
        return [v.value for t, v in pairs if m.matches(t.value, m.Name(variable))]
    return []


def _integer(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return int(node.value, 0)
    return None


def parsed(text: str) -> cst.BaseExpression:
    """An expression."""
    return cst.parse_expression(text)


def set_arguments(call: cst.Call, values: dict[str, str], names: Sequence[str]) -> cst.Call:
    """The call with arguments set by name: changed in place where they are, added as keywords at
    the end where they are not. `names` are the callee's parameters in order."""
    left = dict(values)
    arguments = []
    for position, arg in enumerate(call.args):
        name = (
            arg.keyword.value if arg.keyword else (names[position] if position < len(names) else "")
        )
        if name in left:
            arguments.append(arg.with_changes(value=parsed(left.pop(name))))
        else:
            arguments.append(arg)
    for name, text in left.items():
        arguments.append(
            cst.Arg(
                value=parsed(text),
                keyword=cst.Name(name),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
        )
    separated = [
        arg.with_changes(
            comma=arg.comma
            if isinstance(arg.comma, cst.Comma)
            else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        )
        for arg in arguments[:-1]
    ]
    last = arguments[-1]
    if len(arguments) > len(call.args) and not isinstance(call.args[-1].comma, cst.Comma):
        last = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    elif len(arguments) > len(call.args):
        # Keep a multi-line call multi-line: the new argument goes where the old one ended.
        comma = call.args[-1].comma
        inner = call.args[-2].comma if len(call.args) > 1 else comma
        separated[len(call.args) - 1] = separated[len(call.args) - 1].with_changes(comma=inner)
        last = last.with_changes(comma=comma)
    return call.with_changes(args=[*separated, last])


class _Substitute(cst.CSTTransformer):
    def __init__(self, test: Callable[[cst.BaseExpression], cst.BaseExpression | None]) -> None:
        super().__init__()
        self.test = test

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        if isinstance(updated_node, cst.BaseExpression):
            new = self.test(updated_node)
            if new is not None:
                return new
        return super().on_leave(original_node, updated_node)


def substitute(
    node: cst.CSTNode, test: Callable[[cst.BaseExpression], cst.BaseExpression | None]
) -> cst.CSTNode:
    """The node with every expression replaced for which `test` gives another."""
    return node.visit(_Substitute(test))  # type: ignore[return-value]


def rename_variable(node: cst.CSTNode, old: str, new: str) -> cst.CSTNode:
    """The node with a variable's name replaced (attributes and keywords are left alone)."""

    class Renamer(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
            return (
                updated_node.with_changes(value=new) if updated_node.value == old else updated_node
            )

        def visit_Attribute_attr(self, node: cst.Attribute) -> None:
            return None

        def visit_Arg_keyword(self, node: cst.Arg) -> None:
            return None

    return node.visit(Renamer())  # type: ignore[return-value]


def names_read(node: cst.CSTNode) -> set[str]:
    """All names in a node but attribute names."""
    found: set[str] = set()

    class Reader(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            found.add(node.value)

        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False

    node.visit(Reader())
    return found


def target_name(statement: cst.BaseStatement | cst.BaseSmallStatement) -> str | None:
    """The variable that a one-line assignment sets."""
    if isinstance(statement, cst.SimpleStatementLine):
        if len(statement.body) != 1:
            return None
        statement = statement.body[0]
    with contextlib.suppress(AttributeError):
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target = statement.targets[0].target
            return target.value if isinstance(target, cst.Name) else None
        if isinstance(statement, cst.AugAssign | cst.AnnAssign):
            return statement.target.value if isinstance(statement.target, cst.Name) else None
    return None


def fresh_name(wanted: str, module: cst.Module) -> str:
    """A variable name that the file does not use."""
    used = names_read(module)
    name, number = wanted, 2
    while name in used:
        name, number = f"{wanted}_{number}", number + 1
    return name
