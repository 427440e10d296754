"""`torch.cuda` of the virtual GPU: what function modes do not reach is replaced while it is on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from kopt.gpu.virtual.device import VirtualGPU

if TYPE_CHECKING:
    from kopt.gpu.virtual.torch_front import DeviceMode


class Stream:
    """A CUDA stream; work on the virtual GPU is done when it is issued."""

    def __init__(self, device: object = None, priority: int = 0, **_: object) -> None:
        self.device = torch.device("cuda", 0)
        self.cuda_stream = 0
        self.priority = priority

    def synchronize(self) -> None:
        """All work is done already."""

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has happened."""
        return event or Event()


class Event:
    """A CUDA event. There is no clock: elapsed times are 0 on a virtual GPU."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self.enable_timing = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        """Note the event."""

    def synchronize(self) -> None:
        """The event has happened."""

    def wait(self, stream: Stream | None = None) -> None:
        """The event has happened."""

    def query(self) -> bool:
        """Whether it has happened: always."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between events: 0, the virtual GPU has no clock."""
        return 0.0


class _Context:
    """`with torch.cuda.device(0)` and `with torch.cuda.stream(s)`."""

    def __init__(self, *_: object) -> None:
        self.idx = 0

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@contextlib.contextmanager
def replaced(gpu: VirtualGPU, mode: DeviceMode) -> Iterator[None]:
    """Replace the functions of `torch.cuda` that ask the driver, and put them back."""
    spec = gpu.spec
    major, minor = divmod(spec.compute_capability, 10)
    stream = Stream()
    properties = SimpleNamespace(
        name=spec.marketing_name,
        major=major,
        minor=minor,
        total_memory=spec.dram_bytes,
        multi_processor_count=spec.sms,
        L2_cache_size=spec.l2_bytes,
        max_threads_per_multi_processor=spec.max_warps_per_sm * 32,
        regs_per_multiprocessor=spec.registers_per_sm,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=spec.max_shared_per_cta,
        shared_memory_per_multiprocessor=spec.shared_per_sm,
        warp_size=32,
        gcnArchName="",
        is_integrated=False,
    )

    def synchronize(device: object = None) -> None:
        gpu.synchronise("torch.cuda.synchronize")

    new: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": _Context,
        "device_of": _Context,
        "stream": _Context,
        "synchronize": synchronize,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "set_stream": lambda s: None,
        "get_device_name": lambda device=None: spec.marketing_name,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (spec.dram_bytes - gpu.memory.used, spec.dram_bytes),
        "memory_allocated": lambda device=None: gpu.memory.used,
        "max_memory_allocated": lambda device=None: gpu.memory.peak,
        "memory_reserved": lambda device=None: gpu.memory.used,
        "max_memory_reserved": lambda device=None: gpu.memory.peak,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "is_bf16_supported": lambda including_emulation=True: True,
        "ipc_collect": lambda: None,
    }
    old = {name: getattr(torch.cuda, name) for name in new if hasattr(torch.cuda, name)}
    module_cuda = torch.nn.Module.cuda
    enter, leave = torch.device.__enter__, torch.device.__exit__
    accelerator = getattr(torch, "accelerator", None)

    def to_cuda(self: torch.nn.Module, device: object = None) -> torch.nn.Module:
        return self._apply(mode.upload)  # type: ignore[no-untyped-call, no-any-return]

    for name, value in new.items():
        setattr(torch.cuda, name, value)
    torch.nn.Module.cuda = to_cuda  # type: ignore[method-assign, assignment]
    available = accelerator.is_available if accelerator else None
    current = accelerator.current_accelerator if accelerator else None
    if accelerator:
        accelerator.is_available = lambda: True
        accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    try:
        yield
    finally:
        for name in new:
            if name in old:
                setattr(torch.cuda, name, old[name])
            else:
                delattr(torch.cuda, name)
        torch.nn.Module.cuda = module_cuda  # type: ignore[method-assign]
        del enter, leave
        if accelerator:
            accelerator.is_available = available
            accelerator.current_accelerator = current
