"""From a path to a `Target`, by reading the file; nothing in it is executed here."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

from kopt.gpu.errors import EnvironmentLacks, UsageError
from kopt.tools.formats import SUPPORTED, refuse_content, refuse_folder, refuse_suffix
from kopt.tools.laws import LAW_NAMES
from kopt.tools.literals import NotLiteral, assigned, evaluate
from kopt.tools.models import Target, Workload
from kopt.tools.recognise import Definition, Recognised, function_arguments, recognise

_WORKLOAD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=,+@-]{0,79}")


def load_target(path: str | Path, entry: str | None = None) -> Target:
    """Recognise the target in a Python file and its sidecar `NAME.kopt.py`.

    Raises `UsageError` when the file is no target, with what was looked for, what was found and
    the command that helps; `EnvironmentLacks` when it cannot be read.
    """
    file = Path(path).expanduser().absolute()
    source = read_source(file)
    parse(source, file)
    sidecar = sidecar_path(file)
    sidecar_source = read_source(sidecar) if sidecar.exists() else None
    if sidecar_source is not None:
        parse(sidecar_source, sidecar)
    whole = ast.parse(joined(source, sidecar_source))
    found = recognise(whole)
    refusal = refuse_content(file, whole, found)
    if refusal is not None:
        raise refusal
    chosen = choose_entry(found, file, entry)
    _require_make_inputs(found, file, chosen)
    kernels = found.kernels_of(chosen.name)
    return Target(
        file=str(file),
        source=source,
        language="triton" if kernels else "pytorch",
        entry=chosen.name,
        reference="reference" if "reference" in found.definitions else None,
        workloads=_workloads(whole, found, file),
        laws=_laws(whole, file),
        sidecar=str(sidecar) if sidecar_source is not None else None,
        sidecar_source=sidecar_source,
        kernels=kernels,
    )


def sidecar_path(file: Path) -> Path:
    """Where a target's sidecar lies: `softmax.kopt.py` beside `softmax.py`."""
    return file.with_name(f"{file.stem}.kopt.py")


def joined(source: str, sidecar_source: str | None) -> str:
    """The file with its sidecar appended, as it will run."""
    return source if sidecar_source is None else f"{source}\n\n{sidecar_source}"


def read_source(file: Path) -> str:
    """The text of a Python file. Raises `UsageError` or `EnvironmentLacks` saying why not."""
    if not file.exists():
        near = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() else []
        hint = f"{file.parent} has {', '.join(near[:8])}" if near else "check the path"
        raise UsageError(f"no such file: {file}", hint)
    if file.is_dir():
        raise refuse_folder(file)
    refusal = refuse_suffix(file)
    if refusal is not None:
        raise refusal
    if not file.is_file():
        raise UsageError(f"{file} is not a regular file", SUPPORTED)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot read {file}: {error.strerror}", f"check its permissions: ls -l {file}"
        ) from error
    if not raw.strip():
        raise UsageError(f"{file} is empty", SUPPORTED)
    if b"\0" in raw:
        raise UsageError(f"{file} is a binary file, not Python source", SUPPORTED)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not text: {error}", "save it as UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse(source: str, file: Path) -> ast.Module:
    """The syntax tree. Raises `UsageError` with the line of a syntax error."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        shown = f": {line}" if line else ""
        raise UsageError(
            f"{file}:{error.lineno}: {error.msg}{shown}", "the file does not parse as Python"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{file} does not parse as Python: {error}", SUPPORTED) from error


def choose_entry(found: Recognised, file: Path, entry: str | None) -> Definition:
    """The entry that was asked for, or the only one there is."""
    if entry is not None:
        return _named_entry(found, file, entry)
    entries = found.entries()
    if len(entries) == 1:
        return entries[0]
    if entries:
        listed = ", ".join(f"{d.name} (line {d.line})" for d in entries)
        raise UsageError(
            f"{file} has {len(entries)} functions that could be the entry: {listed}",
            f"choose one: --entry {entries[0].name}",
        )
    if found.kernels:
        listed = ", ".join(f"{d.name} (line {d.line})" for d in found.kernels)
        raise UsageError(
            f"{file} has kernels ({listed}) but no public function that launches one",
            f"kopt init {file} writes a sidecar with the launch to fill in",
        )
    raise UsageError(
        f"no kernel in {file}: looked for functions decorated with @triton.jit and for public"
        f" functions that call torch; found {_inventory(found)}",
        SUPPORTED,
    )


def _named_entry(found: Recognised, file: Path, entry: str) -> Definition:
    definition = found.definitions.get(entry)
    functions = [d.name for d in found.entries()] or [
        d.name for d in found.definitions.values() if d.kind in ("function", "alias")
    ]
    listed = ", ".join(functions) if functions else "no functions"
    if definition is None:
        raise UsageError(f"{file} defines no {entry}; it has {listed}", "check --entry")
    if definition.kind == "kernel":
        raise UsageError(
            f"{entry} ({file}:{definition.line}) is a kernel; the entry is the function that"
            f" launches it: {listed}",
            f"choose one of these, or let kopt init {file} write a sidecar with a launch",
        )
    if definition.kind == "class":
        raise UsageError(
            f"{entry} ({file}:{definition.line}) is a class; the entry is a function of the inputs",
            f"write a function that calls it into {sidecar_path(file).name}",
        )
    return definition


def _inventory(found: Recognised) -> str:
    kinds = {"function": "functions", "class": "classes", "alias": "aliases", "kernel": "kernels"}
    parts = []
    for kind, plural in kinds.items():
        names = [d.name for d in found.definitions.values() if d.kind == kind]
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            parts.append(f"{plural} {', '.join(names[:6])}{more}")
    return "; ".join(parts) if parts else "no functions at all"


def _require_make_inputs(found: Recognised, file: Path, entry: Definition) -> None:
    definition = found.definitions.get("make_inputs")
    if definition is not None and definition.kind in ("function", "alias"):
        return
    beside = sidecar_path(file)
    where = f"{file.name} and {beside.name}" if beside.exists() else str(file)
    raise UsageError(
        f"no make_inputs() in {where}: the inputs of {entry.name} (line {entry.line}) are unknown",
        f"kopt init {file} --entry {entry.name} writes {beside.name} to fill in"
        if not beside.exists()
        else f"add make_inputs() to {beside.name}",
    )


def _workloads(tree: ast.Module, found: Recognised, file: Path) -> tuple[Workload, ...]:
    node = assigned(tree, "WORKLOADS")
    if node is None:
        return (Workload(name="default"),)
    shape = "WORKLOADS = {'name': {'parameter of make_inputs': value}}"
    try:
        value = evaluate(node, tree)
    except NotLiteral as error:
        raise UsageError(
            f"WORKLOADS in {file} needs the file to be run: {error}",
            f"write it with plain values: {shape}",
        ) from error
    if not isinstance(value, dict) or not value:
        raise UsageError(f"WORKLOADS in {file} is no table of cases", f"expected {shape}")
    accepted = _parameters(found)
    result = []
    for name, params in value.items():
        if not isinstance(params, dict):
            raise UsageError(f"WORKLOADS[{name!r}] in {file} is not a dict", f"expected {shape}")
        if not _WORKLOAD_NAME.fullmatch(name):
            raise UsageError(
                f"workload name {name!r} in {file} cannot name a folder",
                "use letters, digits and _ . = , + @ -, at most 80",
            )
        unknown = [] if accepted is None else [p for p in params if p not in accepted]
        if unknown:
            raise UsageError(
                f"WORKLOADS[{name!r}] in {file} gives {', '.join(unknown)}, which make_inputs does"
                " not take",
                f"make_inputs takes {', '.join(accepted or ()) or 'no parameters'}",
            )
        result.append(Workload(name=name, params=dict(params)))
    return tuple(result)


def integer_defaults(target: Target) -> dict[str, int]:
    """Integer defaults of `make_inputs`, which held-out shapes vary when no workload names them."""
    found = recognise(ast.parse(joined(target.source, target.sidecar_source)))
    definition = found.definitions.get("make_inputs")
    arguments = function_arguments(definition.node) if definition else None
    if arguments is None:
        return {}
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    tree = ast.parse(joined(target.source, target.sidecar_source))
    result: dict[str, int] = {}
    for argument, default in pairs:
        if default is None:
            continue
        try:
            value = evaluate(default, tree)
        except NotLiteral:
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            result[argument.arg] = value
    return result


def launches_kernels(target: Target, name: str) -> bool:
    """Whether a call of the target's function `name` launches Triton kernels."""
    found = recognise(ast.parse(joined(target.source, target.sidecar_source)))
    return bool(found.kernels_of(name))


def _parameters(found: Recognised) -> tuple[str, ...] | None:
    """Names that `make_inputs` accepts; None: anything."""
    arguments = function_arguments(found.definitions["make_inputs"].node)
    if arguments is None or arguments.kwarg is not None:
        return None
    return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _laws(tree: ast.Module, file: Path) -> tuple[str, ...] | None:
    node = assigned(tree, "LAWS")
    if node is None:
        return None
    known = ", ".join(LAW_NAMES)
    try:
        value = evaluate(node, tree)
    except NotLiteral as error:
        raise UsageError(
            f"LAWS in {file} needs the file to be run: {error}", f"list names of: {known}"
        ) from error
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"LAWS in {file} is no list of names", f"names are: {known}")
    unknown = [str(n) for n in names if n not in LAW_NAMES]
    if unknown:
        raise UsageError(f"LAWS in {file} has unknown {', '.join(unknown)}", f"names are: {known}")
    return tuple(str(n) for n in names)
