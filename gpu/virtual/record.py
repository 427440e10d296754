"""Running a user's function on the virtual GPU and recording its device work."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kopt.gpu.errors import TargetError
from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import DeviceRead, Trace
from kopt.gpu.virtual.device import Recording, VirtualGPU
from kopt.gpu.virtual.values import flatten, unflatten

MODULE = "kopt_target"
"""Name under which a target is imported."""


@dataclass(frozen=True)
class Recorded:
    """One recorded call."""

    trace: Trace
    blobs: dict[str, bytes]
    outputs: Tensors
    """What the entry returned, as the recording process computed it."""


def load_module(file: Path, sidecar: Path | None) -> ModuleType:
    """Import a target by path, its folder on `sys.path`; the sidecar runs in its namespace."""
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise TargetError(f"{file} cannot be imported", "give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    if sidecar is not None:
        code = compile(sidecar.read_text(encoding="utf-8"), str(sidecar), "exec")
        exec(code, module.__dict__)
    return module


def function(module: ModuleType, name: str, file: Path) -> Callable[..., object]:
    """A function of the module. Raises `TargetError` if it has none of that name."""
    found = getattr(module, name, None)
    if not callable(found):
        raise TargetError(f"{file.name} defines no function '{name}'")
    return found  # type: ignore[no-any-return]


def call(entry: Callable[..., object], inputs: object) -> object:
    """Call the entry: a tuple or list is positional, a dict is keywords, else it is one value."""
    if isinstance(inputs, dict):
        return entry(**inputs)
    if isinstance(inputs, tuple | list):
        return entry(*inputs)
    return entry(inputs)


def record(gpu: VirtualGPU, entry: Callable[..., object], inputs: Tensors) -> Recorded:
    """Run the entry once on copies of the inputs, on the active virtual GPU."""
    value, tensors = unflatten(inputs, gpu)
    references = tuple(gpu.reference(t) for t in tensors if gpu.memory.find(t) is not None)
    gpu.kernels.clear()
    gpu.launches.clear()
    recording = Recording()
    gpu.memory.peak = gpu.memory.used
    gpu.recording = recording
    try:
        result = call(entry, value)
    finally:
        gpu.recording = None
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        raise TargetError("the entry is a generator or a coroutine; it must return tensors")
    outputs, returned = flatten(result, gpu, "the entry's result")
    for tensor in returned:
        if gpu.memory.find(tensor) is None:
            raise TargetError(
                "the entry returns a host tensor",
                "return the device tensor; kopt compares device results",
            )
    trace = Trace(
        inputs=references,
        outputs=tuple(gpu.reference(t.detach()) for t in returned),
        output_tree=outputs.tree,
        events=tuple(e for e in recording.events if not _is_read_of_nothing(e)),
        kernels=dict(gpu.kernels),
        peak_bytes=gpu.memory.peak,
    )
    copies = [s.copy() for s in outputs.storages]
    return Recorded(trace, recording.blobs, Tensors(outputs.tree, outputs.tensors, copies))


def _is_read_of_nothing(event: object) -> bool:
    return isinstance(event, DeviceRead) and event.nbytes == 0
