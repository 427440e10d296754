"""Rooflines of PyTorch operators."""

from __future__ import annotations

import pytest

from kopt.gpu import operators
from kopt.gpu.facts import OperatorFacts
from kopt.gpu.spec import load_spec


def op(name: str, dtype: str, moved: int = 0, flops: int = 0) -> OperatorFacts:
    """An operator that reads `moved` bytes."""
    return OperatorFacts(0, name, dtype, moved, 0, flops)


def test_a_measured_efficiency_makes_an_estimate() -> None:
    """bf16 8192 cubed on the H200 took 1.38 to 1.43 ms."""
    found = operators.work(load_spec("h200"), op("aten.mm", "bfloat16", 3 << 27, 2 * 8192**3))
    assert not found.bound
    # The H200 ran at 1.98 GHz: its peak there is 1070 TFLOP/s.
    assert found.compute_us == pytest.approx(1400, rel=0.1)
    assert "H200" in found.source


def test_without_one_it_is_a_bound_and_says_so() -> None:
    found = operators.work(load_spec("a100"), op("aten.mm", "float16", 0, 312 * 10**9))
    assert found.bound
    assert found.compute_us == pytest.approx(1000, rel=0.01)
    assert operators.work(load_spec("a100"), op("aten.sort", "float32", 1 << 20)).bound


def test_float32_products_run_on_the_fp32_pipe() -> None:
    """4096 cubed on the RTX A6000 ran at 23.2 TFLOP/s."""
    found = operators.work(load_spec("a6000"), op("aten.mm", "float32", 0, 2 * 4096**3))
    assert found.compute_us == pytest.approx(2 * 4096**3 / 23.25e6, rel=0.02)


@pytest.mark.parametrize("name", ["aten.mul.Tensor", "aten.native_layer_norm", "aten.embedding"])
def test_memory_operators_are_slower_than_the_ceiling(name: str) -> None:
    spec = load_spec("a100")
    found = operators.work(spec, op(name, "float32", 10**9))
    assert not found.bound
    assert found.dram_us > 1e15 / (spec.dram_bytes_per_s * spec.dram_efficiency)
