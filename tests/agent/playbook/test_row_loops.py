"""Rewrites of loops over a row: one block, online softmax, one-pass variance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from generator import Style, row_norm, row_softmax, styles
from hypothesis import HealthCheck, Phase, given, settings
from variants import all_variants

from kopt.agent.playbook.base import Rewrite
from kopt.agent.playbook.one_pass_variance import OnePassVariance
from kopt.agent.playbook.online_softmax import OnlineSoftmax
from kopt.agent.playbook.row_in_one_block import RowInOneBlock

VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
EXAMPLES: list[tuple[str, str, dict[str, int], Rewrite]] = [
    ("softmax", "softmax", {"rows": 8, "cols": 5000}, RowInOneBlock()),
    ("softmax", "softmax", {"rows": 8, "cols": 5000}, OnlineSoftmax()),
    ("cross_entropy", "cross_entropy", {"rows": 8, "vocab": 5000}, OnlineSoftmax()),
    ("layernorm", "layer_norm", {"rows": 8, "cols": 5000}, RowInOneBlock()),
    ("layernorm", "layer_norm", {"rows": 8, "cols": 5000}, OnePassVariance()),
]
few = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PLAIN = Style(
    names=("x", "y", "z", "n", "block", "row", "at", "cols", "value", "one", "two", "kernel"),
    dtype="float32",
    block=256,
    tile_sum=False,
    named_mask=False,
    language_range=False,
    augmented=True,
    helper=False,
    output_first=False,
    extra_store=False,
)


def _close(before: object, after: object, tolerance: float = 1e-5) -> None:
    for one, two in zip(before.outputs, after.outputs, strict=True):  # type: ignore[attr-defined]
        assert np.allclose(one, two, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("name", "entry", "sizes", "rewrite"), EXAMPLES)
def test_examples_in_every_variant(
    run: Callable,
    example: Callable,
    variant: str,
    name: str,
    entry: str,
    sizes: dict[str, int],
    rewrite: Rewrite,
) -> None:
    text = example(name)
    text = {"as_written": text, **all_variants(text, entry)}[variant]
    before = run(text, entry, **sizes)
    proposals = rewrite.propose(before.evidence)
    assert proposals
    _close(before, run(proposals[0].source, entry, **sizes))


@few
@given(style=styles)
def test_generated_softmax(run: Callable, style: Style) -> None:
    text = row_softmax(style)
    before = run(text, "run")
    for rewrite in (OnlineSoftmax(), RowInOneBlock()):
        proposals = rewrite.propose(before.evidence)
        assert proposals, text
        tolerance = 1e-5 if style.dtype == "float32" else 2e-2
        _close(before, run(proposals[0].source, "run"), tolerance)
        assert not OnePassVariance().propose(before.evidence)


@few
@given(style=styles)
def test_generated_norm(run: Callable, style: Style) -> None:
    text = row_norm(style)
    before = run(text, "run")
    for rewrite in (OnePassVariance(), RowInOneBlock()):
        proposals = rewrite.propose(before.evidence)
        assert proposals, text
        tolerance = 1e-4 if style.dtype == "float32" else 2e-2
        _close(before, run(proposals[0].source, "run"), tolerance)
        assert not OnlineSoftmax().propose(before.evidence)


@few
@given(style=styles)
def test_no_variance_about_something_else_than_the_mean(run: Callable, style: Style) -> None:
    before = run(row_norm(style, mean="1.5"), "run")
    assert not OnePassVariance().propose(before.evidence)


@few
@given(style=styles)
def test_no_variance_with_columns_past_the_end(run: Callable, style: Style) -> None:
    before = run(row_norm(style, masked_deviation=False), "run")
    assert not OnePassVariance().propose(before.evidence)


def test_fewer_passes_read_less(run: Callable) -> None:
    for text, rewrite in (
        (row_norm(PLAIN), OnePassVariance()),
        (row_softmax(PLAIN), OnlineSoftmax()),
    ):
        before = run(text, "run")
        (proposal,) = rewrite.propose(before.evidence)
        after = run(proposal.source, "run")
        requested = [
            r.evidence.launches[0].launch.traffic.l1_requested_bytes for r in (before, after)
        ]
        assert requested[1] == pytest.approx(requested[0] * 3 / 4, rel=0.02)


def test_large_means_keep_their_variance(run: Callable) -> None:
    text = row_norm(PLAIN).replace('device="cuda")\n', 'device="cuda") + 1000.0\n')
    before = run(text, "run")
    (proposal,) = OnePassVariance().propose(before.evidence)
    after = run(proposal.source, "run")
    # One unit in the last place of the inputs is 6e-5.
    assert np.abs(before.outputs[0] - after.outputs[0]).max() < 2e-4


def test_rows_shorter_than_a_block(run: Callable) -> None:
    for text, rewrite in (
        (row_norm(PLAIN), OnePassVariance()),
        (row_softmax(PLAIN), OnlineSoftmax()),
    ):
        (proposal,) = rewrite.propose(run(text, "run").evidence)
        for n_cols in (1, 7, 256, 257):
            before = run(text, "run", n_cols=n_cols)
            _close(before, run(proposal.source, "run", n_cols=n_cols), 1e-4)


def test_one_block_not_without_masks(run: Callable, example: Callable) -> None:
    text = example("softmax").replace(', mask=cols < n_cols, other=-float("inf")', "")
    text = text.replace(", mask=cols < n_cols", "")
    before = run(text, "softmax", rows=4, cols=3072)
    assert not RowInOneBlock().propose(before.evidence)


def test_one_block_not_for_rows_that_spill(run: Callable) -> None:
    before = run(row_softmax(PLAIN), "run", n_rows=2, n_cols=100_000)
    assert not RowInOneBlock().propose(before.evidence)


def test_one_block_not_for_loops_over_different_rows(run: Callable) -> None:
    text = row_softmax(PLAIN)
    head, first, rest = text.partition("        value = tl.load(x + cols")
    text = head + first.replace("x + cols", "x - row * n + cols") + rest
    second, third, tail = text.rpartition("        value = tl.load(x + cols")
    text = second + third.replace("x + cols", "x + n - 1 - cols") + tail
    middle = text.split("        two +=")
    text = middle[0].rsplit("x + cols", 1)[0] + "x + cols // 2" + middle[0].rsplit("x + cols", 1)[1]
    text += "        two +=" + middle[1]
    before = run(text, "run")
    assert not RowInOneBlock().propose(before.evidence)
    assert not OnlineSoftmax().propose(before.evidence)


def test_online_not_where_the_maximum_is_used_between(run: Callable) -> None:
    text = row_softmax(PLAIN).replace("    two = 0.0\n", "    one = one * 0.5\n    two = 0.0\n")
    before = run(text, "run")
    assert not OnlineSoftmax().propose(before.evidence)


def test_online_not_for_a_minimum(run: Callable) -> None:
    text = row_softmax(PLAIN).replace("tl.max(value", "tl.min(value")
    assert not OnlineSoftmax().propose(run(text, "run").evidence)
