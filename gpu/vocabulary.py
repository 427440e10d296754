"""The metrics that a person, an agent and a report see: at most 25, each with its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from kopt.gpu.counters import InstructionClass, Site
from kopt.gpu.demand import executed, needed_in_flight, warps_per_cta
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
    """The Nsight Compute counter that measures the same on sm_80 and sm_86, "" if none does."""
    hopper: str
    """The same on sm_90."""
    formula: str
    value: Callable[[Input], float]
    sentence: Callable[[Input, float], str]


def _sites(i: Input, space: str, *kinds: str) -> list[Site]:
    found = i.launch.counters.sites
    return [s for s in found if s.space == space and (not kinds or s.kind in kinds) and s.requests]


def _per_request(sites: Iterable[Site], what: Callable[[Site], int]) -> float:
    kept = list(sites)
    requests = sum(s.requests for s in kept)
    return sum(what(s) for s in kept) / requests if requests else 0.0


def over_ideal(sites: Iterable[Site]) -> float:
    """Sectors or wavefronts over the fewest that as many bytes need; 1 where there are none."""
    kept = list(sites)
    ideal = sum(s.ideal for s in kept)
    return sum(s.sectors + s.wavefronts for s in kept) / ideal if ideal else 1.0


def _coalescing(sites: list[Site]) -> str:
    if not sites:
        return "there are no such requests"
    excess = over_ideal(sites)
    if excess < 1.25:
        return "lanes of a warp touch neighbouring bytes"
    return f"{excess:.1f}x the sectors that as many bytes need: lanes are far apart"


def _dram(i: Input) -> int:
    return i.launch.traffic.dram_read_bytes + i.launch.traffic.dram_write_bytes


def _compulsory(i: Input) -> int:
    return i.launch.traffic.compulsory_read_bytes + i.launch.traffic.compulsory_write_bytes


def _l2(i: Input) -> int:
    return i.launch.traffic.l2_read_bytes + i.launch.traffic.l2_write_bytes


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _count(i: Input, *names: InstructionClass) -> int:
    return sum(i.launch.counters.instructions.get(n, 0) for n in names)


def _warps(i: Input) -> int:
    return max(1, i.launch.counters.ctas) * warps_per_cta(i.launch)


def _masked(i: Input) -> float:
    selects = _sites(i, "", "select")
    return _share(sum(s.uniform_false for s in selects), sum(s.requests for s in selects))


def _tensor_flops(i: Input) -> int:
    return sum(n for name, n in i.launch.counters.flops.items() if name.startswith("mma_"))


def _limits(i: Input, what: str, yes: str) -> str:
    return yes if i.launch.compiled.limiter == what else "not what limits the resident CTAs"


def _memory_wait(i: Input) -> float:
    compiled = i.launch.compiled
    path = compiled.loop if compiled.loop.dram_cycles else compiled.straight
    return _share(path.waits.get("global", 0.0), path.dram_cycles)


def _bound(i: Input, term: str) -> str:
    share = _share(i.time.terms.get(term, 0.0), i.time.time_us)
    return f"their pipe alone would need {share:.0f} % of the predicted time"


VOCABULARY: tuple[MetricKind, ...] = (
    MetricKind(
        "dram_bytes", "byte", "derived", "dram__bytes.sum", "dram__bytes.sum",
        "32 x sectors read that miss the modelled L2, and sectors made dirty in it",
        lambda i: float(_dram(i)),
        lambda i, v: f"{v / max(1, _compulsory(i)):.2f}x the {_compulsory(i) / 1e6:.1f} MB that"
        " the launch touches",
    ),
    MetricKind(
        "dram_read_over_compulsory", "ratio", "derived", "", "",
        "DRAM read bytes / distinct bytes read",
        lambda i: i.launch.traffic.dram_read_bytes
        / max(1, i.launch.traffic.compulsory_read_bytes),
        lambda i, v: "the L2 already held part of what is read" if v < 0.9
        else "every byte comes from DRAM once" if v < 1.15
        else f"the same bytes come from DRAM {v:.2f} times",
    ),
    MetricKind(
        "l2_bytes", "byte", "derived", "lts__t_bytes.sum", "lts__t_bytes.sum",
        "32 x sectors that reach the L2",
        lambda i: float(_l2(i)),
        lambda i, v: f"{v / max(1, _dram(i)):.1f}x the DRAM traffic",
    ),
    MetricKind(
        "l2_hit_rate", "%", "derived", "lts__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct",
        "sectors found in the modelled L2 / sectors that reach it",
        lambda i: _share(i.launch.traffic.l2_hit_bytes, _l2(i)),
        lambda i, v: "reuse is caught by the L2" if v > 60
        else "little is used again while the L2 still has it",
    ),
    MetricKind(
        "l1_hit_rate", "%", "derived", "l1tex__t_sector_hit_rate.pct",
        "l1tex__t_sector_hit_rate.pct", "sectors found in the modelled L1 / sectors requested",
        lambda i: _share(i.launch.traffic.l1_hit_bytes, i.launch.traffic.l1_requested_bytes),
        lambda i, v: "reuse is caught by the L1" if v > 40 else "the L1 catches little",
    ),
    MetricKind(
        "global_load_sectors_per_request", "sector", "counted",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
        "32-byte sectors / warp requests, loads and cp.async",
        lambda i: _per_request(_sites(i, "global", "load", "cp_async"), lambda s: s.sectors),
        lambda i, v: _coalescing(_sites(i, "global", "load", "cp_async")),
    ),
    MetricKind(
        "global_store_sectors_per_request", "sector", "counted",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
        "32-byte sectors / warp requests, stores",
        lambda i: _per_request(_sites(i, "global", "store"), lambda s: s.sectors),
        lambda i, v: _coalescing(_sites(i, "global", "store")),
    ),
    MetricKind(
        "shared_wavefronts_over_ideal", "ratio", "counted",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum / its conflict-free part",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum / its conflict-free part",
        "wavefronts / wavefronts without bank conflicts",
        lambda i: over_ideal(_sites(i, "shared")),
        lambda i, v: "shared memory is not used" if not _sites(i, "shared")
        else "no bank conflicts to speak of" if v < 1.2
        else f"bank conflicts make {v:.1f}x the passes",
    ),
    MetricKind(
        "atomic_conflicts_per_request", "lane", "counted", "", "",
        "lanes of a request that hit an address that another lane hits / requests",
        lambda i: _per_request(_sites(i, "global", "atomic"), lambda s: s.conflicts),
        lambda i, v: "no lanes of a warp collide" if v < 0.01
        else f"{v:.1f} lanes of each request wait for others",
    ),
    MetricKind(
        "atomic_hottest_sector_requests", "request", "derived", "", "",
        "atomic requests on the 32-byte sector that gets most",
        lambda i: float(i.launch.traffic.atomic_hottest_requests),
        lambda i, v: "no atomics" if not v
        else f"one sector takes {v:,.0f} atomic requests, one after the other",
    ),
    MetricKind(
        "warp_instructions", "instruction", "derived", "smsp__inst_executed.sum",
        "smsp__inst_executed.sum",
        "SASS outside loops x warps + SASS in loops x trips, trips from counted PTX memory,"
        " matrix, shuffle and barrier instructions",
        lambda i: executed(i.launch, "total"),
        lambda i, v: f"{v / _warps(i):,.0f} for each warp; issuing them takes"
        f" {_share(i.time.terms.get('issue', 0.0), i.time.time_us):.0f} % of the predicted time",
    ),
    MetricKind(
        "active_lanes_per_instruction", "lane", "counted",
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "lane-level PTX instructions / warp-level ones",
        lambda i: i.launch.counters.thread_instructions
        / max(1, sum(i.launch.counters.instructions.values())),
        lambda i, v: "no divergence to speak of" if v > 30
        else f"{32 - v:.0f} of 32 lanes idle: branches diverge",
    ),
    MetricKind(
        "special_function_instructions", "instruction", "derived",
        "sm__inst_executed_pipe_xu.sum", "sm__inst_executed_pipe_xu.sum",
        "as warp_instructions: MUFU and slow conversions",
        lambda i: executed(i.launch, "pipe_xu"),
        lambda i, v: "none" if not v else _bound(i, "sfu_pipe"),
    ),
    MetricKind(
        "tensor_flops", "flop", "counted",
        "sm__pipe_tensor_cycles_active.avg x the dense rate",
        "sm__inst_executed_pipe_tensor_op_gmma.sum x its size", "2 x m x n x k of every mma.sync",
        lambda i: float(_tensor_flops(i)),
        lambda i, v: "tensor cores are not used" if not v else _bound(i, "tensor_pipe"),
    ),
    MetricKind(
        "fp32_flops", "flop", "counted",
        "smsp__sass_thread_inst_executed_op_{fadd,fmul,2 x ffma}_pred_on.sum",
        "smsp__sass_thread_inst_executed_op_{fadd,fmul,2 x ffma}_pred_on.sum",
        "lane-level fp32 operations, fma counts two",
        lambda i: float(i.launch.counters.flops.get("fp32", 0)),
        lambda i, v: f"{v / max(1, _dram(i)):.2f} for each byte of DRAM traffic",
    ),
    MetricKind(
        "barriers_per_warp", "barrier", "counted", "", "", "executed bar.sync / warps",
        lambda i: i.launch.counters.barriers / _warps(i),
        lambda i, v: "no barriers" if not v
        else "at each, all warps of a CTA wait for the slowest",
    ),
    MetricKind(
        "masked_selects", "%", "counted", "", "",
        "selects in which every lane took the second operand / selects",
        _masked,
        lambda i, v: "hardly any" if v < 10
        else f"{v:.0f} % of the selects throw away a whole warp's values",
    ),
    MetricKind(
        "registers_per_thread", "register", "compiled", "launch__registers_per_thread",
        "launch__registers_per_thread", "ptxas",
        lambda i: float(i.launch.compiled.registers),
        lambda i, v: _limits(i, "registers", "they limit the resident CTAs"),
    ),
    MetricKind(
        "spill_bytes_per_thread", "byte", "compiled", "sass__inst_executed_register_spilling",
        "sass__inst_executed_register_spilling", "ptxas: spill loads + spill stores",
        lambda i: float(
            i.launch.compiled.spill_load_bytes + i.launch.compiled.spill_store_bytes
        ),
        lambda i, v: "no spills" if not v else "registers spill to local memory",
    ),
    MetricKind(
        "shared_bytes_per_cta", "byte", "compiled", "launch__shared_mem_per_block",
        "launch__shared_mem_per_block", "static + dynamic, without what the system reserves",
        lambda i: float(
            i.launch.compiled.static_shared_bytes + i.launch.compiled.dynamic_shared_bytes
        ),
        lambda i, v: _limits(i, "shared_memory", "it limits the resident CTAs"),
    ),
    MetricKind(
        "theoretical_occupancy", "%", "compiled", "sm__maximum_warps_per_active_cycle_pct",
        "sm__maximum_warps_per_active_cycle_pct", "resident warps / the SM's maximum",
        lambda i: 100 * i.launch.compiled.occupancy,
        lambda i, v: f"limited by {i.launch.compiled.limiter.replace('_', ' ')}",
    ),
    MetricKind(
        "waves", "wave", "derived", "launch__waves_per_multiprocessor",
        "launch__waves_per_multiprocessor", "CTAs / (CTAs per SM x SMs)",
        lambda i: i.time.waves,
        lambda i, v: f"{i.launch.counters.ctas:,} CTAs on {i.spec.sms} SMs"
        + (
            f": {i.spec.sms - i.launch.counters.ctas} SMs idle"
            if i.launch.counters.ctas < i.spec.sms else ""
        ),
    ),
    MetricKind(
        "bytes_in_flight_per_sm", "byte", "derived", "", "",
        "loads in flight when a warp waits (SASS) x bytes of a request x resident warps",
        lambda i: i.time.bytes_in_flight,
        lambda i, v: f"{v / needed_in_flight(i.spec):.1f}x what keeps the DRAM busy"
        f" ({needed_in_flight(i.spec):,.0f})",
    ),
    MetricKind(
        "lone_warp_memory_wait", "%", "derived", "", "",
        "cycles a warp alone waits for global loads from DRAM / its cycles, in loops if there are"
        " any (SASS control codes)",
        _memory_wait,
        lambda i, v: "loads are issued long before their use" if v < 25
        else f"a warp spends {v:.0f} % of its path waiting; other warps must fill it",
    ),
    MetricKind(
        "predicted_time_us", "us", "predicted", "", "", "the timing model (`kopt.gpu.timing`)",
        lambda i: i.time.time_us,
        lambda i, v: f"predicted; largest bound: {i.time.bottleneck.replace('_', ' ')}",
    ),
)  # fmt: skip
