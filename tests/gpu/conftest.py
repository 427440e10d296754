"""Facts of launches for the tests of the performance model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kopt.gpu.counters import LINE_LOG, LaunchCounters, Site
from kopt.gpu.facts import CacheTraffic, CallFacts, CompiledFacts, LaunchFacts, WarpPath

Row = tuple[int, int, int, int, int]
"""CTA, order, line, sector mask, kind."""


def _counters(rows: Iterable[Row], ctas: int, counted: int) -> LaunchCounters:
    return LaunchCounters(
        kernel="k", grid=(ctas, 1, 1), threads_per_cta=128, ctas=ctas, ctas_counted=counted,
        instructions={}, thread_instructions=0, opcodes={}, branches=0, divergent_branches=0,
        barriers=0, flops={}, sites=(), lines=np.array(list(rows), LINE_LOG),
    )  # fmt: skip


@pytest.fixture
def log_of() -> Callable[..., LaunchCounters]:
    """Counters with a line log and nothing else."""

    def make(rows: Sequence[Row], ctas: int = 0, counted: int = 0) -> LaunchCounters:
        seen = len({r[0] for r in rows})
        return _counters(rows, ctas or seen, counted or ctas or seen)

    return make


COMPILED = CompiledFacts(
    registers=32, spill_store_bytes=0, spill_load_bytes=0, static_shared_bytes=0,
    dynamic_shared_bytes=0, ctas_per_sm=8, limiter="warps", occupancy=0.5,
    sass={"total": 20, "anchors": 2, "pipe_lsu": 2, "ldg": 1, "stg": 1, "pipe_alu": 8,
          "pipe_fma": 8, "imad": 2},
    straight=WarpPath(60.0, 98.0, 321.0, 526.0, {"global": 466.0}),
)  # fmt: skip


@pytest.fixture
def compiled_facts() -> CompiledFacts:
    """A small elementwise kernel: one load, one store, no loop."""
    return COMPILED


@pytest.fixture
def make_launch() -> Callable[..., LaunchFacts]:
    """A launch of the elementwise kernel over `nbytes`: 16 bytes a thread, read and written."""

    def make(
        nbytes: int = 1 << 26,
        dram: float = 1.0,
        compiled: CompiledFacts = COMPILED,
        traffic: dict[str, int] | None = None,
        **changes: object,
    ) -> LaunchFacts:
        ctas = max(1, nbytes // (16 * 128))
        warps = 4 * ctas
        sites = tuple(
            Site(n, op, "global", kind, 16, "k.py", 3 + n, (arg,), warps, 32 * warps, 16 * warps,
                 0, 16 * warps)
            for n, (op, kind, arg) in enumerate(
                (("ld.global.v4.b32", "load", "x"), ("st.global.v4.b32", "store", "y"))
            )
        )  # fmt: skip
        counters = replace(
            _counters([], ctas, ctas),
            instructions={"global_load": warps, "global_store": warps, "fp32": 8 * warps},
            thread_instructions=320 * warps,
            opcodes={"ld.global.v4.b32": warps, "st.global.v4.b32": warps, "mul.f32": 8 * warps},
            flops={"fp32": 256 * warps},
            sites=sites,
        )
        counters = replace(counters, **changes)  # type: ignore[arg-type]
        moved = CacheTraffic(
            l1_requested_bytes=2 * nbytes, l1_hit_bytes=0, l2_read_bytes=nbytes,
            l2_write_bytes=nbytes, l2_hit_bytes=0, dram_read_bytes=round(dram * nbytes),
            dram_write_bytes=nbytes, compulsory_read_bytes=nbytes, compulsory_write_bytes=nbytes,
            coverage=1.0, l1_wavefronts=nbytes // 64,
        )  # fmt: skip
        moved = replace(moved, **(traffic or {}))
        return LaunchFacts(0, "k", "key", counters.grid, 128, counters, compiled, moved)

    return make


@pytest.fixture
def call_of() -> Callable[..., CallFacts]:
    """A call of these launches that reads and writes as much as the first of them."""

    def make(*launches: LaunchFacts, **changes: object) -> CallFacts:
        call = CallFacts(
            "a100", launches, (), 0, 0, 0, 0,
            input_bytes=launches[0].traffic.compulsory_read_bytes if launches else 0,
            output_bytes=launches[0].traffic.compulsory_write_bytes if launches else 0,
        )  # fmt: skip
        return replace(call, **changes)  # type: ignore[arg-type]

    return make
