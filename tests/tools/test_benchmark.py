"""Predicted times are marked so, and ratios of like calls are no news."""

from __future__ import annotations

from kopt.gpu.facts import CallFacts, OperatorFacts
from kopt.gpu.spec import load_spec
from kopt.tools.benchmark import comparison, measurement
from kopt.tools.models import ComparisonStatus, Provenance

A100 = load_spec("a100")


def copies(count: int) -> CallFacts:
    """One call of so many elementwise operators over 256 MB."""
    megabytes = 256 << 20
    operators = tuple(
        OperatorFacts(i, "aten.mul.Tensor", "float32", megabytes, megabytes, megabytes // 4)
        for i in range(count)
    )
    return CallFacts("a100", (), operators, 0, 0, 0, 2 * megabytes)


def test_times_are_predicted_and_inside_their_interval() -> None:
    found = measurement(A100, "w", copies(2))
    assert found.provenance is Provenance.PREDICTED
    assert 0 < found.low_us <= found.time_us <= found.high_us


def test_a_call_is_the_same_as_itself() -> None:
    found = comparison(A100, "w", copies(3), copies(3))
    assert found.status is ComparisonStatus.SAME
    assert found.speedup == 1.0


def test_half_the_work_is_faster_and_twice_the_work_slower() -> None:
    faster = comparison(A100, "w", copies(4), copies(2))
    assert faster.status is ComparisonStatus.FASTER
    assert 1.8 < faster.speedup < 2.2
    assert faster.speedup_low <= faster.speedup <= faster.speedup_high
    assert comparison(A100, "w", copies(2), copies(4)).status is ComparisonStatus.SLOWER
