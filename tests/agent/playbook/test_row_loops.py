"""Rewrites of loops over a row: one block, online softmax, one-pass variance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.online_softmax import OnlineSoftmax
from kopt.agent.playbook.row_in_one_block import RowInOneBlock

VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]


def _variant(text: str, entry: str, variant: str) -> str:
    return {"as_written": text, **all_variants(text, entry)}[variant]


@pytest.mark.parametrize("variant", VARIANTS)
def test_softmax_in_one_block(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(example("softmax"), "softmax", variant)
    before = run(text, "softmax", rows=8, cols=5000)
    proposals = RowInOneBlock().propose(before.evidence)
    assert proposals
    after = run(proposals[0].source, "softmax", rows=8, cols=5000)
    assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_softmax_online(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(example("softmax"), "softmax", variant)
    before = run(text, "softmax", rows=8, cols=5000)
    proposals = OnlineSoftmax().propose(before.evidence)
    assert proposals
    after = run(proposals[0].source, "softmax", rows=8, cols=5000)
    assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cross_entropy_online(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(example("cross_entropy"), "cross_entropy", variant)
    before = run(text, "cross_entropy", rows=8, vocab=5000)
    proposals = OnlineSoftmax().propose(before.evidence)
    assert proposals
    after = run(proposals[0].source, "cross_entropy", rows=8, vocab=5000)
    assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layer_norm_in_one_block(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(example("layernorm"), "layer_norm", variant)
    before = run(text, "layer_norm", rows=8, cols=5000)
    proposals = RowInOneBlock().propose(before.evidence)
    assert proposals
    after = run(proposals[0].source, "layer_norm", rows=8, cols=5000)
    assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-5, atol=1e-5)
