"""What a Python file contains, seen without running it: kernels, host functions, who uses whom."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RESERVED = frozenset({"make_inputs", "reference"})
"""Functions that describe a target and are never its entry."""

_TIMING_NAME = re.compile(r"(main|test|bench(mark)?|demo)(_.*)?")


@dataclass(frozen=True)
class Definition:
    """One module-level function, class or callable alias and what its body refers to."""

    name: str
    line: int
    kind: str
    """`kernel`, `function`, `class`, or `alias` (`softmax = Softmax.apply`)."""
    uses: frozenset[str]
    """Module-level definitions that the body names."""
    direct_launches: frozenset[str]
    """Kernels named by the body, `X[grid](...)` on an imported name included."""
    uses_torch: bool
    is_timing_code: bool
    node: ast.AST

    @property
    def public(self) -> bool:
        """Whether it could be somebody's entry by its name."""
        return not self.name.startswith("_") and self.name not in RESERVED


@dataclass(frozen=True)
class Recognised:
    """The definitions of one file, sidecar included."""

    definitions: dict[str, Definition]
    imports: dict[str, str]
    """Local name to dotted origin."""

    def reachable(self, name: str) -> frozenset[str]:
        """Names of the definitions that `name` uses, directly or through others; itself excluded
        unless it is recursive."""
        seen: set[str] = set()
        queue = list(self.definitions[name].uses) if name in self.definitions else []
        while queue:
            current = queue.pop()
            if current not in seen and current in self.definitions:
                seen.add(current)
                queue.extend(self.definitions[current].uses)
        return frozenset(seen)

    def kernels_of(self, name: str) -> tuple[str, ...]:
        """Kernels that a call of `name` may launch, in the file's order."""
        found: set[str] = set()
        for user in (name, *self.reachable(name)):
            if user in self.definitions and self.definitions[user].kind != "kernel":
                found |= self.definitions[user].direct_launches
        order = {k: d.line for k, d in self.definitions.items()}
        return tuple(sorted(found, key=lambda k: (order.get(k, sys.maxsize), k)))

    def reaches_torch(self, name: str) -> bool:
        """Whether `name` or one of its helpers calls torch or a library built on it."""
        users = (name, *self.reachable(name))
        return any(self.definitions[u].uses_torch for u in users if u in self.definitions)

    @property
    def kernels(self) -> tuple[Definition, ...]:
        """The `@triton.jit` functions."""
        return tuple(d for d in self.definitions.values() if d.kind == "kernel")

    def entries(self) -> tuple[Definition, ...]:
        """Public functions that launch a kernel (else: call torch) and are no helper of another."""
        public = [d for d in self.definitions.values() if d.public and _callable(d)]
        for qualifies in (lambda d: bool(self.kernels_of(d.name)), self._is_torch_function):
            chosen = [d for d in public if qualifies(d)]
            chosen = [d for d in chosen if not d.is_timing_code] or chosen
            if chosen:
                return tuple(sorted(self._without_helpers(chosen), key=lambda d: d.line))
        return ()

    def _is_torch_function(self, definition: Definition) -> bool:
        return not self.kernels and self.reaches_torch(definition.name)

    def _without_helpers(self, chosen: list[Definition]) -> list[Definition]:
        def is_helper(definition: Definition) -> bool:
            return any(
                definition.name in self.reachable(other.name)
                and other.name not in self.reachable(definition.name)
                for other in chosen
                if other is not definition
            )

        return [d for d in chosen if not is_helper(d)]


def _callable(definition: Definition) -> bool:
    return definition.kind in ("function", "alias")


def recognise(tree: ast.Module) -> Recognised:
    """Read the definitions of a module; later ones replace earlier ones, as in Python."""
    statements = list(_module_level(tree.body))
    imports = _imports(statements)
    kernels = {name for name, _, node in _named(statements) if _is_kernel(node, imports)}
    names = {name for name, _, _ in _named(statements)}
    definitions: dict[str, Definition] = {}
    for name, line, node in _named(statements):
        if name in kernels:
            kind = "kernel"
        elif isinstance(node, ast.ClassDef):
            kind = "class"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "function"
        elif _is_alias(node, names):
            kind = "alias"
        else:
            continue
        definitions[name] = Definition(
            name=name,
            line=line,
            kind=kind,
            uses=frozenset(_names(node) & names) - ({name} if kind == "class" else set()),
            direct_launches=_launches(node, kernels, names, imports),
            uses_torch=any(_is_torch(origin, imports) for origin in _origins(node, imports)),
            is_timing_code=_is_timing_code(name, node, imports),
            node=node,
        )
    return Recognised(definitions, imports)


def function_arguments(node: ast.AST) -> ast.arguments | None:
    """The signature of a function definition, None for anything else."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.args
    return None


def dotted(node: ast.AST, imports: dict[str, str]) -> str:
    """`tl.load` as `triton.language.load`; "" for what is no dotted name."""
    if isinstance(node, ast.Name):
        return imports.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, imports)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _module_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _module_level(getattr(statement, part, []))
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _module_level(handler.body)


def _named(statements: list[ast.stmt]) -> Iterator[tuple[str, int, ast.AST]]:
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno, node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, node.lineno, node.value


def _imports(statements: list[ast.stmt]) -> dict[str, str]:
    imports: dict[str, str] = {}
    for node in statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    imports[alias.asname] = alias.name
                else:
                    imports[alias.name.split(".")[0]] = alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origin = f"{node.module}.{alias.name}" if node.module else alias.name
                imports[alias.asname or alias.name] = origin
    return imports


def _is_jit(node: ast.AST, imports: dict[str, str]) -> bool:
    """`triton.jit`, `triton.jit(...)`, and names that a package re-exports as `….triton.jit`."""
    if isinstance(node, ast.Call):
        return _is_jit(node.func, imports)
    return dotted(node, imports).endswith(("triton.jit", "triton.runtime.jit.jit"))


def _is_kernel(node: ast.AST, imports: dict[str, str]) -> bool:
    if isinstance(node, ast.FunctionDef):
        return any(_is_jit(decorator, imports) for decorator in node.decorator_list)
    if isinstance(node, ast.Call):  # kernel = triton.autotune(...)(triton.jit(function))
        inside = [node.func, *node.args]
        return _is_jit(node.func, imports) or any(_is_kernel(part, imports) for part in inside)
    return False


def _is_alias(node: ast.AST, names: set[str]) -> bool:
    """`softmax = Softmax.apply`, `fast = partial(softmax, eps=1e-6)`, `f = torch.compile(g)`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "apply" and bool(_names(node) & names)
    if isinstance(node, ast.Call):
        return bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id in names
    return isinstance(node, ast.Lambda)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _launches(
    node: ast.AST, kernels: set[str], names: set[str], imports: dict[str, str]
) -> frozenset[str]:
    found = _names(node) & kernels
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
            base = call.func.value
            if isinstance(base, ast.Name) and base.id in imports and base.id not in names:
                found.add(base.id)
        if isinstance(call, ast.FunctionDef) and call is not node and _is_kernel(call, imports):
            found.add(call.name)
    return frozenset(found)


def _origins(node: ast.AST, imports: dict[str, str]) -> Iterator[str]:
    for name in _names(node):
        if name in imports:
            yield imports[name]


def _is_torch(origin: str, imports: dict[str, str]) -> bool:
    """torch itself, or in a file that imports torch any other library that is not plain Python's.

    Numeric libraries that know nothing of a GPU do not count.
    """
    package = origin.split(".")[0]
    if package == "torch":
        return True
    imports_torch = any(o.split(".")[0] == "torch" for o in imports.values())
    plain = sys.stdlib_module_names | {"numpy", "scipy", "pandas", "matplotlib", "pytest", "triton"}
    return imports_torch and package not in plain


def _is_timing_code(name: str, node: ast.AST, imports: dict[str, str]) -> bool:
    """Functions that time or test an entry use it without being it."""
    if _TIMING_NAME.fullmatch(name):
        return True
    if isinstance(node, ast.FunctionDef):
        marks = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if any(dotted(mark, imports).endswith("perf_report") for mark in marks):
            return True
    calls = (dotted(c.func, imports) for c in ast.walk(node) if isinstance(c, ast.Call))
    return any(c.endswith(("do_bench", "do_bench_cudagraph", "allclose")) for c in calls)
