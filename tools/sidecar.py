"""The sidecar `NAME.kopt.py` that `kopt init` writes: what a target lacks, filled in."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from kopt.gpu.errors import UsageError
from kopt.tools.formats import refuse_content
from kopt.tools.recognise import Recognised, dotted, function_arguments, recognise
from kopt.tools.target import choose_entry, parse, read_source, sidecar_path

_SIZES = {1: (1 << 24,), 2: (4096, 4096), 3: (8, 1024, 1024), 4: (4, 16, 1024, 64)}
"""Sizes to start from, by number of axes: some tens of megabytes, as real workloads have."""


@dataclass
class _Tensor:
    """A tensor parameter and what the code says about its axes."""

    name: str
    axes: list[str] = field(default_factory=list)
    integer: bool = False


def init_sidecar(path: str | Path, entry: str | None = None) -> str:
    """The source of a sidecar for a Python file, as complete as its code allows.

    Raises `UsageError` when the file has no kernel and no function that calls torch, when it has
    two possible entries, and when there is a sidecar already: that is never overwritten.
    """
    file = Path(path).expanduser().absolute()
    source = read_source(file)
    tree = parse(source, file)
    beside = sidecar_path(file)
    if beside.exists():
        raise UsageError(
            f"{beside} exists and is not overwritten", "edit it, or move it away first"
        )
    found = recognise(tree)
    refusal = refuse_content(file, tree, found)
    if refusal is not None:
        raise refusal
    header = (
        f'"""What kopt needs to know about {file.name}; it runs as if it stood at its end."""\n\n'
    )
    if entry is None and found.kernels and not found.entries():
        return header + "import torch\nimport triton\n\n\n" + _launch(found)
    definition = choose_entry(found, file, entry)
    return header + "import torch\n\n\n" + _inputs(definition.name, definition.node, found)


def _inputs(entry: str, node: ast.AST, found: Recognised) -> str:
    arguments = function_arguments(node)
    if arguments is None:
        return _make_inputs([_Tensor("x", ["n"])], [], entry)
    plain = [*arguments.posonlyargs, *arguments.args]
    required = plain[: len(plain) - len(arguments.defaults)]
    tensors, scalars = [], []
    for argument in required:
        annotation = dotted(argument.annotation, found.imports) if argument.annotation else ""
        if annotation in ("int", "float", "bool", "str"):
            scalars.append((argument.arg, {"int": "1", "float": "1.0", "bool": "False"}.get(
                annotation, '""')))  # fmt: skip
        else:
            tensors.append(_described(argument.arg, node))
    return _make_inputs(tensors, scalars, entry, [a.arg for a in required])


def _described(name: str, node: ast.AST) -> _Tensor:
    """Axes from `M, N = x.shape`, `x.shape[1]`, `x.size(0)`; integers from `index` in use."""
    tensor = _Tensor(name)
    highest = -1
    for part in ast.walk(node):
        if isinstance(part, ast.Assign) and _is_shape_of(part.value, name):
            target = part.targets[0]
            if isinstance(target, ast.Tuple):
                tensor.axes = [
                    e.id if isinstance(e, ast.Name) and e.id != "_" else f"{name}_{i}"
                    for i, e in enumerate(target.elts)
                ]
        elif isinstance(part, ast.Subscript):
            if _is_shape_of(part.value, name):
                highest = max(highest, _axis(part.slice))
            elif isinstance(part.slice, ast.Name) and part.slice.id == name:
                tensor.integer = True  # it indexes another tensor
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            of = part.func.value
            if part.func.attr in ("size", "stride") and isinstance(of, ast.Name) and of.id == name:
                highest = max(highest, _axis(part.args[0]) if part.args else -1)
    if not tensor.axes:
        count = max(highest + 1, 1)
        tensor.axes = ["n"] if count == 1 else [f"{name}_{i}" for i in range(count)]
    return tensor


def _is_shape_of(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return node.func.attr == "size" and _is_name(node.func.value, name)
    return isinstance(node, ast.Attribute) and node.attr == "shape" and _is_name(node.value, name)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _axis(node: ast.AST) -> int:
    """The axis that an index names; a negative one means two axes at least."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return -1
    if isinstance(value, int):
        return value if value >= 0 else max(1, -value - 1)
    return -1


def _make_inputs(
    tensors: list[_Tensor],
    scalars: list[tuple[str, str]],
    entry: str,
    order: list[str] | None = None,
) -> str:
    sizes: dict[str, int] = {}
    for tensor in tensors:
        defaults = _SIZES.get(len(tensor.axes), (64,) * len(tensor.axes))
        for axis, size in zip(tensor.axes, defaults, strict=True):
            sizes[axis] = min(size, sizes.get(axis, size))
    parameters = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    lines = [
        f"def make_inputs({parameters}):",
        f'    """The arguments of {entry}, in order. Check shapes and dtypes."""',
    ]
    for tensor in tensors:
        shape = ", ".join(tensor.axes)
        if tensor.integer:
            made = f'torch.randint(0, {tensor.axes[0]}, ({shape},), device="cuda")'
        else:
            made = f'torch.randn({shape}, device="cuda", dtype=torch.float32)'
        lines.append(f"    {tensor.name} = {made}")
    lines += [f"    {name} = {value}" for name, value in scalars]
    names = order or [t.name for t in tensors]
    lines.append(f"    return ({', '.join(names)}{',' if len(names) == 1 else ''})")
    workload = ", ".join(f'"{axis}": {size}' for axis, size in sizes.items())
    lines += [
        "",
        "",
        "# The sizes that matter to you; times are compared on these.",
        f'WORKLOADS = {{"default": {{{workload}}}}}',
        "",
        "# A plain PyTorch version makes the check independent of the kernel:",
        f"# def reference({', '.join(names)}):",
        "#     return ...",
        "",
    ]
    return "\n".join(lines)


def _launch(found: Recognised) -> str:
    """An entry for a file that has kernels and no function that launches one."""
    kernel = found.kernels[-1]
    arguments = function_arguments(kernel.node)
    assert arguments is not None, "a kernel is a function"
    constexprs, pointers, numbers = [], [], []
    bases = _pointer_names(kernel.node)
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        annotation = dotted(argument.annotation, found.imports) if argument.annotation else ""
        if annotation.endswith("constexpr"):
            constexprs.append(argument.arg)
        elif argument.arg in bases or "ptr" in argument.arg.lower():
            pointers.append(argument.arg)
        else:
            numbers.append(argument.arg)
    stored = _stored_names(kernel.node)
    results = [p for p in pointers if p in stored] or pointers[-1:]
    given = [p for p in pointers if p not in results] or pointers[:1]
    names = {p: p.removesuffix("_ptr").removesuffix("_pointer") for p in pointers}
    first = names[given[0]] if given else "x"
    lines = [f"def run({', '.join(names[p] for p in given)}):"]
    lines.append(f'    """Launch {kernel.name}. Check the grid and every argument."""')
    lines += [f"    {names[p]} = torch.empty_like({first})" for p in results if p not in given]
    lines += [f"    {name} = {first}.numel()" for name in numbers]
    block = constexprs[0] if constexprs else None
    grid = f"triton.cdiv({first}.numel(), 1024)" if block else "1"
    passed = [names.get(a.arg, a.arg) for a in arguments.args if a.arg not in constexprs]
    passed += [f"{name}=1024" for name in constexprs]
    lines.append(f"    {kernel.name}[({grid},)]({', '.join(passed)})")
    returned = ", ".join(names[p] for p in results)
    lines += [f"    return {returned}", "", "", ""]
    tensors = [_Tensor(names[p], ["n"]) for p in given]
    return "\n".join(lines) + _make_inputs(tensors, [], "run")


def _pointer_names(kernel: ast.AST) -> set[str]:
    """Names at the left end of what the kernel loads from and stores to."""
    assigned: dict[str, set[str]] = {}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, set()).add(_leftmost(node.value))
    found = {_leftmost(call.args[0]) for call in _accesses(kernel, ("load", "store"))}
    queue = list(found)
    while queue:
        for origin in assigned.get(queue.pop(), set()):
            if origin and origin not in found:
                found.add(origin)
                queue.append(origin)
    return found


def _stored_names(kernel: ast.AST) -> set[str]:
    names = {_leftmost(call.args[0]) for call in _accesses(kernel, ("store",))}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if target in names:
                names.add(_leftmost(node.value))
    return names


def _accesses(kernel: ast.AST, kinds: tuple[str, ...]) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(kernel)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in kinds
        and node.args
    ]


def _leftmost(node: ast.AST) -> str:
    while isinstance(node, ast.BinOp):
        node = node.left
    return node.id if isinstance(node, ast.Name) else ""
