"""The vectorised cache equals a cache simulated access by access."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.gpu.lru import line_hits, link, stays

ACCESSES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 15)), max_size=80)


def simulate(accesses: list[tuple[int, int]], capacity: int) -> tuple[list[int], list[int]]:
    """Sectors hit by each access, and the lines left, least recently used first."""
    cache: dict[int, int] = {}
    hits = []
    for line, sectors in accesses:
        held = cache.pop(line, 0)
        hits.append(held & sectors)
        cache[line] = held | sectors
        if len(cache) > capacity:
            del cache[next(iter(cache))]
    return hits, list(cache)


@settings(max_examples=300, deadline=None)
@given(ACCESSES, st.integers(0, 14))
def test_equals_a_simulated_cache(accesses: list[tuple[int, int]], capacity: int) -> None:
    lines = np.array([a[0] for a in accesses], np.int64)
    sectors = np.array([a[1] for a in accesses], np.uint8)
    seen = stays(lines, sectors, capacity)
    hits, left = simulate(accesses, capacity)
    assert seen.hit_sectors.tolist() == hits
    kept = np.flatnonzero(seen.resident)
    kept = kept[np.argsort(seen.last_use[kept])]
    assert lines[seen.last_use[kept]].tolist() == left


def test_equals_a_simulated_cache_on_a_long_log() -> None:
    """Long enough that blocks of accesses are settled at once and some are counted one by one."""
    chosen = np.random.default_rng(7)
    lines = np.concatenate([chosen.zipf(1.3, 6000) % 900, np.tile(np.arange(500), 6)])
    accesses = [(int(n), 15) for n in lines]
    for capacity in (1, 37, 400, 499, 500, 501, 2000):
        hit = line_hits(link(lines.astype(np.int64)), capacity)
        assert hit.tolist() == [bool(h) for h in simulate(accesses, capacity)[0]]


@settings(max_examples=100, deadline=None)
@given(ACCESSES, st.integers(1, 13))
def test_a_larger_cache_hits_no_less(accesses: list[tuple[int, int]], capacity: int) -> None:
    lines = np.array([a[0] for a in accesses], np.int64)
    uses = link(lines)
    small, large = line_hits(uses, capacity), line_hits(uses, capacity + 1)
    assert not (small & ~large).any()
