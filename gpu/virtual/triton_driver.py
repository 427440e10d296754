"""Triton's driver for the virtual GPU: launches go to the executor instead of a CUDA driver."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager

from kopt.gpu.errors import Unsupported
from kopt.gpu.trace import Json, Kernel, PointerArg, ScalarArg
from kopt.gpu.virtual.device import VirtualGPU

_PTX_SCALARS = {
    "i1": "u8", "i8": "s8", "u8": "u8", "i16": "s16", "u16": "u16", "i32": "s32", "u32": "u32",
    "i64": "s64", "u64": "u64", "fp16": "f16", "bf16": "bf16", "fp32": "f32", "f32": "f32",
    "fp64": "f64", "f64": "f64",
}  # fmt: skip


class VirtualDriver(DriverBase):  # type: ignore[misc]
    """What `triton.runtime.driver.active` must be."""

    def __init__(self, gpu: VirtualGPU) -> None:
        super().__init__()
        self.gpu = gpu
        self.utils = _Utils(gpu)
        # Triton caches compiled kernels by device index: each spec needs its own.
        self._index = 1000 + zlib.crc32(gpu.spec.name.encode()) % 100_000
        self.launcher_cls = lambda src, metadata: _Launcher(gpu, src, metadata)

    @classmethod
    def is_active(cls) -> bool:
        """Never chosen by discovery; it is set explicitly."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Only needed for generated C launchers, of which there are none here."""
        return ty

    def get_current_target(self) -> GPUTarget:
        """The compile target."""
        return GPUTarget("cuda", self.gpu.spec.compute_capability, 32)

    def get_current_device(self) -> int:
        """The index under which Triton caches kernels."""
        return self._index

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """There is one stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Compute capability."""
        return divmod(self.gpu.spec.compute_capability, 10)

    def get_active_torch_device(self) -> torch.device:
        """What `torch.device` Triton's helpers allocate on."""
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """`torch.cuda`, whose functions are replaced while the GPU is on."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """The autotuner's benchmark: one call, judged by what it executes, not by a clock."""
        return self._benchmark

    def _benchmark(self, call: Callable[[], object], quantiles: Any = None, **_: object) -> Any:
        before = len(self.gpu.launches)
        counted, self.gpu.counted = self.gpu.counted, True
        try:
            call()
        finally:
            self.gpu.counted = counted
        cost = 0.0
        for record in self.gpu.launches[before:]:
            if record.counters is not None:
                cost += _cost(record.counters, self.gpu)
        return [cost] * len(quantiles) if quantiles else cost

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Nothing to flush: a cache model starts cold."""
        return torch.empty(1, dtype=torch.int8)

    def clear_cache(self, cache: object) -> None:
        """Nothing to flush."""


def _cost(counters: Any, gpu: VirtualGPU) -> float:
    """Milliseconds at the pipe and memory bounds: enough to rank an autotuner's configurations."""
    spec = gpu.spec
    cycles = sum(counters.instructions.values()) / (spec.sms * spec.schedulers_per_sm)
    sectors = sum(s.sectors for s in counters.sites)
    waves = -(-counters.ctas // spec.sms)
    seconds = max(
        cycles / spec.clock_hz,
        32 * sectors / spec.dram_bytes_per_s,
        waves * counters.threads_per_cta * 1e-10,
    )
    return float(1e3 * seconds)


class _Utils:
    """`driver.utils`: modules are not loaded anywhere."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """Handles and limits: module (none, so that nothing is unloaded), function, registers,
        spills, most threads per CTA."""
        return None, name, 0, 0, 1024

    def unload_module(self, module: object) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """What Triton's compiler asks about the device."""
        spec = self._gpu.spec
        return {
            "max_shared_mem": spec.max_shared_per_cta,
            "max_num_regs": spec.registers_per_sm,
            "multiprocessor_count": spec.sms,
            "warpSize": 32,
            "sm_clock_rate": int(spec.clock_hz / 1000),
            "mem_clock_rate": 1_215_000,
            "mem_bus_width": 5120,
        }


class _Launcher:
    """Called by Triton for every launch of one compiled kernel."""

    def __init__(self, gpu: VirtualGPU, src: Any, metadata: Any) -> None:
        self._gpu = gpu
        signature = dict(src.signature)
        names = list(getattr(src.fn, "arg_names", signature.keys()))
        self._types = [(_name(key, names), kind) for key, kind in signature.items()]
        self.kernel = _kernel(gpu, src, metadata, dict(self._types))
        if getattr(metadata, "global_scratch_size", 0):
            raise Unsupported("kernels that need global scratch memory are not supported yet")

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: object,
        packed_metadata: object,
        launch_metadata: object,
        enter_hook: Callable[..., object] | None,
        exit_hook: Callable[..., object] | None,
        *args: object,
    ) -> None:
        if len(args) == 1 and isinstance(args[0], tuple) and len(self._types) != 1:
            args = args[0]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        values: list[PointerArg | ScalarArg] = []
        for (name, kind), value in zip(self._types, args, strict=False):
            self._argument(name, kind, value, values)
        self._gpu.launch(self.kernel, (grid_x, grid_y, grid_z), values, _host_line())
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _argument(
        self, name: str, kind: Any, value: Any, out: list[PointerArg | ScalarArg]
    ) -> None:
        if isinstance(kind, tuple | list):
            for position, (one, item) in enumerate(zip(kind, value, strict=True)):
                self._argument(f"{name}[{position}]", one, item, out)
            return
        if kind == "constexpr":
            return
        if kind.startswith("*"):
            out.append(self._pointer(name, value))
            return
        if kind not in _PTX_SCALARS:
            raise Unsupported(f"kernel argument '{name}' of type {kind} is not supported yet")
        number = float(value) if kind.startswith(("f", "b")) else int(value)
        out.append(ScalarArg(number, _PTX_SCALARS[kind], name))

    def _pointer(self, name: str, value: Any) -> PointerArg:
        if value is None:
            return PointerArg(-1, 0, name)
        memory = self._gpu.memory
        if isinstance(value, int):
            buffer = memory.at(value)
            if buffer is None:
                return PointerArg(-1, 0, name) if value == 0 else self._wild(name, value)
            return PointerArg(buffer.number, value - buffer.base, name)
        tensor = getattr(value, "base", value)
        if not isinstance(tensor, torch.Tensor):
            return self._pointer(name, int(tensor.data_ptr()))
        buffer = memory.find(tensor)
        if buffer is None:
            if tensor.numel() == 0:
                return PointerArg(-1, 0, name)
            raise ValueError(
                f"Pointer argument '{name}' cannot be accessed from Triton (cpu tensor?)"
            )
        return PointerArg(buffer.number, int(tensor.storage_offset()) * tensor.element_size(), name)

    def _wild(self, name: str, value: int) -> PointerArg:
        raise ValueError(f"Pointer argument '{name}' ({value:#x}) is no device address")


def _name(key: Any, names: list[str]) -> str:
    if isinstance(key, int):
        return names[key]
    if isinstance(key, tuple):
        return names[key[0]]
    return str(key)


def _kernel(gpu: VirtualGPU, src: Any, metadata: Any, signature: dict[str, Any]) -> Kernel:
    group = get_cache_manager(metadata.hash)
    forms = {}
    for kind in ("ptx", "ttir", "ttgir"):
        path = group.get_file(f"{metadata.name}.{kind}")
        if path is None:
            raise Unsupported(f"Triton left no {kind} for kernel {metadata.name}")
        with open(path, encoding="utf-8") as file:
            forms[kind] = file.read()
    function = src.fn
    constants: dict[str, Json] = {}
    names = list(function.arg_names)
    for key, value in src.constants.items():
        name = _name(key, names)
        constants[name] = value if isinstance(value, bool | int | float | str) else repr(value)
    text = f"{forms['ptx']}|{metadata.num_warps}|{metadata.shared}"
    code = function.fn.__code__
    return Kernel(
        key=hashlib.sha256(text.encode()).hexdigest(),
        name=metadata.name,
        source_file=code.co_filename,
        source_line=code.co_firstlineno,
        ptx=forms["ptx"],
        ttir=forms["ttir"],
        ttgir=forms["ttgir"],
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        shared_bytes=metadata.shared,
        arch=f"sm_{gpu.spec.compute_capability}",
        constexprs=constants,
        signature={name: str(kind) for name, kind in signature.items()},
    )


def _host_line() -> str:
    """`file:line` of the innermost frame outside kopt and Triton."""
    frame = sys._getframe(1)
    own = str(Path(__file__).parent)
    theirs = str(Path(triton.__file__).parent)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((own, theirs)) and "/torch/" not in name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextlib.contextmanager
def triton_on(gpu: VirtualGPU) -> Iterator[None]:
    """Triton compiles for and launches on the virtual GPU."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    runtime = triton.runtime.driver
    had = runtime.__dict__.get("_active", None)
    runtime.set_active(VirtualDriver(gpu))
    try:
        yield
    finally:
        runtime.set_active(had)
