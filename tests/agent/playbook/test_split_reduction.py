"""Splitting long loops where there are fewer programs than SMs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.split_reduction import SplitReduction

REWRITE = SplitReduction()
VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
SIZES = {"n_rows": 3, "n_cols": 40_000}

MEAN = '''
import torch
import triton
import triton.language as tl


@triton.jit
def row_mean_kernel(x_ptr, mean_ptr, n_cols, BLOCK: tl.constexpr):
    """The mean of one long row."""
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(mean_ptr + row, tl.sum(total, axis=0) / n_cols)


def row_mean(x):
    mean = torch.empty(x.shape[0], device=x.device)
    row_mean_kernel[(x.shape[0],)](x, mean, x.shape[1], BLOCK=512)
    return mean


def make_inputs(n_rows, n_cols):
    return torch.randint(-8, 9, (n_rows, n_cols), device="cuda").float()
'''

RANGE = """
import torch
import triton
import triton.language as tl


@triton.jit
def spread_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    low = tl.full([BLOCK], float("inf"), tl.float32)
    count = 0.0
    for step in range(tl.cdiv(n_cols, BLOCK)):
        cols = step * BLOCK + tl.arange(0, BLOCK)
        inside = cols < n_cols
        x = tl.load(x_ptr + row * n_cols + cols, mask=inside, other=0.0)
        high = tl.maximum(high, tl.where(inside, x, float("-inf")))
        low = tl.minimum(low, tl.where(inside, x, float("inf")))
        count += tl.sum(inside.to(tl.float32), axis=0)
    tl.store(out_ptr + row, (tl.max(high, axis=0) - tl.min(low, axis=0)) / count)


def spread(x):
    out = torch.empty(x.shape[0], device=x.device)
    grid = lambda meta: (x.shape[0],)
    spread_kernel[grid](x, out, x.shape[1], BLOCK=512, num_warps=2)
    return out


def make_inputs(n_rows, n_cols):
    return torch.randn(n_rows, n_cols, device="cuda")
"""

SKINNY_PRODUCT = """
import torch
import triton
import triton.language as tl


@triton.jit
def skinny_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        a_inside = (m[:, None] < M) & (k[None, :] < K)
        b_inside = (k[:, None] < K) & (n[None, :] < N)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=a_inside, other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=b_inside, other=0.0)
        acc += tl.dot(a, b)
    out = acc.to(tl.float16)
    tl.store(c_ptr + m[:, None] * N + n[None, :], out, mask=(m[:, None] < M) & (n[None, :] < N))


def skinny(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    skinny_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, c, m, n, k, BM=32, BN=32, BK=32)
    return c


def make_inputs(m, n, k):
    a = torch.randint(-2, 3, (m, k), device="cuda").half()
    return a, torch.randint(-2, 3, (k, n), device="cuda").half()
"""


def _both(run: Callable, text: str, entry: str, **sizes: int) -> tuple:
    before = run(text, entry, **sizes)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, entry, **sizes)
    return before, proposal, after


@pytest.mark.parametrize("variant", VARIANTS)
def test_few_long_rows(run: Callable, variant: str) -> None:
    text = {"as_written": MEAN, **all_variants(MEAN, "row_mean")}[variant]
    before, proposal, after = _both(run, text, "row_mean", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert len(after.evidence.launches) == 2
    assert after.evidence.facts.launches[0].counters.ctas == proposal.predicted[0].after
    assert after.time_us < before.time_us


@pytest.mark.parametrize("n_cols", [1, 511, 513, 33_000])
def test_other_lengths(run: Callable, n_cols: int) -> None:
    (proposal,) = REWRITE.propose(run(MEAN, "row_mean", **SIZES).evidence)
    before = run(MEAN, "row_mean", n_rows=2, n_cols=n_cols)
    after = run(proposal.source, "row_mean", n_rows=2, n_cols=n_cols)
    assert np.array_equal(before.outputs[0], after.outputs[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_maximum_minimum_and_a_scalar_count(run: Callable, variant: str) -> None:
    text = {"as_written": RANGE, **all_variants(RANGE, "spread")}[variant]
    before, proposal, after = _both(run, text, "spread", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert "num_warps=2" in proposal.source


@pytest.mark.parametrize("variant", ["as_written", "renamed", "reordered"])
def test_a_product_with_a_long_inner_dimension(run: Callable, variant: str) -> None:
    text = {"as_written": SKINNY_PRODUCT, **all_variants(SKINNY_PRODUCT, "skinny")}[variant]
    before, _, after = _both(run, text, "skinny", m=40, n=70, k=2000)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert after.time_us < before.time_us


def test_not_with_enough_programs(run: Callable) -> None:
    assert not REWRITE.propose(run(MEAN, "row_mean", n_rows=64, n_cols=8192).evidence)


def test_not_for_short_loops(run: Callable) -> None:
    assert not REWRITE.propose(run(MEAN, "row_mean", n_rows=3, n_cols=2000).evidence)


def test_not_where_an_iteration_needs_the_one_before(run: Callable) -> None:
    text = MEAN.replace("        total += tl.load(", "        total = total * 0.5 + tl.load(")
    assert not REWRITE.propose(run(text, "row_mean", **SIZES).evidence)


def test_not_where_accumulators_depend_on_each_other(run: Callable) -> None:
    text = RANGE.replace(
        "count += tl.sum(inside.to(tl.float32), axis=0)", "count += tl.max(high, axis=0)"
    )
    assert not REWRITE.propose(run(text, "spread", **SIZES).evidence)


def test_not_where_each_iteration_is_stored(run: Callable) -> None:
    text = MEAN.replace(
        "        total += tl.load(",
        "        tl.store(x_ptr + row * n_cols + cols, total, mask=cols < n_cols)\n"
        "        total += tl.load(",
    )
    assert not REWRITE.propose(run(text, "row_mean", **SIZES).evidence)
