"""The index arithmetic of a kernel's source, in the same polynomials as that of its TTIR.

A kernel is read as the compiler reads it: statement by statement, calls of other jitted functions
followed, constexprs replaced by their values. So an expression in the source can be found by what
it computes, however it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.polynomial import (
    Polynomial,
    Symbol,
    argument,
    difference,
    moved,
    program,
    quotient,
    remainder,
    span,
)
from kopt.agent.playbook.source import Source, names_read
from kopt.gpu.trace import Kernel

Value = Polynomial | tuple["Value", ...] | None
"""What an expression computes; None: no index arithmetic."""

_SAME = {"multiple_of", "max_contiguous", "max_constancy", "to", "cast"}
_DEEPEST = 6


def language_names(source: Source) -> frozenset[str]:
    """Names under which the file knows `triton.language`."""
    found = set()
    for node in source.inside(source.module, cst.ImportAlias):
        assert isinstance(node, cst.ImportAlias)
        whole = source.module.code_for_node(node.name)
        parent = source.parent(node)
        inside = isinstance(parent, cst.ImportFrom) and whole == "language"
        if (whole == "triton.language" or inside) and node.asname is not None:
            found.add(source.module.code_for_node(node.asname.name))
        elif inside:
            found.add("language")
    return frozenset(found)


def is_jitted(function: cst.FunctionDef) -> bool:
    """Whether a function is decorated with `triton.jit` and nothing else."""
    if len(function.decorators) != 1:
        return False
    named = m.Attribute(attr=m.Name("jit")) | m.Name("jit")
    return m.matches(function.decorators[0].decorator, named | m.Call(func=named))


def nodes(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, outer before inner."""
    yield root
    for child in root.children:
        yield from nodes(child)


def assigned_names(node: cst.CSTNode) -> set[str]:
    """Variables that statements at and below a node assign."""
    found: set[str] = set()

    class Finder(cst.CSTVisitor):
        def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
            found.update(_targets(node.target))

        def visit_AugAssign(self, node: cst.AugAssign) -> None:
            found.update(_targets(node.target))

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
            found.update(_targets(node.target))

        def visit_For(self, node: cst.For) -> None:
            found.update(_targets(node.target))

    node.visit(Finder())
    return found


def _targets(node: cst.BaseExpression) -> list[str]:
    if isinstance(node, cst.Name):
        return [node.value]
    if isinstance(node, cst.Tuple | cst.List):
        return [name for e in node.elements for name in _targets(e.value)]
    return []


def free_name(wanted: str, *scopes: cst.CSTNode) -> str:
    """A variable name that these functions do not use."""
    used = {n for scope in scopes for n in names_read(scope)}
    name, number = wanted, 2
    while name in used:
        name, number = f"{wanted}_{number}", number + 1
    return name


@dataclass
class Reading:
    """A kernel's function, read. `values` holds what each expression of the function computes."""

    source: Source
    function: cst.FunctionDef
    values: dict[int, Value] = field(default_factory=dict)
    """By the `id` of the node; called functions have readings of their own."""
    loops: list[cst.For] = field(default_factory=list)
    """`for … in range(…)` statements in the order in which the compiler meets them."""
    values_of_parameters: dict[str, Value] = field(default_factory=dict)
    helpers: dict[str, list[Reading]] = field(default_factory=dict)
    """Jitted functions of the file as read at each of their calls, by name."""

    def value(self, node: cst.CSTNode) -> Value:
        """What an expression of the function computes."""
        return self.values.get(id(node))

    def expressions(self, wanted: Polynomial) -> Iterator[cst.BaseExpression]:
        """The expressions that compute a polynomial, outer before inner."""
        for node in nodes(self.function.body):
            if isinstance(node, cst.BaseExpression) and self.values.get(id(node)) == wanted:
                yield node


def read(source: Source, kernel: Kernel) -> Reading | None:
    """Read the function of a kernel; None if it is not in this file."""
    function = source.functions().get(kernel.name)
    if function is None or not isinstance(function.body, cst.IndentedBlock):
        return None
    reader = _Reader(source, language_names(source), Reading(source, function))
    for name in _parameters(function):
        constant = kernel.constexprs.get(name)
        if isinstance(constant, int) and not isinstance(constant, bool):
            reader.variables[name] = Polynomial.constant(constant)
        elif name in kernel.constexprs:
            reader.variables[name] = None
        else:
            reader.variables[name] = Polynomial.of(argument(name))
    reader.reading.values_of_parameters = dict(reader.variables)
    reader.block(function.body)
    return reader.reading


def _parameters(function: cst.FunctionDef) -> list[str]:
    return [p.name.value for p in [*function.params.params, *function.params.kwonly_params]]


class _Reader:
    """Evaluates one function; a called function gets a reader of its own."""

    def __init__(self, source: Source, language: frozenset[str], reading: Reading) -> None:
        self.source = source
        self.language = language
        self.reading = reading
        self.variables: dict[str, Value] = {}
        self.result: Value = None
        self.depth = 0

    # Statements ------------------------------------------------------------------------

    def block(self, body: cst.BaseSuite) -> None:
        for statement in body.body:
            self.statement(statement)

    def statement(self, node: cst.CSTNode) -> None:
        match node:
            case cst.SimpleStatementLine():
                for small in node.body:
                    self.statement(small)
            case cst.Assign():
                value = self.expression(node.value)
                for target in node.targets:
                    self.bind(target.target, value)
            case cst.AnnAssign() if node.value is not None:
                self.bind(node.target, self.expression(node.value))
            case cst.AugAssign():
                self.augmented(node)
            case cst.Expr():
                self.expression(node.value)
            case cst.Return():
                self.result = self.expression(node.value) if node.value is not None else None
            case cst.For():
                self.loop(node)
            case cst.If():
                self.expression(node.test)
                for part in [node.body, *([node.orelse] if node.orelse else [])]:
                    self.guarded(part)
            case cst.Else():
                self.block(node.body)
            case cst.While():
                self.guarded(node.body)
            case _:
                for name in assigned_names(node):
                    self.variables[name] = None

    def guarded(self, part: cst.BaseSuite | cst.Else | cst.If) -> None:
        """Statements that may or may not run."""
        if isinstance(part, cst.BaseSuite):
            self.block(part)
        else:
            self.statement(part)
        for name in assigned_names(part):
            self.variables[name] = None

    def loop(self, node: cst.For) -> None:
        self.expression(node.iter)
        changed = assigned_names(node)
        for name in changed:
            self.variables[name] = None
        counted = isinstance(node.iter, cst.Call) and self.called(node.iter) in {"range"}
        if counted:
            ordinal = Symbol("loop", str(len(self.reading.loops)))
            self.reading.loops.append(node)
            self.bind(node.target, Polynomial.of(ordinal))
        self.block(node.body)
        for name in changed:
            self.variables[name] = None

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        self.note(target, value)
        if isinstance(target, cst.Name):
            self.variables[target.value] = value
        elif isinstance(target, cst.Tuple | cst.List):
            parts = value if isinstance(value, tuple) else ()
            for position, element in enumerate(target.elements):
                self.bind(element.value, parts[position] if position < len(parts) else None)

    def augmented(self, node: cst.AugAssign) -> None:
        value = self.expression(node.value)
        old = self.expression(node.target)
        new: Value = None
        if isinstance(old, Polynomial) and isinstance(value, Polynomial):
            match node.operator:
                case cst.AddAssign():
                    new = old + value
                case cst.SubtractAssign():
                    new = old - value
                case cst.MultiplyAssign():
                    new = old * value
        self.bind(node.target, new)

    # Expressions -----------------------------------------------------------------------

    def note(self, node: cst.CSTNode, value: Value) -> Value:
        self.reading.values[id(node)] = value
        return value

    def expression(self, node: cst.BaseExpression) -> Value:
        return self.note(node, self._expression(node))

    def _expression(self, node: cst.BaseExpression) -> Value:
        match node:
            case cst.Name():
                return self.variables.get(node.value)
            case cst.Integer():
                return Polynomial.constant(int(node.value.replace("_", ""), 0))
            case cst.Tuple():
                return tuple(self.expression(e.value) for e in node.elements)
            case cst.BinaryOperation():
                left, right = self.expression(node.left), self.expression(node.right)
                if isinstance(left, Polynomial) and isinstance(right, Polynomial):
                    return _binary(node.operator, left, right)
            case cst.UnaryOperation(operator=cst.Minus()):
                value = self.expression(node.expression)
                return -value if isinstance(value, Polynomial) else None
            case cst.Subscript():
                return self.subscript(node)
            case cst.Call():
                return self.call(node)
            case _:
                for child in node.children:
                    self.children(child)
        return None

    def children(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.BaseExpression):
            self.expression(node)
        else:
            for child in node.children:
                self.children(child)

    def subscript(self, node: cst.Subscript) -> Value:
        value = self.expression(node.value)
        if not isinstance(value, Polynomial):
            return None
        places = []
        for position, element in enumerate(node.slice):
            if isinstance(element.slice, cst.Slice):
                places.append(position)
            elif not m.matches(element.slice, m.Index(value=m.Name("None"))):
                return None
        return moved(value, lambda d: places[d] if d < len(places) else d)

    def called(self, node: cst.Call) -> str:
        """The name of a function of `triton.language`, of a method, or of this file."""
        if isinstance(node.func, cst.Name):
            return node.func.value
        if isinstance(node.func, cst.Attribute):
            return node.func.attr.value
        return ""

    def call(self, node: cst.Call) -> Value:
        if isinstance(node.func, cst.Attribute):
            base = node.func.value
            is_language = isinstance(base, cst.Name) and base.value in self.language
            owner = None if is_language else self.expression(base)
        else:
            is_language, owner = True, None
        arguments = [self.expression(a.value) for a in node.args]
        name = self.called(node)
        function = self.source.functions().get(name)
        if isinstance(node.func, cst.Name) and function is not None and is_jitted(function):
            return self.helper(function, node, arguments)
        if not is_language:
            return owner if name in _SAME else None
        match name, arguments:
            case "program_id", [Polynomial() as axis] if axis.number is not None:
                return Polynomial.of(program(axis.number))
            case "num_programs", [Polynomial() as axis]:
                return Polynomial.of(Symbol("opaque", "num_programs", (axis,)))
            case "arange", [Polynomial() as start, Polynomial() as end]:
                if start.number is not None and end.number is not None:
                    return Polynomial.of(span(start.number, end.number))
            case "cdiv", [Polynomial() as number, Polynomial() as by]:
                return quotient(number + by - Polynomial.constant(1), by)
            case "expand_dims", [Polynomial() as value, Polynomial() as axis]:
                at = axis.number
                if at is not None and at >= 0:
                    return moved(value, lambda d: d + (d >= at))
            case _, [value, *_] if name in _SAME:
                return value
        return None

    def helper(self, function: cst.FunctionDef, node: cst.Call, arguments: list[Value]) -> Value:
        """Read a jitted function where it is called."""
        if self.depth >= _DEEPEST:
            return None
        own = Reading(self.source, function, loops=self.reading.loops, helpers=self.reading.helpers)
        own.helpers.setdefault(function.name.value, []).append(own)
        inner = _Reader(self.source, self.language, own)
        inner.depth = self.depth + 1
        names = _parameters(function)
        for parameter in [*function.params.params, *function.params.kwonly_params]:
            if parameter.default is not None:
                inner.variables[parameter.name.value] = inner.expression(parameter.default)
        for position, (arg, value) in enumerate(zip(node.args, arguments, strict=True)):
            if arg.keyword is not None:
                inner.variables[arg.keyword.value] = value
            elif position < len(names):
                inner.variables[names[position]] = value
        own.values_of_parameters = dict(inner.variables)
        inner.block(function.body)
        return inner.result


def _binary(operator: cst.BaseBinaryOp, left: Polynomial, right: Polynomial) -> Polynomial | None:
    match operator:
        case cst.Add():
            return left + right
        case cst.Subtract():
            return difference(left, right)
        case cst.Multiply():
            return left * right
        case cst.FloorDivide():
            return quotient(left, right)
        case cst.Modulo():
            return remainder(left, right)
    return None
