"""What the executor counts while it runs a kernel. Every figure here is `counted`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

InstructionClass = Literal[
    "fp32",
    "fp64",
    "fp16",
    "int",
    "sfu",
    "convert",
    "compare",
    "select",
    "move",
    "control",
    "global_load",
    "global_store",
    "shared_load",
    "shared_store",
    "local",
    "param",
    "atomic",
    "cp_async",
    "ldmatrix",
    "mma",
    "shuffle",
    "vote",
    "barrier",
    "other",
]

LINE_LOG = np.dtype(
    [("cta", "<i4"), ("order", "<i4"), ("line", "<u8"), ("sectors", "u1"), ("kind", "u1")]
)
"""One row per distinct 128-byte line of one warp request to global memory.

`cta` is the linear CTA, `order` the request's index within the CTA, `line` the virtual address
divided by 128, `sectors` a 4-bit mask of the 32-byte sectors touched, `kind` one of `KIND_*`.
"""


def line_hash(line: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash by which lines are sampled: Fibonacci hashing, upper bits."""
    return (line * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)


KIND_LOAD, KIND_STORE, KIND_ATOMIC, KIND_LOAD_BYPASS_L1 = 0, 1, 2, 3


@dataclass(frozen=True)
class Site:
    """One memory, select, barrier or matrix instruction of the PTX and how it was used."""

    index: int
    """Index of the instruction in the PTX entry; stable for one kernel."""
    opcode: str
    space: Literal["global", "shared", "local", ""]
    kind: Literal["load", "store", "atomic", "cp_async", "ldmatrix", "mma", "select", "barrier"]
    bytes_per_lane: int
    file: str
    line: int
    """Source line from `.loc`, 0 when there is none."""
    args: tuple[str, ...]
    """Names of the kernel arguments whose buffers were touched, in order of first touch."""
    requests: int
    """Warp-level executions with at least one active lane."""
    lanes: int
    """Active lanes, summed."""
    sectors: int
    """Distinct 32-byte sectors per request, summed (global); 0 elsewhere."""
    wavefronts: int
    """Shared-memory wavefronts, summed; 0 elsewhere."""
    ideal: int
    """The least `sectors` (global) or `wavefronts` (shared) that as many bytes could need."""
    uniform_true: int = 0
    """Selects: executions in which every lane took the first operand."""
    uniform_false: int = 0
    """Selects: executions in which every lane took the second operand."""
    max_conflict: int = 0
    """Atomics: the most lanes of one request that hit one address; summed in `conflicts`."""
    conflicts: int = 0


@dataclass(frozen=True)
class LaunchCounters:
    """Counts of one launch, scaled to the whole grid when `ctas_counted < ctas`."""

    kernel: str
    grid: tuple[int, int, int]
    threads_per_cta: int
    ctas: int
    ctas_counted: int
    instructions: dict[InstructionClass, int]
    """Warp-level executed PTX instructions by class."""
    thread_instructions: int
    """Lane-level executed PTX instructions (active, predicate true)."""
    opcodes: dict[str, int]
    """Warp-level executions by full opcode."""
    branches: int
    divergent_branches: int
    barriers: int
    flops: dict[str, int]
    """Lane-level floating-point operations by dtype (`fp32`, `fp64`, `fp16`), and tensor-core ones
    by input dtype (`mma_fp16`, `mma_bf16`, `mma_tf32`, `mma_int8`); fma counts two."""
    sites: tuple[Site, ...]
    lines: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, LINE_LOG))
    """The line log of the counted CTAs, see `LINE_LOG`; sampled lines if `line_sampling > 1`."""
    line_sampling: int = 1
    """Only lines whose hash falls in 1 of this many classes are logged (SHARDS sampling)."""
    static_instructions: int = 0
    """PTX instructions in the entry, parameter loads aside."""
    pipeline_stages: int = 1
    """Groups of asynchronous copies in flight: one more than the largest `cp.async.wait_group`."""

    @property
    def coverage(self) -> float:
        """Share of the grid's CTAs that were counted."""
        return self.ctas_counted / self.ctas if self.ctas else 1.0


@dataclass(frozen=True)
class Finding:
    """A sanitizer's finding: an access that silicon would fault on or silently corrupt."""

    kind: Literal["out_of_bounds", "misaligned", "null"]
    kernel: str
    file: str
    line: int
    opcode: str
    arg: str
    """Kernel argument whose buffer is nearest, or "" if none is near."""
    distance_bytes: int
    """How far past the end (positive) or before the start (negative) of that buffer."""
    address: int
    cta: int
    lane: int
    lanes: int
    """How many lane accesses of this site were bad."""

    def sentence(self) -> str:
        """One line for people, e.g. `store of 4 bytes 24 bytes past the end of 'y' (k.py:12)`."""
        where = f"{self.file}:{self.line}" if self.line else "no source line"
        if self.kind == "misaligned":
            return f"{self.kernel}: misaligned {self.opcode} at {self.address:#x} ({where})"
        if not self.arg:
            return f"{self.kernel}: {self.opcode} at {self.address:#x}, near no buffer ({where})"
        side = "past the end" if self.distance_bytes > 0 else "before the start"
        return (
            f"{self.kernel}: {self.opcode} {abs(self.distance_bytes)} bytes {side} of"
            f" '{self.arg}' ({where}; {self.lanes} lane accesses, first in CTA {self.cta})"
        )
