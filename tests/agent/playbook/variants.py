"""The same program written differently: renamed, reordered, split into helper functions.

What a rewrite finds must not depend on any of it.
"""

from __future__ import annotations

import ast
import builtins
import random
from collections.abc import Callable, Iterator


def is_kernel(node: ast.AST) -> bool:
    """Whether a statement defines a jitted function."""
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Attribute) and d.attr == "jit" for d in node.decorator_list
    )


def kernels(tree: ast.Module) -> list[ast.FunctionDef]:
    """The jitted functions of a file."""
    return [n for n in tree.body if isinstance(n, ast.FunctionDef) and is_kernel(n)]


def renamed(text: str, entry: str) -> str:
    """Every kernel, parameter and variable gets a name without meaning; the entry keeps its own."""
    tree = ast.parse(text)
    names: dict[str, str] = {}

    def give(name: str) -> None:
        if name not in names and name not in _KEPT | {entry}:
            names[name] = f"n{len(names)}q"

    for function in [n for n in tree.body if isinstance(n, ast.FunctionDef)]:
        if function.name in {entry, "make_inputs", "reference"}:
            local = _locals(function) - {a.arg for a in function.args.args}
        else:
            give(function.name)
            local = _locals(function)
        if function.name not in {"make_inputs", "reference"}:
            for name in sorted(local):
                give(name)

    class Rename(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            if node.name in {"make_inputs", "reference"}:
                return node
            node.name = names.get(node.name, node.name)
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.AST:
            node.id = names.get(node.id, node.id)
            return node

        def visit_arg(self, node: ast.arg) -> ast.AST:
            node.arg = names.get(node.arg, node.arg)
            return self.generic_visit(node)

        def visit_Call(self, node: ast.Call) -> ast.AST:
            launch = isinstance(node.func, ast.Subscript)
            helper = isinstance(node.func, ast.Name) and node.func.id in names
            if launch or helper:
                for keyword in node.keywords:
                    if keyword.arg not in {"num_warps", "num_stages"}:
                        keyword.arg = names.get(str(keyword.arg), keyword.arg)
            return self.generic_visit(node)

    return ast.unparse(Rename().visit(tree))


_KEPT = {"tl", "triton", "torch", "num_warps", "num_stages"}


def _locals(function: ast.FunctionDef) -> set[str]:
    found = {a.arg for a in function.args.args}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def reordered(text: str, seed: int) -> str:
    """Statements of kernels in another order that means the same."""
    tree = ast.parse(text)
    chance = random.Random(seed)
    for kernel in kernels(tree):
        _shuffle(kernel.body, chance)
    return ast.unparse(tree)


def _shuffle(body: list[ast.stmt], chance: random.Random) -> None:
    for _ in range(4 * len(body)):
        if len(body) < 2:
            return
        at = chance.randrange(len(body) - 1)
        one, two = body[at], body[at + 1]
        if _movable(one) and _movable(two) and not _tied(one, two):
            body[at], body[at + 1] = two, one
    for statement in body:
        if isinstance(statement, ast.For):
            _shuffle(statement.body, chance)


def _movable(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign)


def _tied(one: ast.stmt, two: ast.stmt) -> bool:
    reads = [{n.id for n in ast.walk(s) if isinstance(n, ast.Name)} for s in (one, two)]
    writes = [
        {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for s in (one, two)
    ]
    return bool(writes[0] & reads[1] or writes[1] & reads[0])


def split(text: str, seed: int) -> str:
    """Some of the kernels' expressions moved into helper functions of their own."""
    tree = ast.parse(text)
    chance = random.Random(seed)
    helpers: list[ast.stmt] = []
    for kernel in kernels(tree):
        constexprs = {a.arg for a in kernel.args.args if a.annotation is not None}
        for statement in _assignments(kernel.body):
            reads = sorted(
                {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
                - _KEPT
                - set(dir(builtins))
            )
            plain = isinstance(statement.value, ast.Name | ast.Constant)
            if plain or not reads or chance.random() < 0.3 or _is_load_of_carried(statement):
                continue
            name = f"part_{len(helpers)}"
            parameters = [f"{r}: tl.constexpr" if r in constexprs else r for r in reads]
            source = (
                f"@triton.jit\ndef {name}({', '.join(parameters)}):\n"
                f"    return {ast.unparse(statement.value)}\n"
            )
            helpers.extend(ast.parse(source).body)
            call = ast.parse(f"{name}({', '.join(reads)})", mode="eval").body
            statement.value = call
    first = tree.body.index(kernels(tree)[0])
    tree.body[first:first] = helpers
    return ast.unparse(ast.fix_missing_locations(tree))


def _assignments(body: list[ast.stmt]) -> Iterator[ast.Assign]:
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield statement
        elif isinstance(statement, ast.For):
            yield from _assignments(statement.body)


def _is_load_of_carried(statement: ast.Assign) -> bool:
    return not isinstance(statement.targets[0], ast.Name)


def all_variants(text: str, entry: str) -> dict[str, str]:
    """Named variants of a target, combinations last."""
    single: dict[str, Callable[[str], str]] = {
        "renamed": lambda t: renamed(t, entry),
        "reordered": lambda t: reordered(t, 1),
        "split": lambda t: split(t, 2),
    }
    found = {name: change(text) for name, change in single.items()}
    found["all"] = renamed(reordered(split(text, 3), 4), entry)
    return found
