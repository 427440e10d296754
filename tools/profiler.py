"""Facts of a call as the models that people and agents read."""

from __future__ import annotations

from kopt.gpu import timing
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.metrics import measure
from kopt.gpu.spec import DeviceSpec
from kopt.tools.models import (
    Comparison,
    ComparisonStatus,
    LaunchProfile,
    Measurement,
    Metric,
    OperatorProfile,
    Profile,
    Provenance,
)

SAME = 1.01
"""Two calls whose ratio stays within this are the same: nobody could measure the difference."""


def measurement(spec: DeviceSpec, workload: str, facts: CallFacts) -> Measurement:
    """The predicted time of one entry call with the range over perturbed devices."""
    prediction = timing.predict(spec, facts)
    low, high = timing.interval(spec, facts)
    terms: dict[str, float] = {}
    for launch in prediction.launches:
        for name, value in launch.terms.items():
            terms[name] = terms.get(name, 0.0) + value
    return Measurement(
        workload=workload,
        time_us=prediction.time_us,
        low_us=low,
        high_us=high,
        provenance=Provenance.PREDICTED,
        coverage=min((x.counters.coverage for x in facts.launches), default=1.0),
        terms=terms,
    )


def comparison(
    spec: DeviceSpec, workload: str, baseline: CallFacts, candidate: CallFacts
) -> Comparison:
    """Baseline time over candidate time; each device rate is perturbed alike for both."""
    found = timing.ratio(spec, baseline, candidate)
    if found.low >= 1 / SAME and found.high <= SAME:
        status = ComparisonStatus.SAME
    elif found.low > 1.0 or found.dominated:
        status = ComparisonStatus.FASTER
    elif found.high < 1.0:
        status = ComparisonStatus.SLOWER
    else:
        status = ComparisonStatus.INCONCLUSIVE
    return Comparison(
        workload=workload,
        status=status,
        speedup=found.speedup,
        speedup_low=found.low,
        speedup_high=found.high,
        provenance=Provenance.PREDICTED,
        dominated=found.dominated,
    )


def profile(spec: DeviceSpec, workload: str, facts: CallFacts) -> Profile:
    """Metrics of every launch, and what the operators between them cost."""
    prediction = timing.predict(spec, facts)
    launches = tuple(
        LaunchProfile(
            ordinal=launch.ordinal,
            kernel=launch.kernel,
            grid=launch.grid,
            threads_per_cta=launch.threads_per_cta,
            time_us=time.time_us,
            metrics=tuple(
                Metric(
                    name=m.name,
                    value=m.value,
                    unit=m.unit,
                    provenance=Provenance(m.provenance),
                    sentence=m.sentence,
                )
                for m in measure(spec, launch, time)
            ),
            hot_lines=tuple(hot_lines(launch)),
            coverage=launch.counters.coverage,
        )
        for launch, time in zip(facts.launches, prediction.launches, strict=True)
    )
    operators = tuple(
        OperatorProfile(
            ordinal=op.ordinal,
            operator=op.name,
            time_us=time.time_us,
            bytes=op.read_bytes + op.write_bytes,
            flops=op.flops,
            bound=time.bound,
        )
        for op, time in zip(facts.operators, prediction.operators, strict=True)
    )
    return Profile(
        workload=workload,
        gpu=spec.name,
        time_us=prediction.time_us,
        launches=launches,
        operators=operators,
        peak_memory_bytes=facts.peak_bytes,
    )


def hot_lines(launch: LaunchFacts) -> list[str]:
    """The source lines whose memory accesses take most sectors or shared-memory passes."""
    cost: dict[str, float] = {}
    for site in launch.counters.sites:
        if site.line and site.kind != "select":
            name = f"{site.file.rsplit('/', 1)[-1]}:{site.line}"
            cost[name] = cost.get(name, 0.0) + site.sectors + 4 * site.wavefronts
    total = sum(cost.values())
    ranked = sorted(cost.items(), key=lambda item: -item[1])[:5]
    return [
        f"{name} ({100 * value / total:.0f} % of memory work)" for name, value in ranked if value
    ]
