"""The sentences of a diagnosis: each has a number, and the source lines it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kopt.gpu.counters import Site
from kopt.gpu.demand import needed_in_flight
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.speed_of_light import Compulsory, masked_share
from kopt.gpu.timing import LaunchTime, Prediction
from kopt.gpu.vocabulary import over_ideal

MATRIX_FLOPS_PER_BYTE = 30
"""fp32 operations for each compulsory byte above which the work is a matrix product's."""

Rule = Callable[[DeviceSpec, LaunchFacts, LaunchTime], list[str]]


def of_term(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime, term: str) -> list[str]:
    """Why one term of a launch's time is as large as it is, the telling number first."""
    return _RULES.get(term, _pipe(term))(spec, launch, time)


def of_call(
    spec: DeviceSpec, facts: CallFacts, prediction: Prediction, least: Compulsory
) -> list[str]:
    """What only the whole call shows: intermediates, launches, the host."""
    found = []
    moved = float(
        sum(x.traffic.dram_read_bytes + x.traffic.dram_write_bytes for x in facts.launches)
        + sum(o.read_bytes + o.write_bytes for o in facts.operators)
    )
    need = least.read_bytes + least.write_bytes
    steps = len(facts.launches) + len(facts.operators)
    if steps > 1 and need and moved > 1.15 * need:
        found.append(
            f"the call moves {_mb(moved)} through DRAM in {steps} launches, {moved / need:.2f}x the"
            f" {_mb(need)} that its inputs and outputs need: intermediates go through memory"
        )
    overhead = steps * spec.launch_overhead_us
    if overhead > 0.15 * prediction.time_us:
        found.append(
            f"{steps} launch{'es' * (steps > 1)} cost {overhead:.1f} of"
            f" {prediction.time_us:.1f} µs in overhead"
        )
    if facts.synchronisations:
        found.append(
            f"the host waits for the device {facts.synchronisations} times,"
            f" {prediction.host_us:.1f} of {prediction.time_us:.1f} µs with its copies"
        )
    elif facts.host_copy_bytes:
        found.append(
            f"{_mb(facts.host_copy_bytes)} are copied from the host: {prediction.host_us:.1f} µs"
        )
    return found


def of_operators(prediction: Prediction) -> list[str]:
    """The costliest PyTorch operators."""
    total = prediction.time_us
    ranked = sorted(prediction.operators, key=lambda o: -o.time_us)
    return [
        f"PyTorch operator {o.name} takes {o.time_us:.1f} of {total:.1f} µs"
        f" ({'a lower bound' if o.bound else 'an estimate'})"
        for o in ranked[:5]
    ]


def of_code(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    """What is worth saying of a launch whatever limits it."""
    found = []
    compiled, counters = launch.compiled, launch.counters
    spilled = compiled.spill_load_bytes + compiled.spill_store_bytes
    if spilled:
        found.append(
            f"{spilled} bytes of each thread's registers spill to local memory"
            f" ({compiled.registers} registers)"
        )
    found += _masked(launch)
    found += _slow_dot(spec, launch)
    if compiled.occupancy < 0.25:
        limit = compiled.limiter.replace("_", " ")
        found.append(f"occupancy is {100 * compiled.occupancy:.0f} %, limited by {limit}")
    if counters.ctas < spec.sms:
        found.append(_idle(spec, launch))
    return found


def _mb(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def where(sites: Iterable[Site]) -> str:
    """`softmax.py:12, 17, 22`, from all the lines of these sites."""
    lines: dict[str, set[int]] = {}
    for site in sites:
        if site.line:
            lines.setdefault(site.file.rsplit("/", 1)[-1], set()).add(site.line)
    named = [f"{file}:{', '.join(map(str, sorted(n)))}" for file, n in sorted(lines.items())]
    return "; ".join(named) or "no source line"


def _global(launch: LaunchFacts, *kinds: str) -> list[Site]:
    return [
        s for s in launch.counters.sites
        if s.space == "global" and s.kind in kinds and s.requests
    ]  # fmt: skip


def _sectors(sites: list[Site]) -> int:
    return sum(s.sectors for s in sites)


def passes(launch: LaunchFacts) -> dict[str, tuple[float, list[Site]]]:
    """For each argument that is loaded: how often its bytes are asked for, taking the line that
    asks for most as one pass, and the sites that ask."""
    by_argument: dict[str, list[Site]] = {}
    for site in _global(launch, "load", "cp_async"):
        for name in site.args[:1]:
            by_argument.setdefault(name, []).append(site)
    found = {}
    for name, sites in by_argument.items():
        lines: dict[tuple[str, int], int] = {}
        for site in sites:
            key = (site.file, site.line)
            lines[key] = lines.get(key, 0) + site.sectors
        most = max(lines.values())
        # A line that asks for single elements is no pass.
        telling = [s for s in sites if 20 * lines[s.file, s.line] > most]
        found[name] = (sum(lines.values()) / max(1, most), telling)
    return found


def is_streaming(launch: LaunchFacts) -> bool:
    """Whether a launch moves hardly more through the DRAM than it touches."""
    traffic = launch.traffic
    moved = traffic.dram_read_bytes + traffic.dram_write_bytes
    return moved < 1.15 * (traffic.compulsory_read_bytes + traffic.compulsory_write_bytes)


def _dram(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    traffic = launch.traffic
    moved = traffic.dram_read_bytes + traffic.dram_write_bytes
    need = max(1, traffic.compulsory_read_bytes + traffic.compulsory_write_bytes)
    again = traffic.dram_read_bytes / max(1, traffic.compulsory_read_bytes)
    first = f"DRAM moved {moved / need:.2f}x the compulsory {_mb(need)}"
    if again > 1.3:
        repeated = [(n, p, s) for n, (p, s) in passes(launch).items() if p > 1.5]
        if repeated:
            name, times, sites = max(repeated, key=lambda r: _sectors(r[2]))
            first += f": '{name}' is read {times:.0f} times ({where(sites)})"
        else:
            asked = sorted(passes(launch).items(), key=lambda item: -_sectors(item[1][1]))
            if asked:
                name, (_, sites) = asked[0]
                first += f": CTAs read '{name}' again after the L2 lost it ({where(sites)})"
    bound = time.terms.get("dram_bandwidth", 0.0)
    return [
        first,
        f"at the measured ceiling DRAM takes {bound:.1f} of {launch.kernel}'s"
        f" {time.time_us:.1f} µs",
        *_uncoalesced(launch),
    ]


def _uncoalesced(launch: LaunchFacts) -> list[str]:
    bad = [s for s in _global(launch, "load", "store", "cp_async") if s.sectors > 2 * s.ideal]
    lines: dict[tuple[str, int, str], list[Site]] = {}
    for s in bad:
        lines.setdefault((s.file, s.line, s.kind), []).append(s)
    worst = sorted(lines.values(), key=lambda group: -sum(s.sectors - s.ideal for s in group))
    found = []
    for group in worst[:2]:
        requests, sectors = sum(s.requests for s in group), sum(s.sectors for s in group)
        names = ", ".join(dict.fromkeys(f"'{n}'" for s in group for n in s.args[:1]))
        found.append(
            f"the {group[0].kind.replace('_', ' ')} of {names or 'memory'} at {where(group)} takes"
            f" {sectors / requests:.1f} sectors a request, {over_ideal(group):.1f}x the least: its"
            " lanes are not neighbours"
        )
    return found


def _l2(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    traffic = launch.traffic
    moved = traffic.l2_read_bytes + traffic.l2_write_bytes
    need = max(1, traffic.compulsory_read_bytes + traffic.compulsory_write_bytes)
    found = [
        f"the L2 moved {_mb(moved)}, {moved / need:.2f}x the {_mb(need)} that {launch.kernel}"
        f" touches: {time.terms['l2_bandwidth']:.1f} of {time.time_us:.1f} µs"
    ]
    for name, (times, sites) in passes(launch).items():
        if times > 1.5:
            found.append(f"'{name}' is read {times:.0f} times ({where(sites)})")
    return found + _uncoalesced(launch)


def _l1(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    lines = launch.traffic.l1_wavefronts
    requests = sum(s.requests for s in _global(launch, "load", "store", "cp_async", "atomic"))
    return [
        f"{requests:,} requests to global memory take {lines:,} passes of the L1:"
        f" {time.terms['l1_bandwidth']:.1f} of {time.time_us:.1f} µs",
        *_uncoalesced(launch),
    ]


def _shared(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    sites = [s for s in launch.counters.sites if s.space == "shared" and s.requests]
    wavefronts, excess = sum(s.wavefronts for s in sites), over_ideal(sites)
    found = [
        f"shared memory takes {wavefronts:,} passes: {time.terms['shared_memory']:.1f} of"
        f" {time.time_us:.1f} µs"
    ]
    if excess > 1.2:
        worst = max(sites, key=lambda s: s.wavefronts - s.ideal)
        found.append(
            f"bank conflicts make {excess:.1f}x the passes, most at {where([worst])}"
            f" ({worst.wavefronts / worst.ideal:.1f}x)"
        )
    return found


def _atomics(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    sites = _global(launch, "atomic")
    lanes = sum(s.lanes for s in sites)
    names = ", ".join(dict.fromkeys(f"'{n}'" for s in sites for n in s.args[:1]))
    hottest = launch.traffic.atomic_hottest_requests
    return [
        f"{lanes:,} atomic operations on {names or 'memory'} at {where(sites)} take"
        f" {time.terms['atomics']:.1f} of {time.time_us:.1f} µs: the busiest sector gets"
        f" {hottest:,} requests, one after the other"
    ]


def _latency(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    needed, compiled = needed_in_flight(spec), launch.compiled
    path = compiled.loop if compiled.loop.dram_cycles else compiled.straight
    found = [
        f"warps wait: {time.terms['latency']:.1f} of {time.time_us:.1f} µs;"
        f" {time.bytes_in_flight:,.0f} bytes are in flight per SM, {needed:,.0f} keep the DRAM busy"
    ]
    if path.waits and path.dram_cycles:
        kind = max(path.waits, key=lambda name: path.waits[name])
        share = 100 * path.waits[kind] / path.dram_cycles
        what = {
            "global": "loads from global memory", "shared": "shared memory",
            "barrier": "barriers", "shuffle": "shuffles", "variable": "special functions",
            "drain": "stores to read their operands", "l1": "spilled registers",
            "fence": "fences, as atomics that acquire and release have them",
        }[kind]  # fmt: skip
        found.append(
            f"a warp alone waits {share:.0f} % of its path for {what}, with"
            f" {compiled.loads_in_flight:.1f} loads in flight"
        )
    in_loop = sum(compiled.sass_loop.get(n, 0) for n in ("ldg", "ldgsts"))
    matrix = bool(launch.counters.instructions.get("mma")) or _matrix_in_fp32(launch)
    if matrix and in_loop and not compiled.sass_loop.get("ldgsts"):
        found.append(
            "the loads of the matrix product's loop are waited for in the iteration that issues"
            " them: there is no cp.async in its PTX"
        )
    return found


def _tail(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    ctas = launch.counters.ctas
    if ctas < spec.sms:
        return [_idle(spec, launch)]
    busiest = -(-ctas // spec.sms)
    return [
        f"{ctas:,} CTAs on {spec.sms} SMs: the busiest SM runs {busiest}, the average"
        f" {ctas / spec.sms:.2f}; the uneven end costs {time.terms.get('tail', 0.0):.1f} of"
        f" {time.time_us:.1f} µs"
    ]


def _idle(spec: DeviceSpec, launch: LaunchFacts) -> str:
    ctas = launch.counters.ctas
    return f"{ctas} CTAs leave {spec.sms - ctas} of {spec.sms} SMs idle"


def _overhead(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
    return [
        f"starting {launch.kernel} takes {spec.launch_overhead_us:.1f} of its"
        f" {time.time_us:.1f} µs: there is little work in it"
    ]


def _pipe(term: str) -> Rule:
    def rule(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> list[str]:
        bound = time.terms.get(term, 0.0)
        name = "issue slots" if term == "issue" else term.replace("_", " ")
        found = [f"the {name} alone need {bound:.1f} of {time.time_us:.1f} µs"]
        if term != "tensor_pipe":
            opcodes = sorted(launch.counters.opcodes.items(), key=lambda item: -item[1])
            found.append("executed most: " + ", ".join(f"{op} {n:,}" for op, n in opcodes[:3]))
        return found

    return rule


def _matrix_in_fp32(launch: LaunchFacts) -> bool:
    flops, traffic = launch.counters.flops.get("fp32", 0), launch.traffic
    touched = traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
    fused = sum(n for op, n in launch.counters.opcodes.items() if op.startswith("fma.rn"))
    return flops > MATRIX_FLOPS_PER_BYTE * max(1, touched) and 2 * 32 * fused > 0.5 * flops


def _slow_dot(spec: DeviceSpec, launch: LaunchFacts) -> list[str]:
    if launch.counters.instructions.get("mma") or not _matrix_in_fp32(launch):
        return []
    flops = launch.counters.flops["fp32"]
    halves = any(
        op.startswith("cvt") and op.endswith(("f32.f16", "f32.bf16"))
        for op in launch.counters.opcodes
    )
    found = f"{flops / 1e9:.1f} GFLOP of a matrix product run as FFMA, none on tensor cores"
    if halves:
        us = 1e6 * flops / (2 * spec.mma_fp16_fma * spec.sms * spec.clock_hz)
        found += f": half-precision operands are widened first; tensor cores need {us:.1f} µs"
    return [found]


def _masked(launch: LaunchFacts) -> list[str]:
    share = masked_share(launch)
    heavy = bool(launch.counters.instructions.get("mma")) or _matrix_in_fp32(launch)
    if share < 0.15 or not heavy:
        return []
    selects = [s for s in launch.counters.sites if s.kind == "select" and s.requests]
    worst = max(selects, key=lambda s: s.uniform_false / s.requests)
    return [
        f"at {where([worst])} {100 * share:.0f} % of the selects throw away a whole warp's values:"
        " tiles are computed that the mask discards"
    ]


_RULES: dict[str, Rule] = {
    "dram_bandwidth": _dram,
    "l2_bandwidth": _l2,
    "l1_bandwidth": _l1,
    "shared_memory": _shared,
    "atomics": _atomics,
    "latency": _latency,
    "tail": _tail,
    "launch_overhead": _overhead,
}
