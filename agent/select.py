"""Which candidate is better: pure functions from comparisons to decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from kopt.agent.state import Attempt
from kopt.tools.models import Comparison, Evaluation, Provenance, VerdictStatus

GUARD = 0.98
"""No workload may become slower than this, however fast the others are."""

LEAST_GAIN = 1.02
"""Less than this is no news, however sure it is: nobody could measure it."""


class Score(BaseModel):
    """The objective: the geometric mean of the workloads' speed-ups, with its interval."""

    model_config = ConfigDict(frozen=True)

    speedup: float
    low: float
    high: float
    worst: float
    dominated: bool
    provenance: Provenance


def score(comparisons: Sequence[Comparison]) -> Score | None:
    """The objective over all workloads; None where nothing was compared.

    The interval is the one in which all workloads err to the same side, since the model's errors
    are shared by them.
    """
    if not comparisons:
        return None
    measured = all(c.provenance is Provenance.MEASURED for c in comparisons)
    return Score(
        speedup=_geometric_mean(c.speedup for c in comparisons),
        low=_geometric_mean(c.speedup_low for c in comparisons),
        high=_geometric_mean(c.speedup_high for c in comparisons),
        worst=min(c.speedup for c in comparisons),
        dominated=all(c.dominated for c in comparisons),
        provenance=Provenance.MEASURED if measured else Provenance.PREDICTED,
    )


def is_gain(scored: Score) -> bool:
    """Whether it may be called an improvement: beyond the interval, or by dominance."""
    if scored.worst < GUARD:
        return False
    return scored.speedup >= LEAST_GAIN and (scored.low > 1.0 or scored.dominated)


def scored(evaluation: Evaluation) -> Score | None:
    """The score of a candidate that passed; None for any other."""
    if evaluation.verdict.status is not VerdictStatus.PASS:
        return None
    return score(evaluation.comparisons)


def attempt_score(attempt: Attempt) -> Score | None:
    """The same, from the search's memory."""
    if attempt.speedup is None or attempt.provenance is None:
        return None
    return Score(
        speedup=attempt.speedup,
        low=attempt.speedup_low or 0.0,
        high=attempt.speedup_high or attempt.speedup,
        worst=attempt.worst or 0.0,
        dominated=attempt.dominated,
        provenance=attempt.provenance,
    )


def ranked(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Those that passed and hurt no workload, best first.

    Ties go to the smaller change, then to the id, so that the order never depends on time.
    """
    fit = [
        (attempt, found)
        for attempt in attempts
        if (found := attempt_score(attempt)) is not None and found.worst >= GUARD
    ]
    fit.sort(key=lambda pair: (-round(pair[1].speedup, 6), pair[0].depth, pair[0].id))
    return [attempt for attempt, _ in fit]


def gaining(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The ranked attempts that may be called improvements."""
    return [a for a in ranked(attempts) if (s := attempt_score(a)) is not None and is_gain(s)]


def guarded(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Attempts that gain overall but slow a workload down: fit only behind a dispatch by shape."""
    return [
        a
        for a in attempts
        if (s := attempt_score(a)) is not None and s.worst < GUARD and s.speedup > 1.0
    ]


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(max(v, 1e-12)) for v in values]
    return math.exp(sum(logs) / len(logs))
