"""Resident CTAs against known answers."""

from __future__ import annotations

import pytest

from kopt.gpu.occupancy import resident_ctas
from kopt.gpu.spec import load_spec


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "ctas", "limiter"),
    [
        # CUDA occupancy calculator, compute capability 8.0.
        (256, 32, 0, 8, "warps"),
        (256, 40, 0, 6, "registers"),
        (128, 255, 0, 2, "registers"),
        (1024, 64, 0, 1, "registers"),
        (32, 16, 0, 32, "ctas"),
        (128, 32, 49152, 3, "shared_memory"),
        (128, 32, 166_912, 1, "shared_memory"),
        (1024, 65, 0, 0, "registers"),
        # Each of the four schedulers has a quarter of the registers: 3 warps, not 13 in all.
        (32, 150, 0, 12, "registers"),
    ],
)
def test_a100(threads: int, registers: int, shared: int, ctas: int, limiter: str) -> None:
    assert resident_ctas(load_spec("a100"), threads, registers, shared) == (ctas, limiter)


@pytest.mark.parametrize(
    ("threads", "registers", "by_registers"),
    [(512, 51, 2), (256, 150, 1), (256, 121, 2), (128, 228, 2)],
)
def test_a10g_as_measured(threads: int, registers: int, by_registers: int) -> None:
    """`launch__occupancy_limit_registers` of four SGEMM launches in a report recorded on an A10G
    (ESMM-Research, MIT)."""
    assert resident_ctas(load_spec("a10g"), threads, registers, 0) == (by_registers, "registers")
