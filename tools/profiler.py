"""Facts of a call as the models that people and agents read."""

from __future__ import annotations

from kopt.gpu import timing
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.metrics import measure
from kopt.gpu.spec import DeviceSpec
from kopt.tools.models import (
    LaunchProfile,
    Metric,
    OperatorProfile,
    Profile,
    Provenance,
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
