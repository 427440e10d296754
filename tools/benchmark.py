"""Times of whole entry calls, and ratios of two: predicted ones, always marked as such."""

from __future__ import annotations

from kopt.gpu import timing
from kopt.gpu.facts import CallFacts
from kopt.gpu.spec import DeviceSpec
from kopt.tools.models import Comparison, ComparisonStatus, Measurement, Provenance

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
