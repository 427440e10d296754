"""Rewrites of loops around a dot, and the search over launch parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.launch_parameters import LaunchParameters
from kopt.agent.playbook.matmul_loops import NativeDot, SoftwarePipelining

VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
SIZES = {"m": 96, "n": 128, "k": 160}
WIDENED = [
    ("a = tl.load(a_ptrs, mask=a_mask, other=0.0)", ".to(tl.float32)"),
    ("b = tl.load(b_ptrs, mask=b_mask, other=0.0)", ".to(tl.float32)"),
]


def _variant(text: str, entry: str, variant: str) -> str:
    return {"as_written": text, **all_variants(text, entry)}[variant]


def _widened(text: str) -> str:
    for line, cast in WIDENED:
        assert line in text
        text = text.replace(line, line + cast)
    return text


@pytest.mark.parametrize("variant", VARIANTS)
def test_pipelining(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(example("matmul"), "matmul", variant)
    before = run(text, "matmul", **SIZES)
    proposals = SoftwarePipelining().propose(before.evidence)
    assert len(proposals) == 2
    after = run(proposals[0].source, "matmul", **SIZES)
    assert "cp.async" in after.evidence.launches[0].kernel.ptx
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_no_pipelining_where_there_are_stages(run: Callable, example: Callable) -> None:
    text = example("matmul").replace("num_stages=1", "num_stages=3")
    assert not SoftwarePipelining().propose(run(text, "matmul", **SIZES).evidence)


def test_no_pipelining_without_a_dot(run: Callable, example: Callable) -> None:
    before = run(example("softmax"), "softmax", rows=4, cols=3000)
    assert not SoftwarePipelining().propose(before.evidence)


@pytest.mark.parametrize("variant", VARIANTS)
def test_native_dot(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(_widened(example("matmul")), "matmul", variant)
    before = run(text, "matmul", **SIZES)
    (proposal,) = NativeDot().propose(before.evidence)
    after = run(proposal.source, "matmul", **SIZES)
    assert "arith.extf" not in after.evidence.launches[0].kernel.ttir
    assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-2, atol=1e-2)


def test_no_native_dot_where_operands_are_native(run: Callable, example: Callable) -> None:
    assert not NativeDot().propose(run(example("matmul"), "matmul", **SIZES).evidence)


def test_no_native_dot_where_the_wide_operand_is_used_again(
    run: Callable, example: Callable
) -> None:
    text = _widened(example("matmul")).replace(
        "acc += tl.dot(a, b)", "acc += tl.dot(a, b) + tl.sum(a, axis=1)[:, None]"
    )
    assert not NativeDot().propose(run(text, "matmul", **SIZES).evidence)


def test_no_native_dot_after_arithmetic_in_fp32(run: Callable, example: Callable) -> None:
    text = _widened(example("matmul")).replace("tl.dot(a, b)", "tl.dot(a * 1.001, b)")
    assert not NativeDot().propose(run(text, "matmul", **SIZES).evidence)


@pytest.mark.parametrize("variant", VARIANTS)
def test_launch_parameters(run: Callable, example: Callable, variant: str) -> None:
    text = _variant(example("matmul"), "matmul", variant)
    before = run(text, "matmul", **SIZES)
    proposals = LaunchParameters().propose(before.evidence)
    plain = LaunchParameters().propose(run(example("matmul"), "matmul", **SIZES).evidence)
    assert len(proposals) == len(plain) > 4
    for proposal in proposals[:: max(1, len(proposals) // 4)]:
        after = run(proposal.source, "matmul", **SIZES)
        assert np.allclose(before.outputs[0], after.outputs[0], rtol=1e-2, atol=1e-2)


def test_constexprs_that_are_no_tile_stay(run: Callable, example: Callable) -> None:
    text = example("softmax").replace("n_cols, BLOCK: tl", "n_cols, LIMIT: tl.constexpr, BLOCK: tl")
    text = text.replace("range(0, n_cols, BLOCK)", "range(0, min(n_cols, LIMIT), BLOCK)")
    text = text.replace("n_cols, BLOCK=1024", "n_cols, LIMIT=65536, BLOCK=1024")
    before = run(text, "softmax", rows=4, cols=3000)
    proposals = LaunchParameters().propose(before.evidence)
    assert proposals
    assert all("LIMIT=65536" in p.source for p in proposals)


def test_autotuned_kernels_are_left_alone(run: Callable, example: Callable) -> None:
    text = example("softmax").replace(
        "@triton.jit", '@triton.autotune([triton.Config({"BLOCK": 1024})], key=[])\n@triton.jit'
    )
    text = text.replace(", BLOCK=1024)", ")")
    before = run(text, "softmax", rows=4, cols=3000)
    assert not LaunchParameters().propose(before.evidence)
