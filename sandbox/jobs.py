"""What a job can do: run a target's functions on the virtual GPU and leave the results in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.gpu import tensor_io, trace_io
from kopt.gpu.errors import TargetError
from kopt.gpu.trace import Json
from kopt.sandbox.host import STAGE

if TYPE_CHECKING:
    from types import ModuleType

Answer = dict[str, Json]


def _stage(folder: Path, name: str) -> None:
    (folder / STAGE).write_text(name, encoding="utf-8")


def _load(folder: Path, request: Answer) -> tuple[ModuleType, Path]:
    from kopt.gpu.virtual.record import load_module

    file = Path(str(request["file"]))
    extra = request.get("search_path")
    for item in extra if isinstance(extra, list) else []:
        if str(item) not in sys.path:
            sys.path.append(str(item))
    sidecar = request.get("sidecar")
    _stage(folder, "import")
    return load_module(file, Path(str(sidecar)) if sidecar else None), file


def inspect(folder: Path, request: Answer) -> Answer:
    """Make the inputs of every workload.

    Request: `file`, `sidecar`, `gpu`, and `workloads`, a list of `{"name", "params"}`.
    The inputs are left in `inputs/<position>`; the answer has the bytes of each, or the reason why
    this workload has none (`refused`).
    """
    import torch

    from kopt.gpu.virtual.active import executable, virtual_gpu
    from kopt.gpu.virtual.record import function
    from kopt.gpu.virtual.values import flatten

    workloads = request["workloads"]
    assert isinstance(workloads, list)
    found: list[Json] = []
    with virtual_gpu(executable(str(request["gpu"])).name, counted=False) as gpu:
        module, file = _load(folder, request)
        make = function(module, "make_inputs", file)
        torch.manual_seed(int(str(request.get("seed", 0))))
        for position, workload in enumerate(workloads):
            assert isinstance(workload, dict)
            params = workload["params"]
            assert isinstance(params, dict)
            _stage(folder, "make_inputs")
            try:
                value = make(**params)
            except Exception as error:
                if not request.get("optional"):
                    raise
                found.append({"refused": f"{type(error).__name__}: {error}"[:300]})
                continue
            tensors, _ = flatten(value, gpu, "make_inputs()")
            if not any(isinstance(leaf, int) for leaf in _device_leaves(tensors.tree)):
                raise TargetError(
                    "make_inputs() returns no device tensor",
                    'create the tensors with device="cuda"',
                )
            tensor_io.save(tensors, folder / "inputs" / str(position))
            found.append({"bytes": tensors.nbytes})
            del value, tensors
    return {"workloads": found}


def _device_leaves(tree: Json) -> list[Json]:
    if isinstance(tree, list):
        return [leaf for item in tree for leaf in _device_leaves(item)]
    if isinstance(tree, dict):
        own = [tree["tensor"]] if "tensor" in tree else []
        return own + [leaf for item in tree.values() for leaf in _device_leaves(item)]
    return []


def record(folder: Path, request: Answer) -> Answer:
    """Run the entry on each case's inputs; leave `<name>/trace` and `<name>/outputs`.

    Request: `file`, `sidecar`, `search_path`, `entry`, `gpu`, and `cases`, a list of
    `{"name", "inputs", "optional"}`. The answer has one row a case; an optional case that the entry
    refuses says why in `refused`.
    """
    from kopt.gpu.virtual.active import virtual_gpu
    from kopt.gpu.virtual.record import function
    from kopt.gpu.virtual.record import record as run

    cases = request["cases"]
    assert isinstance(cases, list)
    rows: list[Json] = []
    with virtual_gpu(str(request["gpu"]), counted=False) as gpu:
        module, file = _load(folder, request)
        entry = function(module, str(request["entry"]), file)
        for case in cases:
            assert isinstance(case, dict)
            inputs = tensor_io.load(Path(str(case["inputs"])))
            _stage(folder, "entry")
            try:
                done = run(gpu, entry, inputs)
            except Exception as error:
                if not case.get("optional"):
                    raise
                rows.append({"refused": f"{type(error).__name__}: {error}"[:300]})
                continue
            place = folder / str(case["name"])
            trace_io.save(done.trace, place / "trace", done.blobs)
            tensor_io.save(done.outputs, place / "outputs")
            rows.append({"events": len(done.trace.events)})
            del done, inputs
    return {"cases": rows}


def reference(folder: Path, request: Answer) -> Answer:
    """Run a PyTorch function on each case's inputs as host tensors; leave `<name>/outputs`.

    Request: as of `record`; a case has `dtype` too: `float64` raises every floating-point input to
    fp64 first, null keeps them.
    """
    import torch

    from kopt.gpu.spec import load_spec
    from kopt.gpu.virtual.device import VirtualGPU
    from kopt.gpu.virtual.raised import Raised
    from kopt.gpu.virtual.record import call, function
    from kopt.gpu.virtual.values import flatten, unflatten

    module, file = _load_on_gpu(folder, request)
    entry = function(module, str(request["entry"]), file)
    cases = request["cases"]
    assert isinstance(cases, list)
    spec = load_spec(str(request["gpu"]))
    rows: list[Json] = []
    for case in cases:
        assert isinstance(case, dict)
        value, _ = unflatten(tensor_io.load(Path(str(case["inputs"]))), VirtualGPU(spec))
        if case.get("dtype") == "float64":
            value = _raised(value, torch.float64)
        _stage(folder, "reference")
        precise = Raised() if case.get("dtype") == "float64" else nullcontext()
        try:
            with torch.no_grad(), precise:
                result = call(entry, value)
        except Exception as error:
            if not case.get("optional"):
                raise
            rows.append({"refused": f"{type(error).__name__}: {error}"[:300]})
            continue
        outputs, _ = flatten(result, VirtualGPU(spec), "the reference's result")
        tensor_io.save(outputs, folder / str(case["name"]) / "outputs")
        rows.append({})
    return {"cases": rows}


def _load_on_gpu(folder: Path, request: Answer) -> tuple[ModuleType, Path]:
    """Import under the virtual GPU, which the module may ask for; its functions run on the host."""
    from kopt.gpu.virtual.active import virtual_gpu

    with virtual_gpu(str(request["gpu"]), counted=False):
        return _load(folder, request)


def _raised(value: object, dtype: object) -> object:
    import torch

    assert isinstance(dtype, torch.dtype)
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: _raised(v, dtype) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_raised(v, dtype) for v in value)
    if isinstance(value, list):
        return [_raised(v, dtype) for v in value]
    return value


FUNCTIONS: dict[str, Callable[[Path, Answer], Answer]] = {
    "inspect": inspect,
    "record": record,
    "reference": reference,
}
