"""The device work of one entry call, in order: what the host recorded and the device replays.

A `Trace` is plain data. `kopt.gpu.trace_io` stores it in a folder; nothing in it refers to the
process that recorded it. Buffers are numbered; a number stands for one allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a buffer. `dtype` is torch's name without the prefix, e.g. `bfloat16`."""

    buffer: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """In elements from the start of the buffer."""


@dataclass(frozen=True)
class Alloc:
    """A new allocation. Its content is undefined until something writes it."""

    buffer: int
    nbytes: int
    label: str = ""


@dataclass(frozen=True)
class HostCopy:
    """Bytes that came from the host after the inputs (a copy, or a random generator's output)."""

    buffer: int
    blob: str
    """Name of the file in the trace's folder with the bytes of the whole buffer."""
    nbytes: int
    """Bytes charged to the copy engine."""
    reason: str = "copy"


@dataclass(frozen=True)
class DeviceRead:
    """A copy to the host: `.item()`, `.cpu()`, `print`. It costs a synchronisation."""

    buffer: int
    nbytes: int


Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True)
class Operator:
    """One PyTorch operator at ATen level, e.g. `aten.add.Tensor`.

    `args` and `kwargs` are JSON trees in which `{"tensor": {...}}` is a `TensorRef`,
    `{"dtype": "float16"}` a dtype, and `{"device": 1}` the device. `outputs` names where the
    results live; an operator that writes in place has its written operands there too.
    """

    name: str
    args: list[Json]
    kwargs: dict[str, Json]
    outputs: tuple[TensorRef, ...]


@dataclass(frozen=True)
class PointerArg:
    """A kernel argument that is an address: `byte_offset` into `buffer`."""

    buffer: int
    byte_offset: int
    name: str


@dataclass(frozen=True)
class ScalarArg:
    """A kernel argument by value; `ptx_type` is e.g. `u32`, `u64`, `f32`."""

    value: int | float
    ptx_type: str
    name: str


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel, with every intermediate form the compiler left."""

    key: str
    """sha256 of the PTX and the launch-relevant metadata."""
    name: str
    """The entry's name in the PTX."""
    source_file: str
    source_line: int
    ptx: str
    ttir: str
    ttgir: str
    num_warps: int
    num_stages: int
    shared_bytes: int
    """Dynamic shared memory per CTA, in bytes."""
    arch: str
    """`sm_80`, `sm_86`, …"""
    constexprs: dict[str, Json] = field(default_factory=dict)
    signature: dict[str, str] = field(default_factory=dict)
    """Argument name to Triton type, e.g. `*fp32`, `i32`, `constexpr`."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `args` are the PTX parameters in order, Triton's scratch pointers too."""

    kernel: str
    """`Kernel.key`."""
    grid: tuple[int, int, int]
    args: tuple[PointerArg | ScalarArg, ...]
    stream: int = 0
    host_line: str = ""
    """`file:line` of the launch in the user's code, for reports."""


@dataclass(frozen=True)
class Sync:
    """A synchronisation that the host asked for (`torch.cuda.synchronize`, events)."""

    reason: str


Event = Alloc | HostCopy | DeviceRead | Operator | Launch | Sync


@dataclass(frozen=True)
class Trace:
    """`inputs` are the entry's tensor arguments in order, `outputs` the tensors it returned.

    `output_tree` is the structure of the returned value with `{"tensor": i}` for `outputs[i]` and
    plain JSON elsewhere; `mutable` lists positions of inputs the recorded work wrote to.
    """

    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    output_tree: Json
    events: tuple[Event, ...]
    kernels: dict[str, Kernel]
    peak_bytes: int = 0
