"""What is known about one entry call after its trace was replayed: the timing model's whole input.

Plain data that travels as JSON between the device process and the judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kopt.gpu.counters import Finding, LaunchCounters


@dataclass(frozen=True)
class WarpPath:
    """One warp alone over a piece of SASS, in cycles: see `kopt.gpu.sass`."""

    issue_cycles: float = 0.0
    """Issue and fixed latencies, nothing waited for."""
    l1_cycles: float = 0.0
    """All of it, when every global load hits the L1."""
    l2_cycles: float = 0.0
    dram_cycles: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    """Cycles waited for results when global loads come from DRAM, by class: `global`, `shared`,
    `shuffle`, `variable`, `barrier`, `drain`, `fence`, `l1`."""


@dataclass(frozen=True)
class CompiledFacts:
    """Read from the cubin that ptxas made of the PTX. Provenance `compiled`."""

    registers: int
    """Per thread."""
    spill_store_bytes: int
    spill_load_bytes: int
    """Per thread, static."""
    static_shared_bytes: int
    dynamic_shared_bytes: int
    ctas_per_sm: int
    limiter: Literal["registers", "shared_memory", "warps", "ctas"]
    occupancy: float
    """Theoretical: resident warps over the SM's maximum, 0 to 1."""
    sass: dict[str, int]
    """Static SASS instructions: `total`, `anchors` (made one for one from PTX), `pipe_<pipe>`, and
    by opcode, e.g. `ffma`, `hmma`, `ldg`, `mufu`."""
    sass_loop: dict[str, int] = field(default_factory=dict)
    """Those of them inside loops."""
    straight: WarpPath = WarpPath()
    """The code outside loops."""
    loop: WarpPath = WarpPath()
    """Once around the loops."""
    loads_in_flight: float = 1.0
    """Global loads that a warp has in flight when it waits for one."""


@dataclass(frozen=True)
class CacheTraffic:
    """Which level served the requests of one launch. Bytes, provenance `derived`."""

    l1_requested_bytes: int
    """Sectors requested from L1 × 32."""
    l1_hit_bytes: int
    l2_read_bytes: int
    l2_write_bytes: int
    l2_hit_bytes: int
    dram_read_bytes: int
    dram_write_bytes: int
    compulsory_read_bytes: int
    """Distinct bytes (by sector) that the launch read."""
    compulsory_write_bytes: int
    coverage: float
    """Share of the grid's CTAs whose accesses were seen."""
    atomic_hottest_requests: int = 0
    """Atomic requests on the 32-byte sector that gets most of them."""
    l1_wavefronts: int = 0
    """Distinct 128-byte lines of all requests to global memory: passes of the L1's data stage."""


@dataclass(frozen=True)
class LaunchFacts:
    """One kernel launch."""

    ordinal: int
    """Position among the call's launches and operators."""
    kernel: str
    key: str
    """`Kernel.key` in the trace."""
    grid: tuple[int, int, int]
    threads_per_cta: int
    counters: LaunchCounters
    compiled: CompiledFacts
    traffic: CacheTraffic
    host_line: str = ""


@dataclass(frozen=True)
class OperatorFacts:
    """One PyTorch operator that launches no kernel of ours."""

    ordinal: int
    name: str
    dtype: str
    read_bytes: int
    write_bytes: int
    flops: int
    output_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class CallFacts:
    """One entry call."""

    gpu: str
    launches: tuple[LaunchFacts, ...]
    operators: tuple[OperatorFacts, ...]
    host_copy_bytes: int
    """Copied from the host after the inputs."""
    device_read_bytes: int
    synchronisations: int
    peak_bytes: int
    """Device memory, inputs included."""
    findings: tuple[Finding, ...] = ()
    mutated_inputs: tuple[int, ...] = ()
    """Positions of inputs whose bytes changed."""
    input_bytes: int = 0
    output_bytes: int = 0
