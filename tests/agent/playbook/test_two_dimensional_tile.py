"""Two-dimensional tiles: found in every way of writing a transpose, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.two_dimensional_tile import TwoDimensionalTile

REWRITE = TwoDimensionalTile()
SIZES = {"n_rows": 160, "n_cols": 208}

BATCHED = """
import torch
import triton
import triton.language as tl


@triton.jit
def permute_kernel(x_ptr, out_ptr, n, R, C, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    c = i % C
    r = (i // C) % R
    b = i // (C * R)
    tl.store(out_ptr + b * (R * C) + c * R + r, tl.load(x_ptr + i, mask=ok), mask=ok)


def permute(x):
    b, r, c = x.shape
    out = torch.empty((b, c, r), device=x.device, dtype=x.dtype)
    permute_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), r, c, BLOCK=256)
    return out


def make_inputs(b, r, c):
    return torch.randn(b, r, c, device="cuda")
"""

SWAPPED_HEADS = BATCHED.replace("b * (R * C) + c * R + r", "r * C + b * (R * C) + c")
"""The innermost index stays innermost: nothing is scattered."""

GATHERING = """
import torch
import triton
import triton.language as tl


@triton.jit
def back_kernel(src, dst, rows, cols, total, SIZE: tl.constexpr):
    where = SIZE * tl.program_id(0) + tl.arange(0, SIZE)
    v = tl.load(src + (where % rows) * cols + where // rows, mask=total > where, other=0.0)
    tl.store(dst + where, v + 1.0, mask=total > where)


def back(x):
    out = torch.empty((x.shape[1], x.shape[0]), device=x.device)
    back_kernel[lambda meta: (triton.cdiv(x.numel(), meta["SIZE"]),)](
        x, out, x.shape[0], x.shape[1], x.numel(), SIZE=512
    )
    return out


def make_inputs(n_rows, n_cols):
    return torch.randn(n_rows, n_cols, device="cuda")
"""


WIDE = """
import torch
import triton
import triton.language as tl


@triton.jit
def kern(x_ptr, out_ptr, n_elements, H, W, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    block_start = pid * BLOCK
    offsets = block_start + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    h = offsets // W
    w = offsets - h * W
    tl.store(out_ptr + w * H + h, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def tr(x):
    out = torch.empty((x.shape[1], x.shape[0]), device=x.device)
    n = x.numel()
    kern[(triton.cdiv(n, 256),)](x, out, n, x.shape[0], x.shape[1], 256)
    return out


def make_inputs(n, c):
    return torch.randn(n, c, device="cuda")
"""


@pytest.mark.parametrize("variant", ["as_written", "renamed", "reordered", "split", "all"])
def test_every_way_of_writing_a_transpose(run: Callable, example: Callable, variant: str) -> None:
    text = example("transpose")
    text = {"as_written": text, **all_variants(text, "transpose")}[variant]
    before = run(text, "transpose", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "transpose", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _waste(before) > 4
    assert _waste(after) < 1.3
    assert "8.0x" in proposal.evidence[0] or "7." in proposal.evidence[0]


@pytest.mark.parametrize(("n_rows", "n_cols"), [(1, 500), (500, 1), (31, 33), (64, 64), (7, 1000)])
def test_the_new_source_is_right_at_other_sizes(
    run: Callable, example: Callable, n_rows: int, n_cols: int
) -> None:
    text = example("transpose")
    (proposal,) = REWRITE.propose(run(text, "transpose", **SIZES).evidence)
    sizes = {"n_rows": n_rows, "n_cols": n_cols}
    before = run(text, "transpose", **sizes)
    after = run(proposal.source, "transpose", **sizes)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_a_scattered_load_is_as_good_as_a_scattered_store(run: Callable) -> None:
    before = run(GATHERING, "back", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "back", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _waste(after) < 1.3


@pytest.mark.parametrize("variant", ["as_written", "renamed", "split", "all"])
def test_a_batch_dimension_becomes_a_grid_axis(run: Callable, variant: str) -> None:
    text = {"as_written": BATCHED, **all_variants(BATCHED, "permute")}[variant]
    sizes = {"b": 3, "r": 72, "c": 104}
    before = run(text, "permute", **sizes)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "permute", **sizes)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _waste(after) < 1.5


@pytest.mark.parametrize("variant", ["as_written", "renamed", "reordered", "split"])
def test_a_remainder_by_subtraction_and_64_bits(run: Callable, variant: str) -> None:
    text = {"as_written": WIDE, **all_variants(WIDE, "tr")}[variant]
    before = run(text, "tr", n=160, c=208)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "tr", n=160, c=208)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert proposal.source.count(".to(tl.int64)") >= 2
    assert _waste(after) < 1.5


def test_not_where_the_contiguous_index_stays(run: Callable) -> None:
    assert not REWRITE.propose(run(SWAPPED_HEADS, "permute", b=3, r=72, c=104).evidence)


def test_not_where_sectors_are_used_whole(run: Callable, example: Callable) -> None:
    """`offsets % n_cols` of a bias is a remainder too, but neighbours stay neighbours."""
    text = example("elementwise_chain")
    before = run(text, "gated_silu", n_rows=32, n_cols=512)
    assert not REWRITE.propose(before.evidence)


def test_not_where_values_are_mixed_across_the_tile(run: Callable, example: Callable) -> None:
    text = example("transpose").replace(
        "    tl.store(", "    value = value - tl.sum(value, axis=0)\n    tl.store("
    )
    assert not REWRITE.propose(run(text, "transpose", **SIZES).evidence)


def test_not_where_an_access_has_another_mask(run: Callable, example: Callable) -> None:
    text = example("transpose").replace("value, mask=mask)", "value, mask=mask & (value > 0))")
    assert not REWRITE.propose(run(text, "transpose", **SIZES).evidence)


def _waste(ran: object) -> float:
    """Sectors moved over sectors needed, the worst site."""
    (launch,) = ran.evidence.launches  # type: ignore[attr-defined]
    sites = [s for s in launch.launch.counters.sites if s.space == "global" and s.ideal]
    return max(s.sectors / s.ideal for s in sites)
