"""The steps of a tiled matrix product, predicted for an A10G and measured on one.

The measured cycles are of another implementation of the same steps (ESMM-Research, MIT; Nsight
Compute on an A10G, fp32, 1024 cubed, clocks held at 1.31 GHz), so order and ratio count. The PTX
was made from `sgemm/sgemm.cu` with NVRTC 13.0 for compute_86. The CTAs of the first wave are run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kopt.gpu import cachemodel, compiled, timing
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.spec import load_spec
from kopt.gpu.trace import Kernel
from kopt.gpu.virtual.executor import load_kernel
from kopt.gpu.virtual.segments import Segment

SIZE = 1024
MEASURED_CYCLES = {
    "uncoalesced": 14.23e6,
    "coalesced": 1.842e6,
    "shared_tile": 1.328e6,
    "one_dimensional": 0.569e6,
    "two_dimensional": 0.387e6,
    "vectorized": 0.346e6,
}
SHAPES = {
    "uncoalesced": (32, 1024), "coalesced": (32, 1024), "shared_tile": (32, 1024),
    "one_dimensional": (64, 512), "two_dimensional": (128, 256), "vectorized": (128, 256),
}  # fmt: skip
CLOCK_HZ = 1.313e9


def predicted_cycles(name: str) -> float:
    """Elapsed SM cycles of the whole product."""
    spec = replace(load_spec("a10g"), clock_hz=CLOCK_HZ, launch_overhead_us=0.0)
    tile, threads = SHAPES[name]
    ptx = (Path(__file__).parent / "sgemm" / "sgemm.ptx").read_text(encoding="utf-8")
    kernel = Kernel("key", name, "sgemm.cu", 1, ptx, "", "", threads // 32, 1, 0, "sm_86")
    made = compiled.facts(kernel, spec)
    data = [np.zeros((SIZE, SIZE), np.float32) for _ in range(3)]
    bases = [0x7F00_0000_0000 + n * (1 << 24) for n in range(3)]
    segments = [
        Segment(base, d.nbytes, d.ctypes.data, "ABC"[n])
        for n, (base, d) in enumerate(zip(bases, data, strict=True))
    ]
    grid = (SIZE // tile, SIZE // tile, 1)
    wave = min(grid[0] * grid[1], made.ctas_per_sm * spec.sms)
    result = load_kernel(ptx, name, counted=True).launch(
        grid, threads, 0, [*bases, SIZE, SIZE], segments, ctas=range(min(wave, 64))
    )
    assert result.counters is not None
    assert not result.findings
    moved = cachemodel.traffic(result.counters, made, spec, cachemodel.State())
    launch = LaunchFacts(0, name, "key", grid, threads, result.counters, made, moved)
    found = timing.predict(spec, CallFacts("a10g", (launch,), (), 0, 0, 0, 0))
    return found.time_us * 1e-6 * CLOCK_HZ


@pytest.mark.slow
def test_the_ladder_has_the_measured_order() -> None:
    predicted = {name: predicted_cycles(name) for name in MEASURED_CYCLES}
    order = sorted(predicted, key=lambda name: -predicted[name])
    assert order == list(MEASURED_CYCLES)
    for name, cycles in predicted.items():
        assert 0.65 < cycles / MEASURED_CYCLES[name] < 1.15, (name, cycles)
