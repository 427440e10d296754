"""Which level serves what: small logs with known answers, and laws that hold for every log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.gpu import cachemodel
from kopt.gpu.cachemodel import State, traffic
from kopt.gpu.counters import (
    KIND_ATOMIC,
    KIND_LOAD,
    KIND_LOAD_BYPASS_L1,
    KIND_STORE,
    LaunchCounters,
)
from kopt.gpu.facts import CompiledFacts
from kopt.gpu.spec import DeviceSpec, load_spec

LogOf = Callable[..., LaunchCounters]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 9), st.integers(0, 20), st.integers(100, 130), st.integers(1, 15),
        st.sampled_from([KIND_LOAD, KIND_STORE, KIND_ATOMIC, KIND_LOAD_BYPASS_L1]),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


def small(l1_lines: int = 0, l2_lines: int = 1000, sms: int = 2) -> DeviceSpec:
    """A GPU with tiny caches."""
    return replace(
        load_spec("a100"), sms=sms, l1_bytes=128 * l1_lines, l2_bytes=128 * l2_lines,
        reserved_shared_per_cta=0,
    )  # fmt: skip


def rows(
    lines: range, cta: int = 0, kind: int = KIND_LOAD, start: int = 0
) -> list[tuple[int, int, int, int, int]]:
    """One request for each whole line."""
    return [(cta, start + n, line, 15, kind) for n, line in enumerate(lines)]


def test_three_passes_over_what_fits_the_l2_read_the_dram_once(
    log_of: LogOf, compiled_facts: CompiledFacts
) -> None:
    passes = [r for n in range(3) for r in rows(range(100), start=100 * n)]
    found = traffic(log_of(passes), compiled_facts, small(l2_lines=100), State())
    assert found.dram_read_bytes == 100 * 128
    assert found.l2_hit_bytes == 200 * 128
    found = traffic(log_of(passes), compiled_facts, small(l2_lines=99), State())
    assert found.dram_read_bytes == 300 * 128


def test_the_l1_belongs_to_its_sm(log_of: LogOf, compiled_facts: CompiledFacts) -> None:
    """CTAs 0 and 2 share an SM, CTA 1 is on the other."""
    log = rows(range(10)) + rows(range(10), cta=1, start=10) + rows(range(10), cta=2, start=20)
    found = traffic(log_of(log), compiled_facts, small(l1_lines=10), State())
    assert found.l1_hit_bytes == 10 * 128
    assert found.l2_read_bytes == 20 * 128
    assert found.dram_read_bytes == 10 * 128


def test_asynchronous_copies_pass_by_the_l1(log_of: LogOf, compiled_facts: CompiledFacts) -> None:
    log = rows(range(5), kind=KIND_LOAD_BYPASS_L1) + rows(range(5), start=9)
    found = traffic(log_of(log), compiled_facts, small(l1_lines=100), State())
    assert found.l1_hit_bytes == 0


def test_stores_fetch_nothing_and_are_charged_once(
    log_of: LogOf, compiled_facts: CompiledFacts
) -> None:
    log = rows(range(10), kind=KIND_STORE) + rows(range(10), kind=KIND_STORE, start=10)
    found = traffic(log_of(log), compiled_facts, small(), State())
    assert (found.dram_read_bytes, found.dram_write_bytes) == (0, 10 * 128)
    # Ten lines do not stay in a cache of nine: each is written out and stored to again.
    found = traffic(log_of(log), compiled_facts, small(l2_lines=9), State())
    assert found.dram_write_bytes == 20 * 128


def test_a_launch_finds_what_the_last_one_left(
    log_of: LogOf, compiled_facts: CompiledFacts
) -> None:
    state, spec = State(), small(l2_lines=100)
    first = traffic(log_of(rows(range(50), kind=KIND_STORE)), compiled_facts, spec, state)
    second = traffic(log_of(rows(range(50))), compiled_facts, spec, state)
    assert first.dram_write_bytes == 50 * 128
    assert (second.dram_read_bytes, second.dram_write_bytes) == (0, 0)
    third = traffic(log_of(rows(range(1000, 1080))), compiled_facts, spec, state)
    assert third.dram_read_bytes == 80 * 128
    again = traffic(log_of(rows(range(50))), compiled_facts, spec, state)
    assert again.dram_read_bytes > 25 * 128


def test_an_operator_leaves_its_result(log_of: LogOf, compiled_facts: CompiledFacts) -> None:
    state, spec = State(), small(l2_lines=100)
    cachemodel.touch(state, spec, 0, 50 * 128, written=True)
    assert traffic(log_of(rows(range(50))), compiled_facts, spec, state).dram_read_bytes == 0


def test_atomics_read_and_write_in_the_l2(log_of: LogOf, compiled_facts: CompiledFacts) -> None:
    log = [(cta, 0, 7, 1, KIND_ATOMIC) for cta in range(40)]
    found = traffic(log_of(log), compiled_facts, small(l1_lines=10), State())
    assert found.atomic_hottest_requests == 40
    assert (found.dram_read_bytes, found.dram_write_bytes) == (32, 32)
    assert found.l2_write_bytes == 40 * 32


def test_ctas_that_were_not_logged_do_not_fetch_what_all_share(
    log_of: LogOf, compiled_facts: CompiledFacts
) -> None:
    """100 CTAs read ten lines of their own and the same five; ten of them were logged."""
    log = []
    for cta in range(10):
        log += rows(range(5), cta=cta) + rows(range(1000 + 10 * cta, 1010 + 10 * cta), cta=cta)
    found = traffic(log_of(log, ctas=100, counted=10), compiled_facts, small(), State())
    assert found.dram_read_bytes == (100 * 10 + 5) * 128
    assert found.compulsory_read_bytes == (100 * 10 + 5) * 128
    assert found.l2_read_bytes == 100 * 15 * 128


def test_sampled_lines_say_the_same(log_of: LogOf, compiled_facts: CompiledFacts) -> None:
    """One in eight lines, a cache an eighth of the size: the traffic of all, nearly."""
    passes = [r for n in range(3) for r in rows(range(20_000), start=20_000 * n)]
    whole = log_of(passes)
    kept = cachemodel._sampled(whole.lines["line"].astype(np.int64), 8)
    part = replace(whole, lines=whole.lines[kept], line_sampling=8)
    for l2_lines in (15_000, 25_000):
        spec = small(l2_lines=l2_lines)
        full = traffic(whole, compiled_facts, spec, State())
        some = traffic(part, compiled_facts, spec, State())
        assert some.dram_read_bytes == pytest.approx(full.dram_read_bytes, rel=0.05)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ROWS, st.integers(0, 40), st.integers(0, 40))
def test_laws(
    log_of: LogOf, compiled_facts: CompiledFacts, log: list[tuple[int, int, int, int, int]],
    l1_lines: int, l2_lines: int,
) -> None:  # fmt: skip
    """Every byte read first comes from the DRAM; hits never exceed what was asked; a larger L2
    moves no more."""
    counters = log_of(log)
    found = traffic(counters, compiled_facts, small(l1_lines, l2_lines), State())
    larger = traffic(counters, compiled_facts, small(l1_lines, l2_lines + 1), State())
    written = {(r[2], b) for r in log if r[4] == KIND_STORE for b in range(4) if r[3] >> b & 1}
    read = {(r[2], b) for r in log if r[4] != KIND_STORE for b in range(4) if r[3] >> b & 1}
    assert found.dram_read_bytes >= 32 * len(read - written)
    assert found.dram_write_bytes >= 32 * len(written)
    assert found.compulsory_read_bytes == 32 * len(read)
    assert found.l1_hit_bytes + found.l2_read_bytes + found.l2_write_bytes == (
        found.l1_requested_bytes
    )
    assert found.l2_hit_bytes <= found.l2_read_bytes + found.l2_write_bytes
    assert larger.dram_read_bytes <= found.dram_read_bytes
    assert larger.dram_write_bytes <= found.dram_write_bytes
