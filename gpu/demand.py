"""What one launch asks of each part of the GPU, before any rate is applied: cycles and bytes.

The executor counts PTX; the GPU runs SASS. Global memory, barrier, shuffle and matrix instructions
(*anchors*) are made one for one, so their dynamic PTX counts hold. Everything else is counted in
the SASS: the straight-line part ran once for each warp, and the loops ran as often as the anchors
in them say. That undoes ptxas's fusing and unrolling alike; it takes all loops of a kernel to turn
equally often.
"""

from __future__ import annotations

from dataclasses import dataclass

from kopt.gpu.counters import InstructionClass, LaunchCounters
from kopt.gpu.facts import LaunchFacts, WarpPath
from kopt.gpu.spec import DeviceSpec

CTA_START_CYCLES = 200.0
"""From a free slot on an SM to the first instruction of its next CTA. A guess."""

_ANCHORS: tuple[InstructionClass, ...] = (
    "global_load", "global_store", "atomic", "cp_async", "ldmatrix", "mma", "shuffle", "barrier",
)  # fmt: skip


@dataclass(frozen=True)
class Demand:
    """One launch. Cycles are of the average SM; `imbalance` makes them the busiest SM's."""

    sm_cycles: dict[str, float]
    """By term: `issue`, the pipes, `shared_memory` or `l1_bandwidth`."""
    l2_bytes: float
    dram_bytes: float
    atomic_cycles: float
    """Of the whole L2."""
    path_issue_cycles: float
    """A CTA alone: issue and fixed latencies."""
    path_wait_cycles: float
    """A CTA alone: waiting for results."""
    turns: float
    """CTAs that one slot runs one after the other, on average and at least one."""
    busiest_turns: int
    imbalance: float
    """CTAs of the busiest SM over the average."""
    sms_used: int
    trips: float
    """Times round the loops for each warp."""


def warps_per_cta(launch: LaunchFacts) -> int:
    """Warps, the last one perhaps partly filled."""
    return -(-launch.threads_per_cta // 32)


def demand(spec: DeviceSpec, launch: LaunchFacts) -> Demand:
    """What the launch asks for on this device."""
    ctas = max(1, launch.counters.ctas)
    resident = max(1, launch.compiled.ctas_per_sm)
    busiest = -(-ctas // spec.sms)
    passes, trips = loop_trips(launch)
    waiting = _path(spec, launch, passes, trips)
    compiled = launch.compiled
    issue = passes * compiled.straight.issue_cycles + trips * compiled.loop.issue_cycles
    traffic = launch.traffic
    spilled = _spilled_bytes(launch, passes, trips)
    to_l2, to_dram = _spill_misses(spec, launch)
    return Demand(
        sm_cycles=_sm_cycles(spec, launch, passes, trips),
        l2_bytes=traffic.l2_read_bytes + traffic.l2_write_bytes + spilled * to_l2,
        dram_bytes=traffic.dram_read_bytes + traffic.dram_write_bytes + spilled * to_dram,
        atomic_cycles=_atomic_cycles(spec, launch),
        path_issue_cycles=issue + CTA_START_CYCLES,
        path_wait_cycles=max(0.0, waiting - issue),
        turns=max(1.0, ctas / (spec.sms * resident)),
        busiest_turns=-(-busiest // resident),
        imbalance=busiest * spec.sms / ctas,
        sms_used=min(ctas, spec.sms),
        trips=trips,
    )


def bytes_in_flight(spec: DeviceSpec, launch: LaunchFacts) -> float:
    """Bytes that a busy SM has asked for when its warps wait for loads."""
    loads = [
        s for s in launch.counters.sites
        if s.space == "global" and s.kind in {"load", "cp_async"} and s.requests
    ]  # fmt: skip
    requests = sum(s.requests for s in loads)
    if not requests:
        return 0.0
    each = sum(s.lanes * s.bytes_per_lane for s in loads) / requests
    return each * launch.compiled.loads_in_flight * _resident(spec, launch) * warps_per_cta(launch)


def _resident(spec: DeviceSpec, launch: LaunchFacts) -> int:
    """CTAs on a busy SM at a time."""
    busiest = -(-max(1, launch.counters.ctas) // spec.sms)
    return min(max(1, launch.compiled.ctas_per_sm), busiest)


def needed_in_flight(spec: DeviceSpec) -> float:
    """Bytes per SM that keep the DRAM at its ceiling (Little's law)."""
    return spec.dram_ceiling_bytes_per_s * spec.dram_latency_cycles / spec.clock_hz / spec.sms


def loop_trips(launch: LaunchFacts) -> tuple[float, float]:
    """How often a warp ran the straight-line code (1, or less where branches skip it) and how
    often it went round the loops."""
    counters, sass, loop = launch.counters, launch.compiled.sass, launch.compiled.sass_loop
    warps = max(1, counters.ctas) * warps_per_cta(launch)
    ran = sum(counters.instructions.get(name, 0) for name in _ANCHORS) / warps
    inside = loop.get("anchors", 0)
    outside = sass.get("anchors", 0) - inside
    if not sass.get("total"):
        return 0.0, 0.0
    if not inside and loop.get("total"):
        # Loops without an anchor: all instructions must serve, as if PTX and SASS were as many.
        ran = sum(counters.instructions.values()) / warps
        inside, outside = loop["total"], sass["total"] - loop["total"]
    if not inside:
        return (min(1.0, ran / outside) if outside else 1.0), 0.0
    if ran < outside:
        return ran / outside, 0.0
    return 1.0, (ran - outside) / inside


def executed(launch: LaunchFacts, name: str) -> float:
    """Warp-level SASS instructions of one class (see `CompiledFacts.sass`) that the launch ran."""
    passes, trips = loop_trips(launch)
    return _executed(launch, name, passes, trips)


def _executed(launch: LaunchFacts, name: str, passes: float, trips: float) -> float:
    warps = launch.counters.ctas * warps_per_cta(launch)
    inside = launch.compiled.sass_loop.get(name, 0)
    return warps * (passes * (launch.compiled.sass.get(name, 0) - inside) + trips * inside)


def tensor_cycles(spec: DeviceSpec, counters: LaunchCounters) -> float:
    """SM cycles of all matrix instructions at the dense rate."""
    rates = {"mma_tf32": spec.mma_tf32_fma, "mma_int8": spec.mma_int8_fma}
    return sum(
        n / 2 / rates.get(name, spec.mma_fp16_fma)
        for name, n in counters.flops.items()
        if name.startswith("mma_")
    )


def _sm_cycles(
    spec: DeviceSpec, launch: LaunchFacts, passes: float, trips: float
) -> dict[str, float]:
    counters = launch.counters

    def ran(name: str) -> float:
        return _executed(launch, name, passes, trips)

    shared = float(sum(s.wavefronts for s in counters.sites if s.space == "shared"))
    shared -= _joined_wavefronts(launch, ran("lds"))
    lines = float(launch.traffic.l1_wavefronts)
    spilled = _spilled_bytes(launch, passes, trips) / 128
    data = max((shared * 128 / spec.shared_bytes_per_cycle) + lines + spilled,
               32 * ran("pipe_lsu") / spec.lsu_lanes)  # fmt: skip
    whole = {
        "issue": ran("total") / spec.schedulers_per_sm,
        # IMAD shares the pipe; where it has 128 lanes, half of them multiply integers.
        "fp32_pipe": max(32 * ran("pipe_fma") / spec.fp32_lanes, 32 * ran("imad") / spec.int_lanes),
        "int_pipe": 32 * ran("pipe_alu") / spec.int_lanes,
        "fp16_pipe": 64 * ran("pipe_fp16") / spec.fp16_lanes,
        "fp64_pipe": 32 * ran("pipe_fp64") / spec.fp64_lanes,
        "sfu_pipe": 32 * ran("pipe_xu") / spec.sfu_lanes,
        "shuffles": 32 * ran("shfl") / spec.shuffle_lanes,
        "tensor_pipe": tensor_cycles(spec, counters),
        "shared_memory" if shared >= lines else "l1_bandwidth": data,
    }
    return {name: cycles / spec.sms for name, cycles in whole.items() if cycles}


def _spilled_bytes(launch: LaunchFacts, passes: float, trips: float) -> float:
    """Bytes that all warps move to and from spilled registers."""
    compiled = launch.compiled
    moved = 0.0
    for name, each in (("ldl", compiled.spill_load_bytes), ("stl", compiled.spill_store_bytes)):
        static = compiled.sass.get(name, 0)
        if static:
            moved += 32 * each / static * _executed(launch, name, passes, trips)
    return moved


def _spill_misses(spec: DeviceSpec, launch: LaunchFacts) -> tuple[float, float]:
    """Shares of the spilled bytes that miss the L1, and the L2: what the resident threads spilled
    goes round in a cache, which keeps no more of it than it has room for."""
    compiled = launch.compiled
    resident = _resident(spec, launch)
    held = resident * launch.threads_per_cta * compiled.spill_store_bytes
    if not held:
        return 0.0, 0.0
    shared = compiled.static_shared_bytes + compiled.dynamic_shared_bytes
    l1 = max(0, spec.l1_bytes - resident * (shared + spec.reserved_shared_per_cta))
    to_l2 = max(0.0, 1 - l1 / held)
    return to_l2, to_l2 * max(0.0, 1 - spec.l2_bytes / (held * spec.sms))


def _joined_wavefronts(launch: LaunchFacts, run: float) -> float:
    """Wavefronts that ptxas saves by joining shared loads of one word into loads of four.

    Loads that it can join are of one address for many lanes; joined they take two passes, not four
    (Nsight Compute reports of an A10G). Four become one for every three that are gone.
    """
    asked = sum(
        s.requests for s in launch.counters.sites
        if s.space == "shared" and s.kind == "load" and s.bytes_per_lane <= 4
    )  # fmt: skip
    wide = sum(
        s.requests for s in launch.counters.sites
        if s.space == "shared" and s.kind == "load" and s.bytes_per_lane > 4
    )  # fmt: skip
    gone = asked + wide - run
    return 2 / 3 * min(gone, asked) if run and gone > 0.1 * asked else 0.0


def _atomic_cycles(spec: DeviceSpec, launch: LaunchFacts) -> float:
    """All atomic sectors through all slices, or the busiest sector's, one after the other. Lanes of
    a request that hit one address are taken one after the other as well."""
    sites = [s for s in launch.counters.sites if s.kind == "atomic" and s.space == "global"]
    requests = sum(s.requests for s in sites)
    if not requests:
        return 0.0
    collisions = 1 + sum(s.conflicts for s in sites) / requests
    return collisions * max(
        sum(s.sectors for s in sites) / spec.atomics_per_cycle,
        launch.traffic.atomic_hottest_requests * spec.atomic_cycles,
    )


def global_latency(spec: DeviceSpec, launch: LaunchFacts) -> float:
    """Cycles of a global load, the mean over the levels that served the launch's reads."""
    traffic = launch.traffic
    from_dram = min(traffic.dram_read_bytes, traffic.l2_read_bytes)
    from_l2 = traffic.l2_read_bytes - from_dram
    whole = traffic.l1_hit_bytes + traffic.l2_read_bytes
    if not whole:
        return spec.dram_latency_cycles
    return (
        traffic.l1_hit_bytes * spec.l1_latency_cycles
        + from_l2 * spec.l2_latency_cycles
        + from_dram * spec.dram_latency_cycles
    ) / whole


def _path(spec: DeviceSpec, launch: LaunchFacts, passes: float, trips: float) -> float:
    """Cycles of a warp alone at the launch's mean load latency, between the simulated latencies."""
    at = global_latency(spec, launch)
    known = (spec.l1_latency_cycles, spec.l2_latency_cycles, spec.dram_latency_cycles)
    cycles = [
        passes * a + trips * b
        for a, b in zip(
            _levels(launch.compiled.straight), _levels(launch.compiled.loop), strict=True
        )
    ]
    low = 0 if at <= known[1] else 1
    share = (at - known[low]) / (known[low + 1] - known[low])
    return cycles[low] + share * (cycles[low + 1] - cycles[low])


def _levels(path: WarpPath) -> tuple[float, float, float]:
    return path.l1_cycles, path.l2_cycles, path.dram_cycles
