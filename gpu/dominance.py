"""Comparing two calls by their counters alone: no rate of any device enters."""

from __future__ import annotations

from kopt.gpu.demand import bytes_in_flight, demand
from kopt.gpu.facts import CallFacts
from kopt.gpu.spec import DeviceSpec


def costs(facts: CallFacts) -> dict[str, float]:
    """Counters of which less is better, summed over the call."""
    total: dict[str, float] = {
        "launches": len(facts.launches) + len(facts.operators),
        "operator_bytes": sum(o.read_bytes + o.write_bytes for o in facts.operators),
        "operator_flops": sum(o.flops for o in facts.operators),
        "host_copy_bytes": facts.host_copy_bytes + facts.device_read_bytes,
        "synchronisations": facts.synchronisations,
    }
    for launch in facts.launches:
        counters, traffic, compiled = launch.counters, launch.traffic, launch.compiled
        found = {
            "instructions": sum(counters.instructions.values()),
            "special_functions": counters.instructions.get("sfu", 0),
            "matrix_instructions": counters.instructions.get("mma", 0),
            "dram_bytes": traffic.dram_read_bytes + traffic.dram_write_bytes,
            "l2_bytes": traffic.l2_read_bytes + traffic.l2_write_bytes,
            "l1_wavefronts": traffic.l1_wavefronts,
            "shared_wavefronts": sum(s.wavefronts for s in counters.sites),
            "barriers": counters.barriers,
            "atomic_requests": sum(s.requests for s in counters.sites if s.kind == "atomic"),
            "hottest_atomic": traffic.atomic_hottest_requests,
            "spills": (compiled.spill_load_bytes + compiled.spill_store_bytes)
            * counters.ctas * launch.threads_per_cta,
        }  # fmt: skip
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


def dominates(spec: DeviceSpec, baseline: CallFacts, candidate: CallFacts) -> bool:
    """Whether the candidate costs no more of anything, less of something, keeps as many bytes in
    flight, and spreads its CTAs no worse."""
    old, new = costs(baseline), costs(candidate)
    names = old.keys() | new.keys()
    if any(new.get(n, 0.0) > old.get(n, 0.0) for n in names):
        return False
    if not any(new.get(n, 0.0) < old.get(n, 0.0) for n in names):
        return False
    flight_old = min((bytes_in_flight(spec, x) for x in baseline.launches), default=0.0)
    flight_new = min((bytes_in_flight(spec, x) for x in candidate.launches), default=flight_old)
    uneven_old = max((demand(spec, x).imbalance for x in baseline.launches), default=1.0)
    uneven_new = max((demand(spec, x).imbalance for x in candidate.launches), default=1.0)
    return flight_new >= flight_old and uneven_new <= uneven_old
