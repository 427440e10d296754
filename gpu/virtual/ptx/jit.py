"""LLVM IR text to machine code in this process, with a per-user cache of object files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

FORMAT = b"kopt-obj-1\n"


def cache_folder() -> Path:
    """Where compiled code is kept: `$KOPT_CACHE_DIR`, else kopt's folder in the user's cache."""
    chosen = os.environ.get("KOPT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kopt"


@cache
def _machine() -> tuple[llvm.TargetMachine, str]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name = llvm.get_host_cpu_name()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=1, jit=True
    )
    return machine, f"{name} {features} {llvmlite.__version__}"


def _compile(text: str) -> bytes:
    machine, _ = _machine()
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"


def _load(path: Path) -> bytes | None:
    """A cached object file, or None if there is none that is whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    header = len(FORMAT) + 65
    body = data[header:]
    if data[:header] == FORMAT + _digest(body):
        return body
    return None


def _save(path: Path, body: bytes) -> None:
    """Keep an object file. A cache that cannot be written only costs the next compile."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(FORMAT + _digest(body) + body)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


class Compiled:
    """Machine code of one module; keeps it alive."""

    def __init__(self, text: str) -> None:
        machine, identity = _machine()
        key = hashlib.sha256(f"{identity}\n{text}".encode()).hexdigest()
        path = cache_folder() / "ptx" / key[:2] / key
        keep = os.environ.get("KOPT_PTX_CACHE") != "off"
        body = _load(path) if keep else None
        self.was_cached = body is not None
        if body is None:
            body = _compile(text)
            if keep:
                _save(path, body)
        empty = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(body))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where a function of the module starts."""
        return int(self._engine.get_function_address(name))
