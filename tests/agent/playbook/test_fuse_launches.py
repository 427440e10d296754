"""Fusing launches: chains and row reductions, and what must stay apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.fuse_launches import FuseLaunches

REWRITE = FuseLaunches()
VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
SIZES = {"n_rows": 37, "n_cols": 300}

MASKED = """
import torch
import triton
import triton.language as tl


@triton.jit
def exp_kernel(x_ptr, e_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=inside, other=0.0)
    tl.store(e_ptr + row * n_cols + cols, tl.exp(x), mask=inside)


@triton.jit
def normalise_kernel(e_ptr, out_ptr, stride, n_cols, SIZE: tl.constexpr):
    i = tl.program_id(0)
    j = tl.arange(0, SIZE)
    e = tl.load(e_ptr + i * stride + j, mask=j < n_cols, other=0.0)
    tl.store(out_ptr + i * stride + j, e / tl.sum(e, axis=0), mask=j < n_cols)


def softmax(x):
    rows, cols = x.shape
    size = triton.next_power_of_2(cols)
    e = torch.empty_like(x)
    exp_kernel[(rows,)](x, e, cols, BLOCK=size)
    out = torch.empty_like(x)
    normalise_kernel[(rows,)](e, out, e.stride(0), cols, SIZE=triton.next_power_of_2(cols))
    return out


def make_inputs(n_rows, n_cols):
    return torch.randn(n_rows, n_cols, device="cuda")
"""

PAIR = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2.0 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i, mask=i < n)
    b = tl.load(b_ptr + i, mask=i < n)
    tl.store(y_ptr + i, a + b, mask=i < n)


def run(x):
    n = x.numel()
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 256),)](x, y, z, n, BLOCK=256)
    return z


def make_inputs(n):
    return torch.randn(n, device="cuda")
"""


def _both(run: Callable, text: str, entry: str, **sizes: int) -> tuple:
    before = run(text, entry, **sizes)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, entry, **sizes)
    return before, proposal, after


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_elementwise_chain_becomes_one_launch(
    run: Callable, example: Callable, variant: str
) -> None:
    text = example("elementwise_chain")
    text = {"as_written": text, **all_variants(text, "gated_silu")}[variant]
    before, proposal, after = _both(run, text, "gated_silu", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert len(after.evidence.launches) == 1
    assert len(before.evidence.launches) == 3
    assert _allocations(after) == 1
    assert "need not move" in proposal.evidence[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_reduction_takes_its_input_from_registers_and_the_sum_is_still_stored(
    run: Callable, example: Callable, variant: str
) -> None:
    text = example("rmsnorm_residual")
    text = {"as_written": text, **all_variants(text, "rmsnorm_residual")}[variant]
    before, proposal, after = _both(run, text, "rmsnorm_residual", **SIZES)
    assert len(after.evidence.launches) == 1
    for one, two in zip(before.outputs, after.outputs, strict=True):
        assert np.array_equal(one, two)
    assert "still stored" in proposal.rationale


def test_an_intermediate_that_nobody_else_needs_is_not_stored(
    run: Callable, example: Callable
) -> None:
    text = example("rmsnorm_residual").replace("return out, hidden", "return out", 1)
    before, _, after = _both(run, text, "rmsnorm_residual", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _allocations(after) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_lanes_behind_the_mask_are_set_where_the_load_set_them(run: Callable, variant: str) -> None:
    """exp(0) is 1 behind the mask, but the sum was over what the second load had put there: 0."""
    text = {"as_written": MASKED, **all_variants(MASKED, "softmax")}[variant]
    before, proposal, after = _both(run, text, "softmax", **SIZES)
    assert "tl.where(" in proposal.source
    assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-6)


def test_the_launches_are_fused_at_other_sizes_too(run: Callable, example: Callable) -> None:
    text = example("elementwise_chain")
    (proposal,) = REWRITE.propose(run(text, "gated_silu", **SIZES).evidence)
    for rows, cols in ((1, 1), (3, 1024), (129, 7)):
        before = run(text, "gated_silu", n_rows=rows, n_cols=cols)
        after = run(proposal.source, "gated_silu", n_rows=rows, n_cols=cols)
        assert np.array_equal(before.outputs[0], after.outputs[0])


def test_a_kernel_that_is_launched_elsewhere_is_kept(run: Callable) -> None:
    text = PAIR + "\n\ndef other(x):\n    double_kernel[(1,)](x, x, 1, BLOCK=256)\n"
    before, proposal, after = _both(run, text, "run", n=1000)
    assert "def double_kernel(" in proposal.source
    assert "def add_kernel(" not in proposal.source
    assert np.array_equal(before.outputs[0], after.outputs[0])


NEAR_MISSES = {
    "another grid": ("(triton.cdiv(n, 256),)](x, y, z", "(triton.cdiv(n, 256) + 0,)](x, y, z"),
    "another tile": (
        "add_kernel[(triton.cdiv(n, 256),)](x, y, z, n, BLOCK=256)",
        "add_kernel[(triton.cdiv(n, 512),)](x, y, z, n, BLOCK=512)",
    ),
    "shifted offsets": (
        "b = tl.load(b_ptr + i, mask=i < n)",
        "b = tl.load(b_ptr + i + 1, mask=i < n - 1, other=0.0)",
    ),
    "other offsets behind the same mask": (
        "b = tl.load(b_ptr + i, mask=i < n)",
        "b = tl.load(b_ptr + (n - 1 - i), mask=i < n)",
    ),
    "another mask": (
        "b = tl.load(b_ptr + i, mask=i < n)",
        "b = tl.load(b_ptr + i, mask=i < n // 2, other=0.0)",
    ),
    "an operator between": (
        "    z = torch.empty_like(x)",
        "    z = torch.zeros_like(x)\n    y += 1",
    ),
    "an operator in an assignment between": (
        "    z = torch.empty_like(x)",
        "    z = 0 * y.mul_(2.0)",
    ),
    "a branch between": (
        "    add_kernel[(triton",
        "    if n > 3:\n        add_kernel[(triton",
    ),
    "an input written over": ("](x, y, z, n, BLOCK=256)", "](x, y, x, n, BLOCK=256)"),
    "unrelated data": ("](x, y, z, n, BLOCK=256)", "](x, x, z, n, BLOCK=256)"),
    "another number of warps": (
        "](x, y, z, n, BLOCK=256)",
        "](x, y, z, n, BLOCK=256, num_warps=8)",
    ),
    "read through another view": ("](x, y, z, n, BLOCK=256)", "](x, y[8:], z, n - 8, BLOCK=256)"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay_apart(run: Callable, name: str) -> None:
    old, new = NEAR_MISSES[name]
    assert PAIR.count(old) == 1
    assert not REWRITE.propose(run(PAIR.replace(old, new), "run", n=1000).evidence)


def test_the_pair_itself_is_fused(run: Callable) -> None:
    before, _, after = _both(run, PAIR, "run", n=1000)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def _allocations(ran: object) -> int:
    from kopt.gpu.trace import Alloc

    return sum(isinstance(e, Alloc) for e in ran.evidence.trace.events)  # type: ignore[attr-defined]
