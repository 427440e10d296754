"""The device side of the virtual GPU: its memory, its launches, and the trace of both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kopt.gpu.counters import Finding, LaunchCounters
from kopt.gpu.errors import TargetError
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.trace import (
    Alloc,
    DeviceRead,
    Event,
    HostCopy,
    Kernel,
    Launch,
    PointerArg,
    ScalarArg,
    Sync,
    TensorRef,
)
from kopt.gpu.virtual.executor import Arithmetic, load_kernel
from kopt.gpu.virtual.segments import FIRST_ADDRESS, Segment, next_address

POISON = 0xFF
"""Fresh device memory is filled with this byte: NaN as a float, -1 as an integer."""


def weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    """A reference that tells when the storage is gone, and keeps its identity from reuse."""
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


@dataclass
class Buffer:
    """One allocation of device memory, backed by the storage of a CPU tensor."""

    number: int
    base: int
    nbytes: int
    host: int
    alive: StorageWeakRef
    label: str = ""
    shadow: int = 0
    """Host address of the fp64 shadow, see `Segment.shadow`."""

    @property
    def expired(self) -> bool:
        """Whether the storage is gone."""
        return bool(self.alive.expired())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class LaunchRecord:
    """One executed launch."""

    kernel: Kernel
    grid: tuple[int, int, int]
    counters: LaunchCounters | None
    findings: tuple[Finding, ...]


@dataclass
class Recording:
    """Events since recording began."""

    events: list[Event] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    peak_bytes: int = 0


class DeviceMemory:
    """Which storages are device memory, and where a kernel sees them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.buffers: dict[int, Buffer] = {}
        """By identity of the storage."""
        self._numbers = 0
        self._next = FIRST_ADDRESS
        self.used = 0
        self.peak = 0

    def find(self, tensor: torch.Tensor) -> Buffer | None:
        """The tensor's buffer, None for host memory."""
        buffer = self.buffers.get(tensor.untyped_storage()._cdata)
        if buffer is None or buffer.expired:
            return None
        return buffer

    def add(self, tensor: torch.Tensor, label: str = "") -> Buffer:
        """Make the tensor's storage device memory. Raises `TargetError` when the GPU is full."""
        storage = tensor.untyped_storage()
        self._sweep()
        size = storage.nbytes()
        if self.used + size > self.capacity:
            raise TargetError(
                f"out of device memory: {size:,} bytes more than the"
                f" {self.capacity - self.used:,} that are free",
                "use smaller workloads, or a GPU with more memory: kopt devices",
            )
        base = next_address(self._next, size)
        self._next = base + max(size, 1)
        buffer = Buffer(self._numbers, base, size, storage.data_ptr(), weak(storage), label)
        self._numbers += 1
        self.buffers[storage._cdata] = buffer
        self.used += size
        self.peak = max(self.peak, self.used)
        return buffer

    def _sweep(self) -> None:
        for key, buffer in list(self.buffers.items()):
            if buffer.expired:
                self.used -= buffer.nbytes
                del self.buffers[key]

    def live(self) -> Iterator[Buffer]:
        """Buffers whose tensors still exist."""
        self._sweep()
        return iter(list(self.buffers.values()))

    def at(self, address: int) -> Buffer | None:
        """The buffer that holds a virtual address, or the one that ends closest before it."""
        for buffer in self.buffers.values():
            if buffer.base <= address < buffer.base + max(buffer.nbytes, 1):
                return buffer
        return None


class VirtualGPU:
    """One virtual GPU: a spec, its memory, what was launched, and the recording if there is one."""

    def __init__(self, spec: DeviceSpec, *, counted: bool = False) -> None:
        self.spec = spec
        self.memory = DeviceMemory(spec.dram_bytes)
        self.recording: Recording | None = None
        self.counted = counted
        self.launches: list[LaunchRecord] = []
        self.kernels: dict[str, Kernel] = {}
        self.findings: list[Finding] = []

    # Recording ---------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Append to the recording, if there is one."""
        if self.recording is not None:
            self.recording.events.append(event)

    def allocate(self, tensor: torch.Tensor, label: str = "") -> Buffer:
        """Register fresh device memory."""
        buffer = self.memory.add(tensor, label)
        self.note(Alloc(buffer.number, buffer.nbytes, label))
        return buffer

    def host_copy(self, tensor: torch.Tensor, reason: str) -> None:
        """Note that the tensor's whole buffer now holds bytes from the host."""
        if self.recording is None:
            return
        buffer = self.memory.find(tensor)
        assert buffer is not None
        storage = tensor.untyped_storage()
        data = bytes(bytearray(storage)) if storage.nbytes() < 4096 else _bytes(storage)
        name = hashlib.sha256(data).hexdigest()
        self.recording.blobs[name] = data
        moved = tensor.numel() * tensor.element_size()
        self.note(HostCopy(buffer.number, name, moved, reason))

    def device_read(self, tensor: torch.Tensor) -> None:
        """Note a copy to the host."""
        buffer = self.memory.find(tensor)
        if buffer is not None:
            self.note(DeviceRead(buffer.number, tensor.numel() * tensor.element_size()))

    def synchronise(self, reason: str) -> None:
        """Note a synchronisation."""
        self.note(Sync(reason))

    def reference(self, tensor: torch.Tensor) -> TensorRef:
        """How a trace names the tensor."""
        buffer = self.memory.find(tensor)
        if buffer is None:
            raise TargetError("a host tensor was used where a device tensor is needed")
        return TensorRef(
            buffer.number,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
        )

    # Launching -----------------------------------------------------------------------------

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        args: Sequence[PointerArg | ScalarArg],
        host_line: str = "",
    ) -> LaunchRecord:
        """Run a kernel now and note it."""
        self.kernels[kernel.key] = kernel
        self.note(Launch(kernel.key, grid, tuple(args), 0, host_line))
        by_number = {b.number: b for b in self.memory.live()}
        record = execute(kernel, grid, args, by_number, counted=self.counted)
        self.launches.append(record)
        self.findings.extend(record.findings)
        return record


def _bytes(storage: torch.UntypedStorage) -> bytes:
    import ctypes

    return ctypes.string_at(storage.data_ptr(), storage.nbytes())


def execute(
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[PointerArg | ScalarArg],
    buffers: dict[int, Buffer],
    *,
    counted: bool,
    arithmetic: Arithmetic = "ieee",
) -> LaunchRecord:
    """Run one launch over the given buffers."""
    names: dict[int, str] = {}
    params: list[int | float] = []
    for arg in args:
        if isinstance(arg, PointerArg):
            if arg.buffer < 0:
                params.append(0)
                continue
            names.setdefault(arg.buffer, arg.name)
            params.append(buffers[arg.buffer].base + arg.byte_offset)
        else:
            params.append(arg.value)
    # Arguments first: they are searched first. Other buffers may be reached through pointers in
    # memory.
    ordered = sorted(buffers.values(), key=lambda b: (b.number not in names, b.number))
    segments = [
        Segment(b.base, b.nbytes, b.host, names.get(b.number, b.label), b.shadow)
        for b in ordered
        if b.nbytes
    ]
    loaded = load_kernel(kernel.ptx, kernel.name, counted=counted, arithmetic=arithmetic)
    missing = len(loaded.translation.entry.params) - len(params)
    result = loaded.launch(
        grid, 32 * kernel.num_warps, kernel.shared_bytes, [*params, *[0] * missing], segments
    )
    return LaunchRecord(kernel, grid, result.counters, result.findings)
