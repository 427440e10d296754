"""Values of module-level assignments, read without running the file."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from kopt.gpu.trace import Json

_OPERATORS: dict[type[ast.operator], Callable[[int | float, int | float], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.LShift: lambda a, b: int(a) << min(int(b), 63),
    ast.Pow: lambda a, b: a ** min(b, 64),
    ast.Mod: operator.mod,
}


class NotLiteral(ValueError):
    """The expression needs the file to be run; `line` says where it stands."""

    def __init__(self, node: ast.AST) -> None:
        self.line = getattr(node, "lineno", 0)
        super().__init__(ast.unparse(node))


def assigned(tree: ast.Module, name: str) -> ast.expr | None:
    """The expression that the module last assigns to `name` at its top level."""
    found: ast.expr | None = None
    for node in tree.body:
        if isinstance(node, ast.Assign):
            if any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                found = node.value
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id == name
            and node.value is not None
        ):
            found = node.value
    return found


def evaluate(node: ast.expr, tree: ast.Module, depth: int = 0) -> Json:
    """Constants, containers, arithmetic, and names of other such module constants.

    Raises `NotLiteral` for anything else.
    """
    if depth > 50:
        raise NotLiteral(node)
    match node:
        case ast.Constant(value=constant) if constant is None or isinstance(
            constant, bool | int | float | str
        ):
            return constant
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [evaluate(item, tree, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            result: dict[str, Json] = {}
            for key, value in zip(keys, values, strict=True):
                if key is None:
                    spread = evaluate(value, tree, depth + 1)
                    if not isinstance(spread, dict):
                        raise NotLiteral(value)
                    result.update(spread)
                else:
                    result[_key(evaluate(key, tree, depth + 1))] = evaluate(value, tree, depth + 1)
            return result
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words):
            if all(word.arg for word in words):
                return {str(w.arg): evaluate(w.value, tree, depth + 1) for w in words}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = evaluate(operand, tree, depth + 1)
            if isinstance(number, int | float):
                return -number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a, b = evaluate(left, tree, depth + 1), evaluate(right, tree, depth + 1)
            if isinstance(a, int | float) and isinstance(b, int | float):
                try:
                    return _OPERATORS[type(op)](a, b)
                except (ArithmeticError, ValueError):
                    raise NotLiteral(node) from None
        case ast.Name(id=name):
            value_node = assigned(tree, name)
            if value_node is not None:
                return evaluate(value_node, tree, depth + 1)
        case _:
            pass
    raise NotLiteral(node)


def _key(value: Json) -> str:
    if isinstance(value, list):
        return "x".join(str(item) for item in value)
    return str(value)
