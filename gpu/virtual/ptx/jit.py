"""LLVM IR text to machine code in this process, with a per-user cache of object files."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx.elf import defined, needed
from kopt.gpu.virtual.ptx.ir import Routine
from kopt.gpu.virtual.ptx.module import ATTRIBUTES, masked_declarations

FORMAT = b"kopt-obj-2\n"


def cache_folder() -> Path:
    """Where compiled code is kept: `$KOPT_CACHE_DIR`, else kopt's folder in the user's cache."""
    chosen = os.environ.get("KOPT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kopt"


@dataclass(frozen=True)
class Cpu:
    """What to generate code for."""

    name: str
    features: str


@cache
def host() -> Cpu:
    """This machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return Cpu(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def _new_machine(cpu: Cpu, level: int) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=level, jit=True
    )


_machine = cache(_new_machine)


def compile_text(text: str, cpu: Cpu, level: int) -> bytes:
    """An object file for a module in LLVM's text form; `level` is the code generator's effort."""
    machine = _machine(cpu, level)
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
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_uid != os.geteuid():
                # Nobody else's machine code is run.
                return None
            data = file.read()
    except OSError:
        return None
    header = len(FORMAT) + 65
    body = data[header:]
    if data[:header] == FORMAT + _digest(body):
        return body
    return None


def _make_private(folder: Path) -> None:
    """A folder and its missing parents, for the user alone."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _save(path: Path, body: bytes) -> None:
    """Keep an object file. A cache that cannot be written only costs the next compile."""
    with contextlib.suppress(OSError):
        _make_private(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(FORMAT + _digest(body) + body)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def object_file(text: str, cpu: Cpu, level: int) -> tuple[bytes, bool]:
    """The module's object file, and whether it came from the disk."""
    identity = f"{level} {cpu.name} {cpu.features} {llvmlite.__version__} {llvm.llvm_version_info}"
    key = hashlib.sha256(f"{identity}\n{text}".encode()).hexdigest()
    path = cache_folder() / "ptx" / key[:2] / key
    keep = os.environ.get("KOPT_PTX_CACHE") != "off"
    body = _load(path) if keep else None
    if body is not None:
        return body, True
    body = compile_text(text, cpu, level)
    if keep:
        _save(path, body)
    return body, False


def _closure(routines: Iterable[Routine]) -> list[Routine]:
    """The routines and all that they call, each once."""
    found: dict[str, Routine] = {}

    def add(routine: Routine) -> None:
        if routine.name not in found:
            found[routine.name] = routine
            for other in routine.calls:
                add(other)

    for routine in routines:
        add(routine)
    return list(found.values())


def routine_text(routine: Routine) -> str:
    """A module of one routine."""
    declared = [other.declaration for other in routine.calls]
    return "\n".join([*declared, masked_declarations(routine.text), routine.text, ATTRIBUTES])


@cache
def _routine_object(routine: Routine, cpu: Cpu) -> bytes:
    return object_file(routine_text(routine), cpu, 1)[0]


def _provide(name: str) -> None:
    """Make a C library's routine known to the JIT, which ends the process if one is missing."""
    try:
        found = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise Unsupported(f"the virtual GPU lacks the library routine {name}") from None
    address = ctypes.cast(found, ctypes.c_void_p).value
    assert address is not None
    llvm.add_symbol(name, address)


class Compiled:
    """Machine code of one module and of the routines it calls; keeps it alive."""

    def __init__(self, text: str, routines: Iterable[Routine], level: int = 1) -> None:
        cpu = host()
        body, self.was_cached = object_file(text, cpu, level)
        bodies = [body, *(_routine_object(r, cpu) for r in _closure(routines))]
        known = set().union(*(defined(b) for b in bodies))
        for name in sorted(set().union(*(needed(b) for b in bodies)) - known):
            _provide(name)
        empty = llvm.parse_assembly("")
        # The engine owns its target machine and frees it.
        self._engine = llvm.create_mcjit_compiler(empty, _new_machine(cpu, level))
        for one in bodies:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(one))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where a function of the module starts."""
        return int(self._engine.get_function_address(name))
