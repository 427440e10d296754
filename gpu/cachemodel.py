"""Which cache level serves a launch's requests, from the line log of its CTAs.

CTAs run in waves of as many as the GPU holds; those of one wave advance together. Each SM has an
L1, all share the L2; both are taken as fully associative LRU caches. Stack distances come from
reuse times by the StatStack estimate (Eklov and Hagersten, ISPASS 2010): the expected number of
distinct lines among r accesses is the sum over k < r of the share of accesses whose next use is
more than k away. Large logs are thinned by a hash of the line, and the capacity with them (SHARDS,
Waldspurger et al., FAST 2015).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import (
    KIND_ATOMIC,
    KIND_LOAD,
    KIND_STORE,
    LINE_LOG,
    LaunchCounters,
    line_hash,
)
from kopt.gpu.facts import CacheTraffic, CompiledFacts
from kopt.gpu.spec import DeviceSpec

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
MAX_ROWS = 200_000
"""Rows that are simulated; a longer log is thinned to this."""
_NEVER = np.iinfo(np.int64).max


@dataclass
class State:
    """What earlier launches of the call left in the L2: their stream of sectors, in order."""

    stream: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    rate: int = 1
    """The stream holds the sectors of 1 in `rate` lines."""


def _hash(lines: I64) -> I64:
    return line_hash(lines.astype(np.uint64)).astype(np.int64)


def _thin(log: NDArray[np.void], rate: int) -> NDArray[np.void]:
    return log if rate == 1 else log[_hash(log["line"].astype(np.int64)) % rate == 0]


def reuse(keys: I64, streams: I64) -> tuple[I64, I64]:
    """For accesses in time order: how many accesses of the same stream since the key's last use,
    and until its next one; `_NEVER` where there is none."""
    n = len(keys)
    position = np.empty(n, np.int64)
    by_stream = np.argsort(streams, kind="stable")
    starts = np.searchsorted(streams[by_stream], streams[by_stream], side="left")
    position[by_stream] = np.arange(n) - starts
    order = np.lexsort((position, keys, streams))
    same = np.zeros(n, bool)
    same[1:] = (keys[order][1:] == keys[order][:-1]) & (streams[order][1:] == streams[order][:-1])
    gap = np.full(n, _NEVER, np.int64)
    sorted_position = position[order]
    gap[1:][same[1:]] = (sorted_position[1:] - sorted_position[:-1])[same[1:]]
    back = np.empty(n, np.int64)
    back[order] = gap
    ahead = np.full(n, _NEVER, np.int64)
    ahead[order[:-1][same[1:]]] = gap[1:][same[1:]]
    return back, ahead


def hits(back: I64, ahead: I64, capacity: float) -> Bools:
    """Which accesses find their line in an LRU cache of `capacity` lines."""
    n = len(back)
    if not n or capacity < 1:
        return np.zeros(n, bool)
    finite = np.sort(ahead[ahead != _NEVER])
    longest = int(finite[-1]) if len(finite) else 0
    if not longest:
        return back != _NEVER
    # Survival S(k) = share of accesses whose next use is more than k accesses away.
    counts = np.bincount(np.minimum(finite, longest), minlength=longest + 1)
    survival = 1.0 - np.cumsum(counts) / n
    distance = np.concatenate([[0.0], np.cumsum(survival)])
    # A reuse after r accesses passed over distance[r - 1] other lines.
    limit = int(np.searchsorted(distance, capacity, side="left"))
    return (back != _NEVER) & (back <= limit)


def traffic(
    counters: LaunchCounters, compiled: CompiledFacts, spec: DeviceSpec, state: State
) -> CacheTraffic:
    """Bytes by level, scaled to the whole grid. `state` is updated."""
    log = counters.lines
    scale = counters.ctas / counters.ctas_counted if counters.ctas_counted else 0.0
    rate = counters.line_sampling
    sectors = int(np.bitwise_count(log["sectors"]).sum())
    while sectors * counters.line_sampling / rate > MAX_ROWS:
        rate *= 2
    if rate > counters.line_sampling:
        log = _thin(log, rate)
    weight = 32.0 * scale * rate
    resident = max(1, compiled.ctas_per_sm) * spec.sms
    wave = log["cta"] // resident
    log = log[np.lexsort((log["cta"], log["order"], wave))]
    sector, kind, cta = _sectors(log)
    sm = cta % spec.sms
    line = sector >> 2

    # L1: loads that do not bypass it.
    in_l1 = kind == KIND_LOAD
    shared = max(1, compiled.ctas_per_sm) * (
        compiled.static_shared_bytes + compiled.dynamic_shared_bytes + spec.reserved_shared_per_cta
    )
    l1_lines = max(0, spec.l1_bytes - shared) / 128 / rate
    back, ahead = reuse(sector[in_l1], sm[in_l1])
    per_line = _sectors_per_line(sector, line)
    l1_hit = hits(back, ahead, l1_lines * per_line)
    served = np.zeros(len(sector), bool)
    served[np.flatnonzero(in_l1)[l1_hit]] = True

    # L2: what is left, after what earlier launches left there.
    below = ~served
    stream, kinds = sector[below], kind[below]
    common = max(rate, state.rate)
    old = _keep(state.stream, common)
    if rate < common:
        kept = _hash(stream >> 2) % common == 0
        stream, kinds = stream[kept], kinds[kept]
        l2_weight = weight / rate * common
    else:
        l2_weight = weight
    joined = np.concatenate([old, stream])
    back, ahead = reuse(joined, np.zeros(len(joined), np.int64))
    found = hits(back, ahead, spec.l2_bytes / 128 / common * per_line)[len(old) :]
    state.stream = joined[-MAX_ROWS:]
    state.rate = common

    read = (kinds != KIND_STORE) & (kinds != KIND_ATOMIC)
    write = ~read
    load = kind != KIND_STORE
    return CacheTraffic(
        l1_requested_bytes=round(len(sector) * weight),
        l1_hit_bytes=round(int(served.sum()) * weight),
        l2_read_bytes=round(int(read.sum()) * l2_weight),
        l2_write_bytes=round(int(write.sum()) * l2_weight),
        l2_hit_bytes=round(int(found.sum()) * l2_weight),
        # An atomic reads its sector; a store of a part of one is merged in the L2.
        dram_read_bytes=round(int((~found & (kinds != KIND_STORE)).sum()) * l2_weight),
        dram_write_bytes=round(int((~found & write).sum()) * l2_weight),
        compulsory_read_bytes=round(len(np.unique(sector[load & (kind != KIND_ATOMIC)])) * weight),
        compulsory_write_bytes=round(
            len(np.unique(sector[~load | (kind == KIND_ATOMIC)])) * weight
        ),
        coverage=counters.coverage,
        atomic_hottest_requests=_hottest(line, kind, scale),
    )


def _keep(stream: I64, rate: int) -> I64:
    return stream if rate == 1 else stream[_hash(stream >> 2) % rate == 0]


def _sectors(log: NDArray[np.void]) -> tuple[I64, I64, I64]:
    """One row per sector: sector number, kind and CTA."""
    mask = log["sectors"]
    rows, bit = np.nonzero((mask[:, None] >> np.arange(4, dtype=np.uint8)[None, :]) & 1)
    sector = (log["line"].astype(np.int64)[rows] << 2) | bit
    return sector, log["kind"].astype(np.int64)[rows], log["cta"].astype(np.int64)[rows]


def _sectors_per_line(sector: I64, line: I64) -> float:
    """Mean number of sectors in use of a line: a line takes its whole place in the cache."""
    if not len(sector):
        return 4.0
    return len(np.unique(sector)) / len(np.unique(line))


def _hottest(line: I64, kind: I64, scale: float) -> int:
    """Atomic requests on the line that gets most of them."""
    touched = line[kind == KIND_ATOMIC]
    if not len(touched):
        return 0
    return round(int(np.unique(touched, return_counts=True)[1].max()) * scale)


__all__ = ["LINE_LOG", "State", "hits", "reuse", "traffic"]
