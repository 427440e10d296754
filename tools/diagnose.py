"""What limits an entry call, with the numbers that say so. Deterministic rules, no judgement."""

from __future__ import annotations

from kopt.gpu import timing
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.metrics import measure
from kopt.gpu.perturb import perturbations
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.speed_of_light import Compulsory, compulsory, lights
from kopt.gpu.timing import LaunchTime, Prediction, totals
from kopt.tools import evidence
from kopt.tools.models import Diagnosis, Headroom, Metric, Provenance

LEAST_GAIN = 1.05
"""A possible gain below five percent is none: no prediction is trusted further than that."""

UNSEEN = (
    "clocks under load, power and thermal limits",
    "TLB misses, L2 slices and the distance to them",
    "the host's own time between launches",
    "instruction cache misses and register bank conflicts",
)
"""What the timing model never sees."""


def diagnose(
    spec: DeviceSpec,
    workload: str,
    facts: CallFacts,
    *,
    prediction: Prediction | None = None,
    least: Compulsory | None = None,
) -> Diagnosis:
    """The limiting resource of a call, from its counters and their predicted cost.

    `least` is the compulsory work of the reference; without it the call's own facts bound it.
    """
    prediction = prediction or timing.predict(spec, facts)
    least = least or compulsory(facts)
    headroom = headroom_of(spec, facts, least)
    unseen = _unseen(facts, prediction)
    whole = evidence.of_call(spec, facts, prediction, least)
    in_launches = sum(t.time_us for t in prediction.launches)
    in_operators = sum(o.time_us for o in prediction.operators)
    if not facts.launches or in_operators > in_launches:
        return Diagnosis(
            workload=workload,
            bottleneck="operators",
            kernel=None,
            evidence=(*evidence.of_operators(prediction), *whole),
            metrics=(),
            headroom=headroom,
            unseen=unseen,
        )
    launch, time = max(
        zip(facts.launches, prediction.launches, strict=True), key=lambda pair: pair[1].time_us
    )
    bottleneck = _bottleneck(spec, facts, prediction, time)
    return Diagnosis(
        workload=workload,
        bottleneck=bottleneck,
        kernel=launch.kernel,
        evidence=_ordered(spec, launch, time, bottleneck, whole),
        metrics=_metrics(spec, launch, time),
        headroom=headroom,
        unseen=unseen,
    )


def headroom_of(spec: DeviceSpec, facts: CallFacts, least: Compulsory) -> Headroom:
    """How far the call is from the speed of light, and whether that is more than the model can be
    wrong by: on every perturbed device, as for a comparison of two calls."""
    rates = perturbations(spec)
    light = lights(spec, least, rates)
    gain = totals(spec, facts, rates) / light
    return Headroom(
        speed_of_light_us=float(light[0]),
        ratio=float(gain[0]),
        exceeds_interval=bool(gain.min() > LEAST_GAIN),
    )


def _bottleneck(
    spec: DeviceSpec, facts: CallFacts, prediction: Prediction, time: LaunchTime
) -> str:
    """The largest bound of the costliest launch, unless launching and waiting cost more than
    everything that runs."""
    steps = len(facts.launches) + len(facts.operators)
    overhead = steps * spec.launch_overhead_us + prediction.host_us
    return "launch_overhead" if overhead > 0.5 * prediction.time_us else time.bottleneck


def _ordered(
    spec: DeviceSpec,
    launch: LaunchFacts,
    time: LaunchTime,
    bottleneck: str,
    whole: list[str],
) -> tuple[str, ...]:
    """The bottleneck's evidence, then the call's, then of what comes close to the bottleneck, then
    what is always worth saying. Where the launch itself moves nothing twice, the call comes first.
    """
    found = evidence.of_term(spec, launch, time, bottleneck)
    streams = bottleneck == "dram_bandwidth" and evidence.is_streaming(launch)
    if bottleneck == "launch_overhead" or streams:
        found = whole + found
    else:
        found += whole
    largest = max(time.terms.values())
    for term, us in sorted(time.terms.items(), key=lambda item: -item[1]):
        if term != bottleneck and us > 0.7 * largest:
            found += evidence.of_term(spec, launch, time, term)
    found += evidence.of_code(spec, launch, time)
    return tuple(dict.fromkeys(found))


def _metrics(spec: DeviceSpec, launch: LaunchFacts, time: LaunchTime) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            name=m.name,
            value=m.value,
            unit=m.unit,
            provenance=Provenance(m.provenance),
            sentence=m.sentence,
        )
        for m in measure(spec, launch, time)
    )


def _unseen(facts: CallFacts, prediction: Prediction) -> tuple[str, ...]:
    found = list(UNSEEN)
    for launch in facts.launches:
        if launch.counters.coverage < 1:
            found.append(
                f"{launch.kernel}: {100 * (1 - launch.counters.coverage):.0f} % of its CTAs, taken"
                " to be like the counted ones"
            )
    bounds = sorted({o.name for o in prediction.operators if o.bound})
    if bounds:
        found.append(f"how well the library runs {', '.join(bounds)}: its time is a lower bound")
    return tuple(dict.fromkeys(found))
