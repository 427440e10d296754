"""The metrics that a person, an agent and a report see: at most 25, each with its meaning.

`docs/metrics.md` is generated from `VOCABULARY`: `python -m kopt.gpu.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kopt.gpu.facts import LaunchFacts
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.timing import LaunchTime

Provenance = Literal["counted", "compiled", "derived", "predicted"]


@dataclass(frozen=True)
class Input:
    """What a metric is computed from."""

    spec: DeviceSpec
    launch: LaunchFacts
    time: LaunchTime


@dataclass(frozen=True)
class MetricKind:
    """One metric of the vocabulary."""

    name: str
    unit: str
    provenance: Provenance
    hardware: str
    """The Nsight Compute counter with the same meaning on sm_80 and sm_86, "" if there is none."""
    hardware_90: str
    """The same on sm_90; "" if it is the same counter or there is none."""
    formula: str
    value: Callable[[Input], float]
    sentence: Callable[[Input, float], str]


@dataclass(frozen=True)
class MetricValue:
    """A metric's value for one launch."""

    name: str
    value: float
    unit: str
    provenance: Provenance
    sentence: str


def _global(i: Input, *kinds: str) -> list[tuple[int, int, int]]:
    return [
        (s.requests, s.sectors, s.ideal)
        for s in i.launch.counters.sites
        if s.space == "global" and s.kind in kinds
    ]


def _per_request(i: Input, *kinds: str) -> float:
    sites = _global(i, *kinds)
    requests = sum(r for r, _, _ in sites)
    return sum(s for _, s, _ in sites) / requests if requests else 0.0


def _excess(i: Input, *kinds: str) -> float:
    sites = _global(i, *kinds)
    ideal = sum(n for _, _, n in sites)
    return sum(s for _, s, _ in sites) / ideal if ideal else 1.0


def _coalescing(i: Input, value: float, *kinds: str) -> str:
    excess = _excess(i, *kinds)
    if not value:
        return "there are no such requests"
    if excess < 1.25:
        return "lanes of a warp touch neighbouring bytes"
    return f"{excess:.1f}x the sectors that as many bytes need: lanes are far apart"


def _shared(i: Input) -> float:
    sites = [s for s in i.launch.counters.sites if s.space == "shared"]
    ideal = sum(s.ideal for s in sites)
    return sum(s.wavefronts for s in sites) / ideal if ideal else 1.0


def _dram(i: Input) -> int:
    return i.launch.traffic.dram_read_bytes + i.launch.traffic.dram_write_bytes


def _compulsory(i: Input) -> int:
    return i.launch.traffic.compulsory_read_bytes + i.launch.traffic.compulsory_write_bytes


def _read_ratio(i: Input) -> float:
    need = i.launch.traffic.compulsory_read_bytes
    return i.launch.traffic.dram_read_bytes / need if need else 1.0


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _count(i: Input, *names: str) -> int:
    return sum(i.launch.counters.instructions.get(n, 0) for n in names)  # type: ignore[call-overload]


def _masked(i: Input) -> float:
    selects = [s for s in i.launch.counters.sites if s.kind == "select" and s.requests]
    total = sum(s.requests for s in selects)
    one_sided = sum(min(s.uniform_false, s.requests) for s in selects)
    return _share(one_sided, total)


def _tensor_flops(i: Input) -> int:
    return sum(n for name, n in i.launch.counters.flops.items() if name.startswith("mma_"))


def _spills(i: Input) -> float:
    return float(i.launch.compiled.spill_load_bytes + i.launch.compiled.spill_store_bytes)


def _contention(i: Input) -> float:
    atomics = [s for s in i.launch.counters.sites if s.kind == "atomic"]
    requests = sum(s.requests for s in atomics)
    return sum(s.conflicts for s in atomics) / requests if requests else 0.0


VOCABULARY: tuple[MetricKind, ...] = (
    MetricKind(
        "dram_bytes", "byte", "derived", "dram__bytes.sum", "",
        "sectors that miss the modelled L2 x 32, written-back sectors included",
        lambda i: float(_dram(i)),
        lambda i, v: f"{v / max(1, _compulsory(i)):.2f}x the {_compulsory(i) / 1e6:.1f} MB it must touch",
    ),
    MetricKind(
        "dram_read_over_compulsory", "ratio", "derived", "", "",
        "DRAM read bytes / distinct bytes read",
        _read_ratio,
        lambda i, v: "every byte comes from DRAM once" if v < 1.1
        else f"the same bytes come from DRAM {v:.2f} times",
    ),
    MetricKind(
        "l2_bytes", "byte", "derived", "lts__t_bytes.sum", "",
        "sectors that reach the L2 x 32",
        lambda i: float(i.launch.traffic.l2_read_bytes + i.launch.traffic.l2_write_bytes),
        lambda i, v: f"{v / max(1, _dram(i)):.1f}x the DRAM traffic",
    ),
    MetricKind(
        "l2_hit_rate", "%", "derived", "lts__t_sector_hit_rate.pct", "",
        "sectors found in the modelled L2 / sectors that reach it",
        lambda i: _share(
            i.launch.traffic.l2_hit_bytes,
            i.launch.traffic.l2_read_bytes + i.launch.traffic.l2_write_bytes,
        ),
        lambda i, v: "reuse is caught by the L2" if v > 60 else "little is used twice within the L2's reach",
    ),
    MetricKind(
        "l1_hit_rate", "%", "derived", "l1tex__t_sector_hit_rate.pct", "",
        "sectors found in the modelled L1 / sectors requested",
        lambda i: _share(i.launch.traffic.l1_hit_bytes, i.launch.traffic.l1_requested_bytes),
        lambda i, v: "reuse is caught by the L1" if v > 40 else "the L1 catches little",
    ),
    MetricKind(
        "global_load_sectors_per_request", "sector", "counted",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "",
        "32-byte sectors / warp requests, loads and cp.async",
        lambda i: _per_request(i, "load", "cp_async"),
        lambda i, v: _coalescing(i, v, "load", "cp_async"),
    ),
    MetricKind(
        "global_store_sectors_per_request", "sector", "counted",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio", "",
        "32-byte sectors / warp requests, stores",
        lambda i: _per_request(i, "store"),
        lambda i, v: _coalescing(i, v, "store"),
    ),
    MetricKind(
        "shared_wavefronts_over_ideal", "ratio", "counted",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum over its conflict-free part", "",
        "wavefronts / wavefronts without bank conflicts",
        _shared,
        lambda i, v: "no bank conflicts to speak of" if v < 1.2 else f"bank conflicts cost {v:.1f}x the passes",
    ),
    MetricKind(
        "atomic_conflicts_per_request", "lane", "counted", "", "",
        "lanes of one request that hit an address already hit by it / requests",
        _contention,
        lambda i, v: "no lanes of a warp collide" if v < 0.01 else f"{v:.1f} lanes of each request wait for others",
    ),
    MetricKind(
        "atomic_hottest_line_requests", "request", "counted", "", "",
        "atomic requests on the 128-byte line that gets most",
        lambda i: float(i.launch.traffic.atomic_hottest_requests),
        lambda i, v: "no atomics" if not v else f"one line takes {v:,.0f} atomic requests, one after the other",
    ),
    MetricKind(
        "warp_instructions", "instruction", "counted", "smsp__inst_executed.sum", "",
        "executed PTX instructions of all warps; SASS counts differ",
        lambda i: float(sum(i.launch.counters.instructions.values())),
        lambda i, v: f"{32 * v / max(1, _compulsory(i) / 4):.1f} lane instructions for every 4 bytes touched",
    ),
    MetricKind(
        "special_function_instructions", "instruction", "counted",
        "smsp__inst_executed_pipe_xu.sum", "", "ex2, lg2, sin, cos, rcp, rsqrt, sqrt of all warps",
        lambda i: float(_count(i, "sfu")),
        lambda i, v: "none" if not v else f"the pipe's bound is {i.time.terms.get('sfu_pipe', 0):.1f} us",
    ),
    MetricKind(
        "tensor_flops", "flop", "counted", "sm__ops_path_tensor_src_fp16.sum",
        "sm__ops_path_tensor_src_fp16.sum", "2 x m x n x k of every mma.sync",
        lambda i: float(_tensor_flops(i)),
        lambda i, v: "tensor cores are not used" if not v
        else f"the pipe's bound is {i.time.terms.get('tensor_pipe', 0):.1f} us",
    ),
    MetricKind(
        "fp32_flops", "flop", "counted", "smsp__sass_thread_inst_executed_op_fp32.sum", "",
        "lane-level fp32 operations, fma counts two",
        lambda i: float(i.launch.counters.flops.get("fp32", 0)),
        lambda i, v: f"{v / max(1, _dram(i)):.2f} flop per DRAM byte",
    ),
    MetricKind(
        "barriers_per_warp", "barrier", "counted", "smsp__inst_executed_op_barrier.sum per warp", "",
        "executed bar.sync / warps",
        lambda i: i.launch.counters.barriers
        / max(1, i.launch.counters.ctas * -(-i.launch.threads_per_cta // 32)),
        lambda i, v: "no barriers" if not v else "each makes all warps of a CTA wait for the slowest",
    ),
    MetricKind(
        "one_sided_selects", "%", "counted", "", "",
        "selects in which every lane took the second operand / selects",
        _masked,
        lambda i, v: "masks are used" if v < 10 else f"{v:.0f} % of the selects throw away a whole warp's values",
    ),
    MetricKind(
        "registers_per_thread", "register", "compiled", "launch__registers_per_thread", "",
        "ptxas", lambda i: float(i.launch.compiled.registers),
        lambda i, v: "limits the resident warps" if i.launch.compiled.limiter == "registers" else "not the limit",
    ),
    MetricKind(
        "spill_bytes_per_thread", "byte", "compiled", "sass__inst_executed_register_spilling", "",
        "ptxas: spill loads + stores", _spills,
        lambda i, v: "no spills" if not v else "registers spill to local memory",
    ),
    MetricKind(
        "shared_bytes_per_cta", "byte", "compiled", "launch__shared_mem_per_block", "",
        "static + dynamic",
        lambda i: float(i.launch.compiled.static_shared_bytes + i.launch.compiled.dynamic_shared_bytes),
        lambda i, v: "limits the resident CTAs" if i.launch.compiled.limiter == "shared_memory" else "not the limit",
    ),
    MetricKind(
        "theoretical_occupancy", "%", "compiled", "sm__maximum_warps_per_active_cycle_pct", "",
        "resident warps / the SM's maximum",
        lambda i: 100 * i.launch.compiled.occupancy,
        lambda i, v: f"limited by {i.launch.compiled.limiter.replace('_', ' ')}",
    ),
    MetricKind(
        "waves", "wave", "derived", "launch__waves_per_multiprocessor", "",
        "CTAs / (CTAs per SM x SMs)",
        lambda i: i.time.waves,
        lambda i, v: f"{i.launch.counters.ctas:,} CTAs on {i.spec.sms} SMs"
        + (": most of the GPU idles" if i.launch.counters.ctas < i.spec.sms / 2 else ""),
    ),
    MetricKind(
        "bytes_in_flight_per_sm", "byte", "derived", "", "",
        "bytes of independent loads of a warp x active warps",
        lambda i: i.time.bytes_in_flight,
        lambda i, v: f"the DRAM needs {_needed(i.spec):,.0f} in flight per SM to be busy",
    ),
    MetricKind(
        "async_copy_stages", "stage", "counted", "", "",
        "groups of cp.async in flight",
        lambda i: float(i.launch.counters.pipeline_stages if _count(i, "cp_async") else 0),
        lambda i, v: "loads are not pipelined" if not v else f"{v:.0f} tiles are loaded ahead",
    ),
    MetricKind(
        "predicted_time_us", "us", "predicted", "", "", "the timing model",
        lambda i: i.time.time_us,
        lambda i, v: f"largest bound: {i.time.bottleneck.replace('_', ' ')}",
    ),
)  # fmt: skip


def _needed(spec: DeviceSpec) -> float:
    """Bytes in flight per SM that keep the DRAM busy (Little's law)."""
    return spec.dram_bytes_per_s * spec.dram_latency_cycles / spec.clock_hz / spec.sms


def measure(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[MetricValue]:
    """All metrics of one launch."""
    given = Input(spec, launch, time)
    found = []
    for kind in VOCABULARY:
        value = kind.value(given)
        provenance = kind.provenance
        if provenance == "counted" and launch.counters.coverage < 1:
            provenance = "derived"
        found.append(
            MetricValue(kind.name, value, kind.unit, provenance, kind.sentence(given, value))
        )
    return found


def table() -> str:
    """`docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m kopt.gpu.metrics > docs/metrics.md`. A `counted` metric of a launch of which only a",
        "sample of CTAs was counted is shown as `derived`. Predicted numbers never have a hardware counter's name.",
        "",
        "| metric | unit | provenance | hardware counter (sm_80, sm_86) | sm_90 | formula |",
        "|---|---|---|---|---|---|",
    ]
    for kind in VOCABULARY:
        hardware = f"`{kind.hardware}`" if kind.hardware else "–"
        newer = f"`{kind.hardware_90}`" if kind.hardware_90 else ("same" if kind.hardware else "–")
        lines.append(
            f"| `{kind.name}` | {kind.unit} | {kind.provenance} | {hardware} | {newer} | {kind.formula} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
