"""What limits an entry call, with the numbers that say so. Deterministic rules, no judgement."""

from __future__ import annotations

from kopt.gpu import timing
from kopt.gpu.counters import Site
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.metrics import measure
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.timing import LaunchTime, Prediction
from kopt.tools.models import Diagnosis, Headroom, Metric, Provenance

UNSEEN = (
    "clocks under load, power and thermal limits",
    "TLB misses and the L2's slices",
    "the host's own time between launches",
    "instruction cache misses and register bank conflicts",
)
"""What the timing model does not see."""


def diagnose(spec: DeviceSpec, workload: str, facts: CallFacts) -> Diagnosis:
    """The limiting resource of a call, from its counters and their predicted cost."""
    prediction = timing.predict(spec, facts)
    headroom = _headroom(spec, facts, prediction)
    launches = sorted(
        zip(facts.launches, prediction.launches, strict=True), key=lambda pair: -pair[1].time_us
    )
    in_operators = sum(o.time_us for o in prediction.operators)
    if not launches or in_operators > launches[0][1].time_us:
        return Diagnosis(
            workload=workload,
            bottleneck="operators",
            kernel=None,
            evidence=tuple(_operator_evidence(prediction)),
            metrics=(),
            headroom=headroom,
            unseen=UNSEEN,
        )
    launch, time = launches[0]
    bottleneck = time.bottleneck
    evidence = _call_evidence(spec, facts, prediction)
    evidence += _launch_evidence(spec, launch, time)
    metrics = tuple(
        Metric(
            name=m.name,
            value=m.value,
            unit=m.unit,
            provenance=Provenance(m.provenance),
            sentence=m.sentence,
        )
        for m in measure(spec, launch, time)
    )
    return Diagnosis(
        workload=workload,
        bottleneck=bottleneck,
        kernel=launch.kernel,
        evidence=tuple(evidence),
        metrics=metrics,
        headroom=headroom,
        unseen=UNSEEN,
    )


def _headroom(spec: DeviceSpec, facts: CallFacts, prediction: Prediction) -> Headroom:
    """The least the call must move: its inputs that are used and its outputs, once each."""
    light = timing.speed_of_light_us(spec, facts.input_bytes + facts.output_bytes)
    low, _ = timing.interval(spec, facts)
    ratio = prediction.time_us / light
    # The light's own ceiling is as uncertain as the model; they move together, so only what is
    # left after the model's interval can be gained.
    uncertain = prediction.time_us / low
    return Headroom(
        speed_of_light_us=light, ratio=ratio, exceeds_interval=ratio > max(1.05, uncertain)
    )


def _operator_evidence(prediction: Prediction) -> list[str]:
    ranked = sorted(prediction.operators, key=lambda o: -o.time_us)[:5]
    total = prediction.time_us
    return [
        f"PyTorch operator {o.name} takes {o.time_us:.1f} of {total:.1f} us"
        f" ({'a lower bound' if o.bound else 'an estimate'}); leave it to the library"
        for o in ranked
    ]


def _call_evidence(spec: DeviceSpec, facts: CallFacts, prediction: Prediction) -> list[str]:
    found = []
    moved = sum(x.traffic.dram_read_bytes + x.traffic.dram_write_bytes for x in facts.launches)
    moved += sum(o.read_bytes + o.write_bytes for o in facts.operators)
    need = facts.input_bytes + facts.output_bytes
    if need and moved > 1.15 * need:
        found.append(
            f"the call moves {moved / 1e6:.1f} MB through DRAM, {moved / need:.2f}x the"
            f" {need / 1e6:.1f} MB of its inputs and outputs"
        )
    steps = len(facts.launches) + len(facts.operators)
    overhead = steps * spec.launch_overhead_us
    if steps > 1 and overhead > 0.2 * prediction.time_us:
        found.append(
            f"{steps} launches cost {overhead:.1f} of {prediction.time_us:.1f} us in overhead"
        )
    if facts.synchronisations:
        found.append(f"the host waits for the device {facts.synchronisations} times")
    return found


def _launch_evidence(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    rules = {
        "dram_bandwidth": _dram,
        "l2_bandwidth": _l2,
        "shared_memory": _shared,
        "atomics": _atomics,
        "latency": _latency,
        "launch_overhead": _overhead,
    }
    first = rules.get(time.bottleneck, _pipe)(spec, launch, time)
    seen = list(first)
    for name, rule in rules.items():
        if name != time.bottleneck and time.terms.get(name, 0.0) > 0.7 * max(time.terms.values()):
            seen += rule(spec, launch, time)
    seen += _everywhere(spec, launch)
    return list(dict.fromkeys(seen))


def _where(site: Site) -> str:
    name = site.file.rsplit("/", 1)[-1]
    touched = f" ({', '.join(site.args)})" if site.args else ""
    return f"{name}:{site.line}{touched}"


def _dram(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    traffic = launch.traffic
    moved = traffic.dram_read_bytes + traffic.dram_write_bytes
    need = traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
    bound = time.terms["dram_bandwidth"]
    found = [
        f"{launch.kernel} moves {moved / 1e6:.1f} MB through DRAM, {moved / max(1, need):.2f}x the"
        f" compulsory {need / 1e6:.1f} MB; at the measured ceiling that is {bound:.1f} of"
        f" {time.time_us:.1f} us"
    ]
    if traffic.dram_read_bytes > 1.3 * traffic.compulsory_read_bytes:
        times = traffic.dram_read_bytes / max(1, traffic.compulsory_read_bytes)
        sites = [
            s
            for s in launch.counters.sites
            if s.space == "global" and s.kind in {"load", "cp_async"}
        ]
        lines = sorted({_where(s) for s in sites if s.requests})
        found.append(
            f"the same bytes are read from DRAM {times:.2f} times, by {', '.join(lines[:4])}: the"
            f" L2 ({spec.l2_bytes / 1e6:.0f} MB) no longer has them when they are needed again"
        )
    return found + _uncoalesced(launch)


def _uncoalesced(launch: LaunchFacts) -> list[str]:
    bad = [
        s
        for s in launch.counters.sites
        if s.space == "global" and s.kind != "atomic" and s.sectors > 2 * s.ideal and s.requests
    ]
    worst = sorted(bad, key=lambda s: s.ideal - s.sectors)[:2]
    return [
        f"the {s.kind.replace('_', ' ')} at {_where(s)} takes {s.sectors / s.requests:.1f} sectors"
        f" per request, {s.sectors / s.ideal:.1f}x the least: its lanes are not neighbours"
        for s in worst
    ]


def _l2(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    traffic = launch.traffic
    moved = traffic.l2_read_bytes + traffic.l2_write_bytes
    need = traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
    return [
        f"{launch.kernel} moves {moved / 1e6:.1f} MB through the L2, {moved / max(1, need):.2f}x"
        f" the {need / 1e6:.1f} MB it touches: {time.terms['l2_bandwidth']:.1f} of"
        f" {time.time_us:.1f} us",
        *_uncoalesced(launch),
    ]


def _shared(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    sites = [s for s in launch.counters.sites if s.space == "shared" and s.requests]
    passes, ideal = sum(s.wavefronts for s in sites), sum(s.ideal for s in sites)
    found = [
        f"shared memory takes {passes / 1e6:.2f} M passes: {time.terms['shared_memory']:.1f} of"
        f" {time.time_us:.1f} us"
    ]
    if passes > 1.25 * ideal:
        worst = max(sites, key=lambda s: s.wavefronts - s.ideal)
        found.append(
            f"bank conflicts make {passes / ideal:.1f}x the passes, most at {_where(worst)}"
        )
    return found


def _atomics(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    sites = [s for s in launch.counters.sites if s.kind == "atomic" and s.requests]
    lanes = sum(s.lanes for s in sites)
    where = ", ".join(sorted({_where(s) for s in sites}))
    hottest = launch.traffic.atomic_hottest_requests
    return [
        f"{lanes:,} atomic operations at {where} take {time.terms['atomics']:.1f} of"
        f" {time.time_us:.1f} us; the busiest line gets {hottest:,} requests, one after the other"
    ]


def _latency(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    needed = spec.dram_bytes_per_s * spec.dram_latency_cycles / spec.clock_hz / spec.sms
    found = [
        f"warps wait for memory: {time.terms['latency']:.1f} of {time.time_us:.1f} us;"
        f" {time.bytes_in_flight:,.0f} bytes are in flight per SM where {needed:,.0f} would keep"
        " the DRAM busy"
    ]
    if launch.counters.ctas < spec.sms:
        found.append(
            f"{launch.counters.ctas} CTAs leave {spec.sms - launch.counters.ctas} SMs idle"
        )
    return found


def _overhead(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    return [
        f"the launch itself takes {spec.launch_overhead_us:.1f} of {time.time_us:.1f} us: there is"
        " little work in it"
    ]


def _pipe(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    name = time.bottleneck.replace("_", " ")
    found = [f"the {name} bound is {time.terms[time.bottleneck]:.1f} of {time.time_us:.1f} us"]
    counters = launch.counters
    if time.bottleneck in {"fp32_pipe", "issue"}:
        top = sorted(counters.opcodes.items(), key=lambda item: -item[1])[:3]
        found.append("most executed: " + ", ".join(f"{op} ({n:,})" for op, n in top))
    return found


def _everywhere(spec: DeviceSpec, launch: LaunchFacts) -> list[str]:
    found = []
    compiled, counters = launch.compiled, launch.counters
    if compiled.spill_load_bytes + compiled.spill_store_bytes:
        spilled = compiled.spill_load_bytes + compiled.spill_store_bytes
        found.append(f"{spilled} bytes of registers per thread spill to local memory")
    masked = [
        s
        for s in counters.sites
        if s.kind == "select" and s.requests and s.uniform_false > 0.2 * s.requests
    ]
    if masked and counters.flops:
        worst = max(masked, key=lambda s: s.uniform_false)
        share = 100 * worst.uniform_false / worst.requests
        found.append(
            f"at {_where(worst)} {share:.0f} % of the selects throw away a whole warp's values"
        )
    if compiled.occupancy < 0.25:
        limit = compiled.limiter.replace("_", " ")
        found.append(f"occupancy is {100 * compiled.occupancy:.0f} %, limited by {limit}")
    if counters.ctas < spec.sms:
        found.append(f"{counters.ctas} CTAs do not fill {spec.sms} SMs")
    return found
