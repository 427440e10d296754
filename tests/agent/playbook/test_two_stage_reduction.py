"""Adding up in registers before adding atomically."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.two_stage_reduction import TwoStageReduction

REWRITE = TwoStageReduction()
VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
SIZES = {"n_rows": 8192, "n_cols": 48}

DOT_PRODUCT = """
import torch
import triton
import triton.language as tl


@triton.jit
def dot_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    y = tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x * y, axis=0))


def dot(x, y):
    out = torch.zeros(1, device=x.device)
    n = x.numel()
    dot_kernel[(triton.cdiv(n, 128),)](x, y, out, n, BLOCK=128)
    return out


def make_inputs(n):
    return torch.ones(n, device="cuda"), torch.randint(0, 3, (n,), device="cuda").float()
"""

WEIGHT_GRADIENTS = '''
import torch
import triton
import triton.language as tl


@triton.jit
def backward_kernel(dy_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, db_ptr, n_cols, BLOCK: tl.constexpr):
    """One row: the gradient of the input, and its share of those of weight and bias."""
    row = tl.program_id(axis=0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    tl.store(dx_ptr + row * n_cols + cols, dy * w, mask=mask)
    # Shares of this row.
    tl.atomic_add(dw_ptr + cols, dy * x, mask=mask)
    tl.atomic_add(db_ptr + cols, dy, mask=mask)


def backward(dy, x, w):
    dx = torch.empty_like(x)
    dw = torch.zeros_like(w)
    db = torch.zeros_like(w)
    backward_kernel[(x.shape[0],)](
        dy,
        x,
        w,
        dx,
        dw,
        db,
        x.shape[1],
        BLOCK=triton.next_power_of_2(x.shape[1]),
    )
    return dx, dw, db


def make_inputs(n_rows, n_cols):
    shape = (n_rows, n_cols)
    return (
        torch.randint(0, 3, shape, device="cuda").float(),
        torch.randint(0, 3, shape, device="cuda").float(),
        torch.ones(n_cols, device="cuda"),
    )
'''


TILES = """
import torch
import triton
import triton.language as tl


@triton.jit
def kern(x_ptr, out_ptr, stride, n, c, R: tl.constexpr, C: tl.constexpr):
    pid_r, pid_c = tl.program_id(0), tl.program_id(1)
    rows = pid_r * R + tl.arange(0, R)
    cols = pid_c * C + tl.arange(0, C)
    m = (rows < n)[:, None] & (cols < c)[None, :]
    x = tl.load(x_ptr + rows[:, None] * stride + cols[None, :], mask=m, other=0.0)
    tl.atomic_add(out_ptr + cols, tl.sum(x, axis=0), mask=cols < c, sem="relaxed")


def colsum(x):
    n, c = x.shape
    out = torch.zeros((c,), dtype=torch.float32, device=x.device)
    R, C = 4, 64
    grid = (triton.cdiv(n, R), triton.cdiv(c, C))
    kern[grid](x, out, x.stride(0), n, c, R=R, C=C)
    return out


def make_inputs(n, c):
    return torch.randint(0, 3, (n, c), device="cuda").float()
"""


def _whole(text: str) -> str:
    """With inputs whose sums are exact in any order."""
    return text.replace(
        'torch.randn(n_rows, n_cols, device="cuda")',
        'torch.randint(0, 3, (n_rows, n_cols), device="cuda").float()',
    ).replace(
        "torch.randn(n_rows, n_cols, device='cuda')",
        "torch.randint(0, 3, (n_rows, n_cols), device='cuda').float()",
    )


def _hottest(ran: object) -> int:
    (launch,) = ran.evidence.facts.launches  # type: ignore[attr-defined]
    return int(launch.traffic.atomic_hottest_requests)


@pytest.mark.parametrize("variant", VARIANTS)
def test_column_sums(run: Callable, example: Callable, variant: str) -> None:
    text = _whole(example("column_sum"))
    text = {"as_written": text, **all_variants(text, "column_sum")}[variant]
    before = run(text, "column_sum", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "column_sum", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _hottest(before) == SIZES["n_rows"]
    assert _hottest(after) == proposal.predicted[0].after
    assert after.time_us < before.time_us


@pytest.mark.parametrize("n_rows", [1, 5, 1000, 5000])
def test_other_numbers_of_rows(run: Callable, example: Callable, n_rows: int) -> None:
    text = _whole(example("column_sum"))
    (proposal,) = REWRITE.propose(run(text, "column_sum", **SIZES).evidence)
    before = run(text, "column_sum", n_rows=n_rows, n_cols=700)
    after = run(proposal.source, "column_sum", n_rows=n_rows, n_cols=700)
    assert np.array_equal(before.outputs[0], after.outputs[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_number_that_all_programs_add_to(run: Callable, variant: str) -> None:
    text = {"as_written": DOT_PRODUCT, **all_variants(DOT_PRODUCT, "dot")}[variant]
    before = run(text, "dot", n=1_300_000)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "dot", n=1_300_000)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _hottest(after) < _hottest(before) / 3


@pytest.mark.parametrize("variant", ["as_written", "renamed", "split"])
def test_several_sums_beside_other_stores(run: Callable, variant: str) -> None:
    text = {"as_written": WEIGHT_GRADIENTS, **all_variants(WEIGHT_GRADIENTS, "backward")}[variant]
    before = run(text, "backward", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "backward", **SIZES)
    for one, two in zip(before.outputs, after.outputs, strict=True):
        assert np.array_equal(one, two)
    if variant == "as_written":
        # The weight does not depend on the row, so it is loaded once.
        head, loop = proposal.source.split("    for row in ")
        assert "w = tl.load(w_ptr" in head
        assert "w = tl.load(w_ptr" not in loop


@pytest.mark.parametrize("variant", ["as_written", "renamed", "reordered"])
def test_sums_of_two_dimensional_tiles(run: Callable, variant: str) -> None:
    text = {"as_written": TILES, **all_variants(TILES, "colsum")}[variant]
    before = run(text, "colsum", n=20_000, c=70)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "colsum", n=20_000, c=70)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_not_with_few_additions(run: Callable, example: Callable) -> None:
    assert not REWRITE.propose(
        run(_whole(example("column_sum")), "column_sum", n_rows=128, n_cols=4096).evidence
    )


def test_not_where_every_program_has_its_own_addresses(run: Callable, example: Callable) -> None:
    text = _whole(example("column_sum"))
    text = text.replace(
        "tl.atomic_add(out_ptr + cols", "tl.atomic_add(out_ptr + row % 8 + cols * 8"
    )
    text = text.replace("torch.zeros(n_cols", "torch.zeros(n_cols * 8")
    assert not REWRITE.propose(run(text, "column_sum", **SIZES).evidence)


def test_not_where_the_result_of_the_addition_is_used(run: Callable, example: Callable) -> None:
    text = _whole(example("column_sum"))
    text = text.replace("    tl.atomic_add(out_ptr", "    old = tl.atomic_add(out_ptr")
    text = text.replace(
        "x, mask=mask)\n\n",
        "x, mask=mask)\n    tl.store(x_ptr + row * n_cols + cols, old, mask=mask)\n\n",
    )
    assert "tl.store" in text
    assert not REWRITE.propose(run(text, "column_sum", **SIZES).evidence)


def test_not_for_other_atomics(run: Callable, example: Callable) -> None:
    text = _whole(example("column_sum")).replace("tl.atomic_add", "tl.atomic_max")
    assert not REWRITE.propose(run(text, "column_sum", **SIZES).evidence)


def test_not_where_the_mask_depends_on_the_row(run: Callable, example: Callable) -> None:
    text = _whole(example("column_sum")).replace(
        "x, mask=mask)\n\n", "x, mask=mask & (row % 2 == 0))\n\n"
    )
    assert not REWRITE.propose(run(text, "column_sum", **SIZES).evidence)
