"""Skipping masked tiles: bounds that move with the program, on both sides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.masked_tiles import MaskedTiles

REWRITE = MaskedTiles()
VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
SIZES = {"batch": 1, "heads": 2, "n_ctx": 320, "head_dim": 32}
CAUSAL = 'tl.where(offs_m[:, None] >= offs_n[None, :], scores, float("-inf"))'

TRIANGULAR = """
import torch
import triton
import triton.language as tl


@triton.jit
def lower_times_kernel(a_ptr, x_ptr, y_ptr, n, ROWS: tl.constexpr, COLS: tl.constexpr):
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    total = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(0, n, COLS):
        cols = start + tl.arange(0, COLS)
        inside = (rows[:, None] < n) & (cols[None, :] < n)
        a = tl.load(a_ptr + rows[:, None] * n + cols[None, :], mask=inside, other=0.0)
        a = tl.where(cols[None, :] < rows[:, None], a, 0.0)
        x = tl.load(x_ptr + cols, mask=cols < n, other=0.0)
        total += tl.sum(a * x[None, :], axis=1)
    tl.store(y_ptr + rows, total, mask=rows < n)


def lower_times(a, x):
    n = x.numel()
    y = torch.empty_like(x)
    lower_times_kernel[(triton.cdiv(n, 32),)](a, x, y, n, ROWS=32, COLS=64)
    return y


def make_inputs(n):
    return torch.randn(n, n, device="cuda"), torch.randn(n, device="cuda")
"""


IN_A_HELPER = """
import torch
import triton
import triton.language as tl


@triton.jit
def _attn_fwd_inner(
    acc, l_i, m_i, q, k_ptr, v_ptr, stride, qk_scale, offs_m, offs_n, offs_d, N_CTX,
    BLOCK_N: tl.constexpr,
):
    k_ptrs = k_ptr + offs_n[None, :] * stride + offs_d[:, None]
    v_ptrs = v_ptr + offs_n[:, None] * stride + offs_d[None, :]
    for start_n in range(0, N_CTX, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = tl.load(k_ptrs)
        qk = tl.dot(q, k)
        mask = offs_m[:, None] >= (start_n + offs_n[None, :])
        qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        qk -= m_ij[:, None]
        p = tl.math.exp2(qk)
        l_ij = tl.sum(p, 1)
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + l_ij
        acc = acc * alpha[:, None]
        v = tl.load(v_ptrs)
        acc = tl.dot(p.to(tl.float16), v, acc)
        m_i = m_ij
        k_ptrs += BLOCK_N * stride
        v_ptrs += BLOCK_N * stride
    return acc, l_i, m_i


@triton.jit
def _attn_fwd(
    Q, K, V, Out, sm_scale, N_CTX,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    base = off_hz * N_CTX * HEAD_DIM
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_DIM)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale * 1.44269504
    q = tl.load(Q + base + offs_m[:, None] * HEAD_DIM + offs_d[None, :])
    acc, l_i, m_i = _attn_fwd_inner(
        acc, l_i, m_i, q, K + base, V + base, HEAD_DIM, qk_scale, offs_m, offs_n, offs_d, N_CTX,
        BLOCK_N,
    )
    acc = acc / l_i[:, None]
    tl.store(Out + base + offs_m[:, None] * HEAD_DIM + offs_d[None, :], acc.to(tl.float16))


def flash(q, k, v):
    o = torch.empty_like(q)
    grid = lambda args: (triton.cdiv(q.shape[2], args["BLOCK_M"]), q.shape[0] * q.shape[1], 1)
    _attn_fwd[grid](q, k, v, o, 0.5, q.shape[2], HEAD_DIM=q.shape[3], BLOCK_M=32, BLOCK_N=32)
    return o


def make_inputs(z, h, n, d):
    return tuple(torch.randn(z, h, n, d, device="cuda", dtype=torch.float16) for _ in range(3))
"""


def _variant(text: str, entry: str, name: str) -> str:
    return {"as_written": text, **all_variants(text, entry)}[name]


def _issued(ran: object) -> int:
    return sum(
        sum(launch.counters.instructions.values())
        for launch in ran.evidence.facts.launches  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_causal_attention_stops_at_the_diagonal(
    run: Callable, example: Callable, variant: str
) -> None:
    text = _variant(example("causal_attention"), "causal_attention", variant)
    before = run(text, "causal_attention", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "causal_attention", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    # 5 row blocks of 5 tiles: 10 of 25 lie behind the diagonal.
    assert "40 % of the tiles" in proposal.evidence[0]
    assert _issued(after) < 0.75 * _issued(before)
    assert proposal.predicted[0].after == pytest.approx(_issued(after), rel=0.2)


@pytest.mark.parametrize("n_ctx", [1, 63, 64, 65, 200])
def test_other_lengths(run: Callable, example: Callable, n_ctx: int) -> None:
    text = example("causal_attention")
    (proposal,) = REWRITE.propose(run(text, "causal_attention", **SIZES).evidence)
    sizes = {**SIZES, "n_ctx": n_ctx}
    before = run(text, "causal_attention", **sizes)
    after = run(proposal.source, "causal_attention", **sizes)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_unequal_tiles(run: Callable, example: Callable) -> None:
    text = example("causal_attention").replace("BLOCK_N=64", "BLOCK_N=32")
    before = run(text, "causal_attention", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "causal_attention", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])


@pytest.mark.parametrize("variant", ["as_written", "renamed", "split", "all"])
def test_a_sliding_window_is_cut_on_both_sides(
    run: Callable, example: Callable, variant: str
) -> None:
    text = example("causal_attention").replace(
        CAUSAL,
        "tl.where((offs_m[:, None] >= offs_n[None, :])"
        " & (offs_m[:, None] - offs_n[None, :] < WINDOW), scores, -1.0e6)",
    )
    text = text.replace(
        "    BLOCK_N: tl.constexpr,\n", "    BLOCK_N: tl.constexpr,\n    WINDOW: tl.constexpr,\n"
    )
    text = text.replace("BLOCK_N=64", "BLOCK_N=64, WINDOW=100")
    text = _variant(text, "causal_attention", variant)
    before = run(text, "causal_attention", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "causal_attention", **SIZES)
    assert np.allclose(before.outputs[0], after.outputs[0], atol=2e-3)
    assert _issued(after) < 0.7 * _issued(before)
    assert "tl.maximum(" in proposal.source.split("for ")[0] or "begin" in proposal.source


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_triangular_product(run: Callable, variant: str) -> None:
    """The comparison is strict and the other way round, and the rows start at a named scalar."""
    text = _variant(TRIANGULAR, "lower_times", variant)
    before = run(text, "lower_times", n=330)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "lower_times", n=330)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _issued(after) < 0.8 * _issued(before)


def test_a_loop_in_a_helper_is_changed_there(run: Callable) -> None:
    """Additive masks, base-2 exponentials and advancing pointers, as flash attention is written."""
    sizes = {"z": 1, "h": 2, "n": 256, "d": 32}
    before = run(IN_A_HELPER, "flash", **sizes)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "flash", **sizes)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _issued(after) < 0.75 * _issued(before)
    assert "def _attn_fwd_inner(" in proposal.source
    assert "tl.minimum(N_CTX, tl.max(offs_m, axis=0) + 1)" in proposal.source


def test_a_helper_that_others_call_stays_as_it_is(run: Callable) -> None:
    text = IN_A_HELPER + "\n\nALSO = _attn_fwd_inner\n"
    sizes = {"z": 1, "h": 2, "n": 256, "d": 32}
    before = run(text, "flash", **sizes)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "flash", **sizes)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert "for start_n in range(0, N_CTX, BLOCK_N)" in proposal.source


def test_a_mask_that_discards(run: Callable, example: Callable) -> None:
    """`where(behind, -inf, x)` instead of `where(visible, x, -inf)`."""
    text = example("causal_attention").replace(
        CAUSAL, 'tl.where(offs_n[None, :] > offs_m[:, None], float("-inf"), scores)'
    )
    before = run(text, "causal_attention", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "causal_attention", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_an_added_mask(run: Callable, example: Callable) -> None:
    text = example("causal_attention").replace(
        CAUSAL, "scores + tl.where(offs_m[:, None] >= offs_n[None, :], 0.0, -1.0e9)"
    )
    before = run(text, "causal_attention", **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "causal_attention", **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_not_where_the_bound_moves_already(run: Callable, example: Callable) -> None:
    text = example("causal_attention")
    (proposal,) = REWRITE.propose(run(text, "causal_attention", **SIZES).evidence)
    assert not REWRITE.propose(run(proposal.source, "causal_attention", **SIZES).evidence)


def test_not_where_masked_tiles_count(run: Callable, example: Callable) -> None:
    """A mask of zero before the exponential is no mask: exp(0) is added to the sum."""
    text = example("causal_attention").replace('float("-inf"))\n        new', "0.0)\n        new")
    assert "scores, 0.0)" in text
    assert not REWRITE.propose(run(text, "causal_attention", **SIZES).evidence)


def test_not_without_a_mask_that_moves(run: Callable, example: Callable) -> None:
    text = example("causal_attention").replace(
        "offs_m[:, None] >= offs_n[None, :], scores", "offs_n[None, :] < n_ctx, scores"
    )
    assert not REWRITE.propose(run(text, "causal_attention", **SIZES).evidence)


def test_not_where_few_tiles_are_masked(run: Callable, example: Callable) -> None:
    """One row block sees almost everything."""
    assert not REWRITE.propose(
        run(example("causal_attention"), "causal_attention", **{**SIZES, "n_ctx": 64}).evidence
    )


def test_not_where_each_tile_is_stored(run: Callable) -> None:
    text = TRIANGULAR.replace(
        "        total += tl.sum",
        "        tl.store(y_ptr + rows, total, mask=rows < n)\n        total += tl.sum",
    )
    assert not REWRITE.propose(run(text, "lower_times", n=330).evidence)
