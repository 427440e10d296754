"""Diagnoses of real kernels that the virtual A100 ran: the right resource, its number, its line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import kopt
from kopt.gpu import cachemodel, compiled
from kopt.gpu.facts import CallFacts, LaunchFacts, OperatorFacts
from kopt.gpu.speed_of_light import Compulsory
from kopt.gpu.virtual.device import VirtualGPU
from kopt.tools.diagnose import diagnose
from kopt.tools.models import Diagnosis


def load_lines(kernel: triton.JITFunction) -> list[int]:
    """The file's lines on which a kernel loads."""
    text, first = inspect.getsourcelines(kernel.fn)
    return [first + i for i, line in enumerate(text) if "tl.load" in line]


@triton.jit
def three_pass_softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    top = -float("inf")
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.max(tl.load(x + row + at, mask=at < n, other=-float("inf"))))
    total = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < n, other=-float("inf"))
        total += tl.sum(tl.exp(values - top))
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < n, other=-float("inf"))
        tl.store(y + row + at, tl.exp(values - top) / total, mask=at < n)


@triton.jit
def strided_copy(x, y, n, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + (at * stride) % n))


@triton.jit
def add_to_one(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + at % 8, tl.load(x + at), sem="relaxed")


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def widened_product(x, y, n, BLOCK: tl.constexpr):
    rows, cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, 8):
        k = start + tl.arange(0, 8)
        left = tl.load(x + rows[:, None] * n + k[None, :]).to(tl.float32)
        right = tl.load(x + k[:, None] * BLOCK + cols[None, :]).to(tl.float32)
        total += tl.sum(left[:, :, None] * right[None, :, :], axis=1)
    tl.store(y + rows[:, None] * BLOCK + cols[None, :], total)


@pytest.fixture(scope="module")
def gpu() -> Iterator[VirtualGPU]:
    with kopt.virtual_gpu("a100") as active:
        yield active


def facts_of(gpu: VirtualGPU, read: int, written: int) -> CallFacts:
    """The facts of what was launched since the last call of this function."""
    state, launches = cachemodel.State(), []
    for ordinal, record in enumerate(gpu.launches):
        assert record.counters is not None
        made = compiled.facts(record.kernel, gpu.spec)
        moved = cachemodel.traffic(record.counters, made, gpu.spec, state)
        launches.append(
            LaunchFacts(ordinal, record.kernel.name, record.kernel.key, record.grid,
                        32 * record.kernel.num_warps, record.counters, made, moved)
        )  # fmt: skip
    gpu.launches.clear()
    return CallFacts("a100", tuple(launches), (), 0, 0, 0, 0, input_bytes=read,
                     output_bytes=written)  # fmt: skip


def run(gpu: VirtualGPU, launch: Callable[[], object], read: int, written: int) -> Diagnosis:
    """The diagnosis of a call."""
    gpu.launches.clear()
    launch()
    return diagnose(gpu.spec, "w", facts_of(gpu, read, written))


def softmax(gpu: VirtualGPU, rows: int, cols: int) -> Diagnosis:
    """The three-pass softmax of this size."""
    x = torch.randn(rows, cols, device="cuda")
    y = torch.empty_like(x)
    size = 4 * rows * cols
    return run(gpu, lambda: three_pass_softmax[(rows,)](x, y, cols, BLOCK=1024), size, size)


def test_rows_that_leave_the_l2_are_read_three_times(gpu: VirtualGPU) -> None:
    found = softmax(gpu, 384, 50304)
    assert found.bottleneck == "dram_bandwidth"
    first = found.evidence[0]
    ratio = float(first.split("moved ")[1].split("x")[0])
    assert 1.8 < ratio < 2.1
    assert "'x' is read 3 times" in first
    lines = load_lines(three_pass_softmax)
    assert len(lines) == 3
    assert f"({Path(__file__).name}:{', '.join(map(str, lines))})" in first
    assert found.headroom.exceeds_interval
    assert 1.7 < found.headroom.ratio < 2.5


def test_rows_that_stay_in_the_l2_do_not_blame_the_dram(gpu: VirtualGPU) -> None:
    found = softmax(gpu, 4096, 4096)
    values = {m.name: m.value for m in found.metrics}
    assert values["dram_read_over_compulsory"] < 1.1
    said = [e for e in found.evidence if "DRAM moved" in e]
    assert all(e.startswith("DRAM moved 1.0") and "read" not in e for e in said)


def test_scattered_lanes_are_named_with_their_line(gpu: VirtualGPU) -> None:
    n = 1 << 22
    x = torch.zeros(n, device="cuda")
    y = torch.empty(n, device="cuda")
    found = run(gpu, lambda: strided_copy[(n // 1024,)](x, y, n, 1025, BLOCK=1024), 4 * n, 4 * n)
    (line,) = load_lines(strided_copy)
    said = next(e for e in found.evidence if "sectors a request" in e)
    assert f"load of 'x' at test_diagnose.py:{line} takes 32.0" in said
    assert "8.0x the least" in said


def test_contended_atomics(gpu: VirtualGPU) -> None:
    n = 1 << 20
    x, y = torch.zeros(n, device="cuda"), torch.zeros(8, device="cuda")
    found = run(gpu, lambda: add_to_one[(n // 1024,)](x, y, n, BLOCK=1024), 4 * n, 32)
    assert found.bottleneck == "atomics"
    assert f"{n:,} atomic operations on 'y'" in found.evidence[0]


def test_a_copy_has_no_headroom(gpu: VirtualGPU) -> None:
    n = 1 << 23
    x = torch.zeros(n, device="cuda")
    y = torch.empty_like(x)
    found = run(gpu, lambda: copy[(n // 1024,)](x, y, n, BLOCK=1024), 4 * n, 4 * n)
    assert found.bottleneck == "dram_bandwidth"
    assert found.evidence[0].startswith("DRAM moved 1.00x the compulsory")
    assert not found.headroom.exceeds_interval


def test_small_launches_are_overhead(gpu: VirtualGPU) -> None:
    x, y = torch.zeros(1024, device="cuda"), torch.empty(1024, device="cuda")

    def many() -> None:
        for _ in range(5):
            copy[(1,)](x, y, 1024, BLOCK=1024)

    found = run(gpu, many, 4096, 4096)
    assert found.bottleneck == "launch_overhead"
    assert found.evidence[0].startswith("5 launches cost 12.5 of")
    assert any("1 CTAs leave 107 of 108 SMs idle" in e for e in found.evidence)


def test_half_precision_widened_before_the_product(gpu: VirtualGPU) -> None:
    n = 256
    x = torch.zeros(256 * n, dtype=torch.float16, device="cuda")
    y = torch.empty(256, 64, device="cuda")
    found = run(
        gpu,
        lambda: widened_product[(4,)](x, y, n, BLOCK=64, num_warps=8),
        2 * 256 * n,
        4 * 256 * 64,
    )
    assert any("none on tensor cores: half-precision operands" in e for e in found.evidence)


def test_every_diagnosis_is_complete(gpu: VirtualGPU) -> None:
    found = softmax(gpu, 64, 4096)
    assert 0 < len(found.metrics) <= 25
    assert all(m.sentence for m in found.metrics)
    assert found.unseen
    assert found.kernel == "three_pass_softmax"
    assert len(found.evidence) == len(set(found.evidence))


def test_operators_that_take_most_of_the_time(gpu: VirtualGPU) -> None:
    op = OperatorFacts(0, "aten.mm", "float16", 10**8, 10**8, 10**12, (1,))
    call = CallFacts("a100", (), (op,), 0, 0, 0, 0, input_bytes=10**8, output_bytes=10**8)
    found = diagnose(gpu.spec, "w", call)
    assert found.bottleneck == "operators"
    assert found.kernel is None
    assert "aten.mm takes" in found.evidence[0]
    assert "a lower bound" in found.evidence[0]
    assert any("aten.mm" in u for u in found.unseen)
    assert not found.headroom.exceeds_interval


def test_the_reference_may_need_less(gpu: VirtualGPU) -> None:
    """The headroom is measured against the compulsory work that the judge gives."""
    op = OperatorFacts(0, "aten.mm", "float16", 10**8, 10**8, 10**12, (1,))
    call = CallFacts("a100", (), (op,), 0, 0, 0, 0, input_bytes=10**8, output_bytes=10**8)
    found = diagnose(gpu.spec, "w", call, least=Compulsory(10**8, 10**8, {}))
    assert found.headroom.exceeds_interval
