"""Grouped program order: for two grid axes and for one, and only where operands are read again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from variants import all_variants

from kopt.agent.playbook.base import CallEvidence
from kopt.agent.playbook.grouped_order import GroupedOrder
from kopt.gpu.spec import FOLDER

REWRITE = GroupedOrder()
VARIANTS = ["as_written", "renamed", "reordered", "split", "all"]
SIZES = {"m": 1024, "n": 1024, "k": 256}

TWO_AXES = """
import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    offs_m = pid_m * BM + tl.arange(0, BM)
    offs_n = pid_n * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptrs, mask=offs_m[:, None] < M, other=0.0)
        b = tl.load(b_ptrs, mask=offs_n[None, :] < N, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK
        b_ptrs += BK * N
    c_ptrs = c_ptr + offs_m[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, acc.to(tl.float16), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def matmul(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    matmul_kernel[grid](a, b, c, m, n, k, BM=64, BN=64, BK=64)
    return c


def make_inputs(m, n, k):
    a = torch.randint(-2, 3, (m, k), device="cuda").half()
    return a, torch.randint(-2, 3, (k, n), device="cuda").half()
"""

TRANSPOSED_GRID = (
    TWO_AXES.replace("pid_m = tl.program_id(0)", "pid_m = tl.program_id(axis=1)")
    .replace("pid_n = tl.program_id(1)", "pid_n = tl.program_id(axis=0)")
    .replace("(triton.cdiv(m, 64), triton.cdiv(n, 64))", "(triton.cdiv(n, 64), triton.cdiv(m, 64))")
)

ONE_AXIS = (
    TWO_AXES.replace(
        "    pid_m = tl.program_id(0)\n    pid_n = tl.program_id(1)\n",
        "    pid = tl.program_id(0)\n    wide = tl.cdiv(N, BN)\n"
        "    pid_m = pid // wide\n    pid_n = pid % wide\n",
    )
    .replace("cdiv(m, 64), triton", "cdiv(m, 64) * triton")
    .replace("triton.cdiv(n, 64))", "triton.cdiv(n, 64),)")
)

UNNAMED = (
    TWO_AXES.replace("    pid_m = tl.program_id(0)\n    pid_n = tl.program_id(1)\n", "")
    .replace("pid_m *", "tl.program_id(0) *")
    .replace("pid_n *", "tl.program_id(1) *")
)

GROUPED = TWO_AXES.replace(
    "    offs_m =",
    "    counts = tl.num_programs(0), tl.num_programs(1)\n"
    "    pid_m, pid_n = tl.swizzle2d(pid_m, pid_n, counts[0], counts[1], 4)\n    offs_m =",
)


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A device so small that these products do not fit in its L2 cache."""
    text = (FOLDER / "a100.toml").read_text(encoding="utf-8")
    for key, value in {
        "name": '"small"',
        "aliases": "[]",
        "sms": "4",
        "l2_bytes": "262144",
    }.items():
        text, count = re.subn(
            rf"^{key} = .*$", f"{key} = {value}", text, count=1, flags=re.MULTILINE
        )
        assert count == 1
    (tmp_path / "small.toml").write_text(text, encoding="utf-8")
    return str(tmp_path / "small.toml")


def _dram(ran: object) -> int:
    return sum(x.traffic.dram_read_bytes for x in ran.evidence.facts.launches)  # type: ignore[attr-defined]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", [TWO_AXES, ONE_AXIS], ids=["two_axes", "one_axis"])
def test_operands_are_read_less_often(run: Callable, small: str, form: str, variant: str) -> None:
    text = {"as_written": form, **all_variants(form, "matmul")}[variant]
    before = run(text, "matmul", gpu=small, **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "matmul", gpu=small, **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert "tl.swizzle2d(" in proposal.source
    assert _dram(after) < 0.75 * _dram(before)


@pytest.mark.parametrize("form", [TRANSPOSED_GRID, UNNAMED], ids=["transposed", "unnamed"])
def test_other_ways_to_number_the_tiles(run: Callable, small: str, form: str) -> None:
    before = run(form, "matmul", gpu=small, **SIZES)
    (proposal,) = REWRITE.propose(before.evidence)
    after = run(proposal.source, "matmul", gpu=small, **SIZES)
    assert np.array_equal(before.outputs[0], after.outputs[0])
    assert _dram(after) < 0.75 * _dram(before)


@pytest.mark.parametrize("form", [TWO_AXES, ONE_AXIS], ids=["two_axes", "one_axis"])
def test_ragged_sizes(run: Callable, small: str, form: str) -> None:
    (proposal,) = REWRITE.propose(run(form, "matmul", gpu=small, **SIZES).evidence)
    for m, n in ((65, 700), (500, 63)):
        before = run(form, "matmul", gpu=small, m=m, n=n, k=64)
        after = run(proposal.source, "matmul", gpu=small, m=m, n=n, k=64)
        assert np.array_equal(before.outputs[0], after.outputs[0])


def test_not_where_the_operands_stay_in_the_cache(run: Callable, small: str) -> None:
    evidence = run(TWO_AXES, "matmul", gpu=small, **SIZES).evidence
    traffic = evidence.launches[0].launch.traffic
    needed = traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
    for factor, proposals in ((1.1, 0), (1.5, 1)):
        changed = replace(traffic, dram_read_bytes=int(factor * needed), dram_write_bytes=0)
        assert len(REWRITE.propose(_with(evidence, traffic=changed))) == proposals


def test_not_in_a_single_wave(run: Callable, small: str) -> None:
    evidence = run(TWO_AXES, "matmul", gpu=small, **SIZES).evidence
    launch = evidence.launches[0].launch
    resident = launch.compiled.ctas_per_sm * evidence.spec.sms
    for ctas, proposals in ((resident, 0), (resident + 1, 1)):
        counters = replace(launch.counters, ctas=ctas)
        assert len(REWRITE.propose(_with(evidence, counters=counters))) == proposals


def _with(evidence: CallEvidence, **changes: object) -> CallEvidence:
    """The evidence with other facts of its only launch."""
    (item,) = evidence.launches
    launch = replace(item.launch, **changes)
    return replace(
        evidence,
        facts=replace(evidence.facts, launches=(launch,)),
        launches=(replace(item, launch=launch),),
    )


def test_not_where_the_order_is_grouped(run: Callable, small: str) -> None:
    assert not REWRITE.propose(run(GROUPED, "matmul", gpu=small, **SIZES).evidence)
    (proposal,) = REWRITE.propose(run(ONE_AXIS, "matmul", gpu=small, **SIZES).evidence)
    assert not REWRITE.propose(run(proposal.source, "matmul", gpu=small, **SIZES).evidence)


def test_not_without_a_dot(run: Callable, example: Callable, small: str) -> None:
    assert not REWRITE.propose(
        run(example("softmax"), "softmax", gpu=small, rows=64, cols=20000).evidence
    )
