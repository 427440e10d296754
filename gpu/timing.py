"""Predicted times from counted work. Every result here has provenance `predicted`.

A launch takes its launch overhead plus a smooth maximum (p-norm) of bounds: issue slots, each pipe,
shared memory, L1, L2, DRAM, atomics, and latency: the time in which each SM's resident CTAs, one
after the other, wait for their dependent rounds of loads (Little's law: too few bytes in flight).
Bounds of an SM count the busiest SM, so partial waves cost what they cost on silicon.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields

from kopt.gpu.facts import CallFacts, LaunchFacts, OperatorFacts
from kopt.gpu.spec import DeviceSpec

P_NORM = 5.0
"""How bounds combine: infinity is perfect overlap, 1 none. A guess between the two."""
BARRIER_CYCLES = 30
"""A CTA-wide barrier with its wait. A guess."""
MOST_LOADS_IN_FLIGHT = 16
"""Independent loads that one warp has in flight at most. A guess."""
SYNC_US = 8.0
"""A host synchronisation with its round trip. A guess."""
PCIE_BYTES_PER_S = 20e9
"""Host to device copies, PCIe 4.0 x16 as measured by common tools."""
ATOMIC_CYCLES = 2.0
"""L2 clocks between atomics on one line. A guess."""
ATOMICS_PER_CYCLE = 40.0
"""Atomic sector requests that all L2 slices take together. A guess from slice counts."""


@dataclass(frozen=True)
class Rates:
    """Multipliers on device rates; above 1 is a faster device. All arms of a comparison share one."""

    dram: float = 1.0
    l2: float = 1.0
    issue: float = 1.0
    latency: float = 1.0
    launch: float = 1.0


@dataclass(frozen=True)
class LaunchTime:
    """One launch: its time and the bounds it was made of, in µs."""

    ordinal: int
    kernel: str
    time_us: float
    terms: dict[str, float]
    waves: float
    bytes_in_flight: float
    """Per SM, on average."""

    @property
    def bottleneck(self) -> str:
        """The largest bound."""
        return max(self.terms, key=lambda name: self.terms[name])


@dataclass(frozen=True)
class OperatorTime:
    """One PyTorch operator: a roofline."""

    ordinal: int
    name: str
    time_us: float
    bound: bool
    """True: a lower bound; False: an estimate with a library's measured efficiency."""


@dataclass(frozen=True)
class Prediction:
    """One entry call."""

    time_us: float
    launches: tuple[LaunchTime, ...]
    operators: tuple[OperatorTime, ...]
    host_us: float
    """Copies from the host and synchronisations."""


def predict(spec: DeviceSpec, facts: CallFacts, rates: Rates | None = None) -> Prediction:
    """The time of one entry call whose launches follow each other in one stream."""
    rates = rates or Rates()
    launches = tuple(launch_time(spec, launch, rates) for launch in facts.launches)
    operators = tuple(operator_time(spec, op, rates) for op in facts.operators)
    host = 1e6 * facts.host_copy_bytes / PCIE_BYTES_PER_S + SYNC_US * facts.synchronisations
    total = sum(t.time_us for t in launches) + sum(o.time_us for o in operators) + host
    return Prediction(max(total, 0.01), launches, operators, host)


def launch_time(spec: DeviceSpec, launch: LaunchFacts, rates: Rates) -> LaunchTime:
    """The time of one launch."""
    terms = _terms(spec, launch, rates)
    norm = sum(t**P_NORM for t in terms.values()) ** (1 / P_NORM)
    overhead = spec.launch_overhead_us / rates.launch
    resident = max(1, launch.compiled.ctas_per_sm) * spec.sms
    flight = _bytes_per_round(launch) * _active_warps(spec, launch)
    return LaunchTime(
        launch.ordinal,
        launch.kernel,
        norm + overhead,
        {**terms, "launch_overhead": overhead},
        launch.counters.ctas / resident,
        flight,
    )


def _warps(launch: LaunchFacts) -> int:
    return -(-launch.threads_per_cta // 32)


def _active_warps(spec: DeviceSpec, launch: LaunchFacts) -> float:
    """Resident warps of a busy SM."""
    ctas = min(max(1, launch.compiled.ctas_per_sm), -(-launch.counters.ctas // spec.sms))
    return float(ctas * _warps(launch))


def sass_ratio(launch: LaunchFacts) -> float:
    """SASS instructions for a PTX instruction, from static counts: ptxas fuses and removes many."""
    static = sum(1 for _ in launch.counters.opcodes) and launch.counters.static_instructions
    total = launch.compiled.sass.get("total", 0)
    if not static or not total:
        return 1.0
    return min(1.5, max(0.3, total / static))


def _terms(spec: DeviceSpec, launch: LaunchFacts, rates: Rates) -> dict[str, float]:
    counters, traffic = launch.counters, launch.traffic
    ctas = max(1, counters.ctas)
    # The busiest SM runs ceil(ctas / sms) of them.
    busiest = -(-ctas // spec.sms) / ctas
    cycle_us = 1e6 / spec.clock_hz
    issue_us = cycle_us / rates.issue

    def count(*names: str) -> int:
        return sum(counters.instructions.get(name, 0) for name in names)  # type: ignore[call-overload]

    per_sm = busiest * sass_ratio(launch)
    everything = sum(counters.instructions.values()) - count("param")
    divisions = sum(
        n for op, n in counters.opcodes.items() if op.startswith("div.") and "f32" in op
    )
    mma = {name: n for name, n in counters.flops.items() if name.startswith("mma_")}
    mma_rate = {
        "mma_tf32": spec.mma_tf32_fma,
        "mma_int8": spec.mma_int8_fma,
    }
    tensor_cycles = sum(n / 2 / mma_rate.get(name, spec.mma_fp16_fma) for name, n in mma.items())
    shared = sum(s.wavefronts for s in counters.sites)
    requests = sum(s.requests for s in counters.sites if s.kind not in {"select", "mma"})
    l1_bytes = traffic.l1_requested_bytes
    terms = {
        "issue": everything * per_sm / spec.schedulers_per_sm * issue_us,
        "fp32_pipe": count("fp32") * 32 * busiest / spec.fp32_lanes * issue_us,
        "fp64_pipe": count("fp64") * 32 * busiest / spec.fp64_lanes * issue_us,
        "int_pipe": count("int", "compare", "select", "move")
        * 32
        * per_sm
        / spec.int_lanes
        * issue_us,
        "sfu_pipe": (count("sfu") + divisions + count("convert"))
        * 32
        * busiest
        / spec.sfu_lanes
        * issue_us,
        "tensor_pipe": tensor_cycles * busiest * issue_us,
        "lsu_pipe": (requests + count("shuffle")) * 32 * busiest / spec.lsu_lanes * issue_us,
        "shared_memory": shared * busiest * 128 / spec.shared_bytes_per_cycle * issue_us,
        "l1_bandwidth": l1_bytes * busiest / 128 * issue_us,
        "l2_bandwidth": 1e6
        * (traffic.l2_read_bytes + traffic.l2_write_bytes)
        / (spec.l2_bytes_per_s * rates.l2),
        "dram_bandwidth": 1e6
        * (traffic.dram_read_bytes + traffic.dram_write_bytes)
        / (spec.dram_bytes_per_s * spec.dram_efficiency * rates.dram),
        "atomics": _atomics(spec, launch) * cycle_us / rates.l2,
        "latency": _latency_cycles(spec, launch, rates) * cycle_us,
    }
    return {name: value for name, value in terms.items() if value > 0}


def _atomics(spec: DeviceSpec, launch: LaunchFacts) -> float:
    sectors = sum(
        s.sectors for s in launch.counters.sites if s.kind == "atomic" and s.space == "global"
    )
    conflicts = sum(s.conflicts for s in launch.counters.sites if s.space == "global")
    hottest = launch.traffic.atomic_hottest_requests
    return max((sectors + conflicts) / ATOMICS_PER_CYCLE, hottest * ATOMIC_CYCLES)


def _loads(launch: LaunchFacts) -> tuple[int, int, int]:
    """Global load requests, their sites, and bytes."""
    sites = [
        s
        for s in launch.counters.sites
        if s.space == "global" and s.kind in {"load", "cp_async"} and s.requests
    ]
    return (
        sum(s.requests for s in sites),
        len(sites),
        sum(s.lanes * s.bytes_per_lane for s in sites),
    )


def _loads_per_round(launch: LaunchFacts) -> float:
    """Independent loads that a warp issues before it waits: those of one source line or loop body,
    times the stages of a software pipeline."""
    by_line: dict[tuple[str, int, int], int] = {}
    stages = 1.0
    for s in launch.counters.sites:
        if s.space == "global" and s.kind in {"load", "cp_async"} and s.requests:
            key = (s.file, s.line if s.kind == "load" else 0, s.requests)
            by_line[key] = by_line.get(key, 0) + 1
            if s.kind == "cp_async":
                stages = max(stages, float(launch.counters.pipeline_stages))
    if not by_line:
        return 1.0
    total = sum(by_line.values())
    mean = sum(n * n for n in by_line.values()) / total
    return float(min(MOST_LOADS_IN_FLIGHT, mean * stages))


def _bytes_per_round(launch: LaunchFacts) -> float:
    requests, _, loaded = _loads(launch)
    return loaded / requests * _loads_per_round(launch) if requests else 0.0


def _latency_cycles(spec: DeviceSpec, launch: LaunchFacts, rates: Rates) -> float:
    """Cycles for which the busiest SM's CTAs wait, if each round of loads is waited for."""
    counters, traffic, compiled = launch.counters, launch.traffic, launch.compiled
    warps = counters.ctas * _warps(launch)
    requests, _, _ = _loads(launch)
    asked = max(1, traffic.l1_requested_bytes)
    below = max(1, asked - traffic.l1_hit_bytes)
    dram = min(1.0, (traffic.dram_read_bytes + 0.0) / below)
    l1 = min(1.0, traffic.l1_hit_bytes / asked)
    each = l1 * spec.l1_latency_cycles + (1 - l1) * (
        dram * spec.dram_latency_cycles + (1 - dram) * spec.l2_latency_cycles
    )
    rounds = requests / warps / _loads_per_round(launch) if warps else 0.0
    shared = sum(s.requests for s in counters.sites if s.space == "shared") / max(1, warps)
    barriers = counters.barriers / max(1, warps)
    chain = each * math.ceil(rounds) if rounds else 0.0
    chain += barriers * (BARRIER_CYCLES + (spec.shared_latency_cycles if shared else 0.0))
    chain += each if requests else 0.0
    per_sm = -(-counters.ctas // spec.sms)
    turns = -(-per_sm // max(1, compiled.ctas_per_sm))
    # A slot starts its next CTA when the last one is done, so turns are fractional on a full GPU.
    smooth = max(1.0, counters.ctas / (spec.sms * max(1, compiled.ctas_per_sm)))
    return chain * min(turns, smooth + 0.5) / rates.latency


_LIBRARY_EFFICIENCY = 0.80
"""cuBLAS on large fp16 matmuls: 769 to 798 of 989 TFLOP/s measured on an H200."""


def operator_time(spec: DeviceSpec, op: OperatorFacts, rates: Rates) -> OperatorTime:
    """Roofline of an operator that launches no kernel of ours."""
    moved = (
        1e6
        * (op.read_bytes + op.write_bytes)
        / (spec.dram_bytes_per_s * spec.dram_efficiency * rates.dram)
    )
    matrix = any(n in op.name for n in ("mm", "conv", "linear", "scaled_dot_product", "matmul"))
    lanes = {
        "float16": spec.mma_fp16_fma, "bfloat16": spec.mma_fp16_fma, "int8": spec.mma_int8_fma,
    }.get(op.dtype, spec.fp32_lanes) if matrix else spec.fp32_lanes  # fmt: skip
    efficiency = _LIBRARY_EFFICIENCY if matrix else 1.0
    computed = 1e6 * op.flops / (2 * lanes * spec.sms * spec.clock_hz * efficiency * rates.issue)
    overhead = spec.launch_overhead_us / rates.launch
    return OperatorTime(op.ordinal, op.name, max(moved, computed) + overhead, not matrix)


@dataclass(frozen=True)
class Ratio:
    """Baseline time over candidate time; above 1 the candidate is faster."""

    speedup: float
    low: float
    high: float
    dominated: bool
    """No cost counter of the candidate is higher, one is lower."""


def perturbations(spec: DeviceSpec) -> list[Rates]:
    """The corners and the centre of the box of device rates that the spec's uncertainties span."""
    width = {
        "dram": spec.dram_uncertainty,
        "l2": spec.l2_uncertainty,
        "issue": spec.issue_uncertainty,
        "latency": spec.latency_uncertainty,
        "launch": spec.launch_uncertainty,
    }
    names = [f.name for f in fields(Rates)]
    corners = itertools.product(*[(1 - width[n], 1 + width[n]) for n in names])
    return [Rates(), *(Rates(*corner) for corner in corners)]


def interval(spec: DeviceSpec, facts: CallFacts) -> tuple[float, float]:
    """The range of the predicted time over all perturbed devices, in µs."""
    times = [predict(spec, facts, rates).time_us for rates in perturbations(spec)]
    return min(times), max(times)


def ratio(spec: DeviceSpec, baseline: CallFacts, candidate: CallFacts) -> Ratio:
    """The speed-up and its range when each device rate is perturbed alike for both arms."""
    ratios = [
        predict(spec, baseline, rates).time_us / predict(spec, candidate, rates).time_us
        for rates in perturbations(spec)
    ]
    return Ratio(ratios[0], min(ratios), max(ratios), dominates(baseline, candidate))


def costs(facts: CallFacts) -> dict[str, float]:
    """Counters of which less is better, summed over the call."""
    total: dict[str, float] = {
        "launches": len(facts.launches) + len(facts.operators),
        "operator_bytes": sum(o.read_bytes + o.write_bytes for o in facts.operators),
        "operator_flops": sum(o.flops for o in facts.operators),
        "host_copy_bytes": facts.host_copy_bytes,
        "synchronisations": facts.synchronisations,
    }
    for launch in facts.launches:
        found = {
            "instructions": sum(launch.counters.instructions.values()),
            "dram_bytes": launch.traffic.dram_read_bytes + launch.traffic.dram_write_bytes,
            "l2_bytes": launch.traffic.l2_read_bytes + launch.traffic.l2_write_bytes,
            "l1_bytes": launch.traffic.l1_requested_bytes,
            "shared_wavefronts": sum(s.wavefronts for s in launch.counters.sites),
            "barriers": launch.counters.barriers,
            "atomic_requests": sum(s.requests for s in launch.counters.sites if s.kind == "atomic"),
            "spills": (launch.compiled.spill_load_bytes + launch.compiled.spill_store_bytes)
            * launch.counters.ctas,
        }
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


def dominates(baseline: CallFacts, candidate: CallFacts) -> bool:
    """Whether the candidate costs no more of anything, less of something, and keeps as many bytes
    in flight."""
    old, new = costs(baseline), costs(candidate)
    names = old.keys() | new.keys()
    if any(new.get(n, 0.0) > old.get(n, 0.0) * 1.001 for n in names):
        return False
    if not any(new.get(n, 0.0) < old.get(n, 0.0) * 0.99 for n in names):
        return False
    return _flight(candidate) >= 0.99 * _flight(baseline)


def _flight(facts: CallFacts) -> float:
    values = [_bytes_per_round(x) * x.compiled.ctas_per_sm * _warps(x) for x in facts.launches]
    return min(values, default=math.inf)


def speed_of_light_us(spec: DeviceSpec, compulsory_bytes: float, flops: float = 0.0) -> float:
    """The least time: one launch, compulsory bytes at the measured ceiling, one DRAM latency."""
    moved = 1e6 * compulsory_bytes / (spec.dram_bytes_per_s * spec.dram_efficiency)
    computed = 1e6 * flops / (2 * spec.mma_fp16_fma * spec.sms * spec.clock_hz)
    latency = 1e6 * spec.dram_latency_cycles / spec.clock_hz
    return spec.launch_overhead_us + max(moved, computed) + latency
