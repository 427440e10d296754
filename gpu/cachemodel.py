"""Which cache level serves a launch's requests, from the line log of its CTAs.

CTAs run in waves of as many as the GPU holds. Those of a single wave advance together; over two and
more waves they drift apart until their phases are spread evenly, as the slots of a busy GPU are.
Each SM has an L1, all share the L2; both are fully associative, least recently used, with four
sectors to a line.
The L1 is written through and keeps loads only. The L2 takes stores without fetching and keeps them
dirty; the launch that makes a sector dirty is charged its write to the DRAM, whenever it happens,
because a GPU in steady state writes one dirty line out for each it takes in (RMS norms of 4 to 134
MB on an A100 cost the same for each byte read or written: Liger-Kernel 0.2.1 benchmark data). What
a launch leaves in the L2 the next one of the call finds there; the call begins with nothing in it,
as a benchmark that flushes it does.

Logs of sampled lines simulate a cache that is smaller in proportion (SHARDS: Waldspurger et al.,
FAST 2015). Where only the first CTAs were logged, the others are taken to be like the later half of
those: what all CTAs share was fetched by the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import (
    KIND_ATOMIC,
    KIND_LOAD,
    KIND_STORE,
    LaunchCounters,
    line_hash,
)
from kopt.gpu.facts import CacheTraffic, CompiledFacts
from kopt.gpu.lru import I64, U8, Bools, Stays, first_in_stay, sectors_of_stays, stays
from kopt.gpu.spec import DeviceSpec

LINE_BYTES, SECTOR_BYTES = 128, 32
MAX_ROWS = 600_000
"""Rows that are simulated; a longer log is thinned to this."""
_SM_BITS = 48
"""Line numbers are below 2**48; an SM's number goes above."""


@dataclass
class State:
    """What is in the L2: lines, least recently used first."""

    lines: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    valid: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Sectors that are there."""
    dirty: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Sectors whose write to the DRAM has been charged and that stores may reach again."""
    rate: int = 1
    """1 in `rate` lines is followed."""

    def thin(self, rate: int) -> None:
        """Follow fewer lines."""
        if rate > self.rate:
            kept = _sampled(self.lines, rate)
            self.lines, self.valid = self.lines[kept], self.valid[kept]
            self.dirty, self.rate = self.dirty[kept], rate


def _sampled(lines: I64, rate: int) -> Bools:
    return np.asarray(line_hash(lines.astype(np.uint64)) % np.uint64(rate) == 0)


@dataclass(frozen=True)
class _Rows:
    """The log in the order in which it happens; one row for each line of each request."""

    cta: I64
    line: I64
    sectors: U8
    kind: U8

    def select(self, which: Bools) -> _Rows:
        return _Rows(self.cta[which], self.line[which], self.sectors[which], self.kind[which])


def traffic(
    counters: LaunchCounters, compiled: CompiledFacts, spec: DeviceSpec, state: State
) -> CacheTraffic:
    """Bytes by level, scaled to the whole grid. `state` is updated."""
    resident = max(1, compiled.ctas_per_sm) * spec.sms
    rows, rate = _in_time_order(counters, resident)
    scale = _Scale(rows.cta, counters.ctas, counters.ctas_counted, rate)
    shared = max(1, compiled.ctas_per_sm) * (
        compiled.static_shared_bytes + compiled.dynamic_shared_bytes + spec.reserved_shared_per_cta
    )
    l1_lines = int(max(0, spec.l1_bytes - shared) / LINE_BYTES / rate)
    hit = _l1_hits(rows, spec.sms, l1_lines)
    below = _Rows(rows.cta, rows.line, rows.sectors & ~hit, rows.kind)
    below = below.select(below.sectors != 0)

    state.thin(rate)
    if state.rate > rate:
        below = below.select(_sampled(below.line, state.rate))
    l2_lines = int(spec.l2_bytes / LINE_BYTES / state.rate * scale.density)
    found, dirtied = _l2(below, state, l2_lines)
    l2_scale = _Scale(below.cta, counters.ctas, counters.ctas_counted, state.rate, scale.ctas)
    reads = (below.kind != KIND_STORE) & (below.kind != KIND_ATOMIC)
    fetches = below.kind != KIND_STORE
    missing = below.sectors & ~found
    size = _count(rows.sectors)
    return CacheTraffic(
        l1_requested_bytes=scale.bytes(size),
        l1_hit_bytes=scale.bytes(_count(hit)),
        l2_read_bytes=l2_scale.bytes(_count(below.sectors) * reads),
        l2_write_bytes=l2_scale.bytes(_count(below.sectors) * ~reads),
        l2_hit_bytes=l2_scale.bytes(_count(found)),
        dram_read_bytes=l2_scale.bytes(_count(missing) * fetches),
        dram_write_bytes=l2_scale.bytes(_count(dirtied)),
        compulsory_read_bytes=_distinct(rows.select(rows.kind != KIND_STORE), scale),
        compulsory_write_bytes=_distinct(
            rows.select((rows.kind == KIND_STORE) | (rows.kind == KIND_ATOMIC)), scale
        ),
        coverage=counters.coverage,
        atomic_hottest_requests=_hottest(rows, scale.plain),
        l1_wavefronts=scale.bytes(np.ones(len(size))) // SECTOR_BYTES,
    )


def touch(state: State, spec: DeviceSpec, address: int, nbytes: int, written: bool) -> None:
    """Note that an operator of a library read or wrote a whole buffer, once, in order."""
    first, last = address // LINE_BYTES, -(-(address + nbytes) // LINE_BYTES)
    lines = np.arange(first, last, dtype=np.int64)
    if state.rate > 1:
        lines = lines[_sampled(lines, state.rate)]
    rows = _Rows(
        np.zeros_like(lines),
        lines,
        np.full(len(lines), 15, np.uint8),
        np.full(len(lines), KIND_STORE if written else KIND_LOAD, np.uint8),
    )
    _l2(rows, state, int(spec.l2_bytes / LINE_BYTES / state.rate))


def _in_time_order(counters: LaunchCounters, resident: int) -> tuple[_Rows, int]:
    log = counters.lines
    rate = counters.line_sampling
    while len(log) * counters.line_sampling / rate > MAX_ROWS:
        rate *= 2
    if rate > counters.line_sampling:
        log = log[_sampled(log["line"].astype(np.int64), rate)]
    cta, order = log["cta"].astype(np.int64), log["order"].astype(np.int64)
    wave, slot = np.divmod(cta, resident)
    span = int(order.max()) + 1 if len(order) else 1
    drift = min(1.0, max(0.0, counters.ctas / resident - 1))
    began = (wave + drift * slot / resident) * span
    # Requests of the same moment go by slot.
    time = np.argsort(began + order + slot / (2 * resident), kind="stable")
    log = log[time]
    return _Rows(cta[time], log["line"].astype(np.int64), log["sectors"], log["kind"]), rate


class _Scale:
    """From the logged CTAs to the grid."""

    def __init__(
        self, cta: I64, total: int, counted: int, rate: int, ctas: I64 | None = None
    ) -> None:
        self.ctas = np.unique(cta) if ctas is None else ctas
        self.rate = rate
        self.plain = total / counted if counted else 0.0
        """As if all CTAs were alike."""
        half = len(self.ctas) // 2
        self._late = cta >= self.ctas[half] if half else np.ones(len(cta), bool)
        later = max(1, len(self.ctas) - half)
        idle = counted / max(1, len(self.ctas))
        self._weight = max(0, total - counted) / (later * idle) if counted else 0.0
        span = int(self.ctas[-1]) + 1 if len(self.ctas) else 1
        self.density = min(1.0, counted / span) if counted < total else 1.0
        """Share of the CTAs that were logged among those up to the last one that was."""

    def bytes(self, sectors: NDArray[np.generic]) -> int:
        """Bytes of the whole grid from the number of sectors of each row."""
        seen = float(sectors.sum())
        late = float(sectors[self._late].sum())
        return round(SECTOR_BYTES * self.rate * (seen + self._weight * late))

    def late_ctas(self, cta: I64) -> int:
        """How many of these CTAs are of the later half."""
        half = len(self.ctas) // 2
        return int((cta >= self.ctas[half]).sum()) if half else len(cta)

    def total(self, seen: int, late: int) -> int:
        """Bytes of the whole grid from sectors seen, and seen late."""
        return round(SECTOR_BYTES * self.rate * (seen + self._weight * late))


def _count(sectors: U8) -> NDArray[np.int64]:
    return np.bitwise_count(sectors).astype(np.int64)


def _l1_hits(rows: _Rows, sms: int, capacity: int) -> U8:
    """Sectors of each row that the L1 of its SM has."""
    loads = np.flatnonzero(rows.kind == KIND_LOAD)
    sm = (rows.cta[loads] % sms).astype(np.int16)
    by_sm = np.argsort(sm, kind="stable")
    mine = loads[by_sm]
    keys = rows.line[mine] | (sm[by_sm].astype(np.int64) << _SM_BITS)
    hit = np.zeros(len(rows.line), np.uint8)
    hit[mine] = stays(keys, rows.sectors[mine], capacity).hit_sectors
    return hit


def _l2(rows: _Rows, state: State, capacity: int) -> tuple[U8, U8]:
    """Sectors of each row that the L2 has, and those that the row makes dirty."""
    old = len(state.lines)
    lines = np.concatenate([state.lines, rows.line])
    sectors = np.concatenate([state.valid, rows.sectors])
    seen: Stays = stays(lines, sectors, capacity)
    writes = (rows.kind == KIND_STORE) | (rows.kind == KIND_ATOMIC)
    stored = np.concatenate([state.dirty, rows.sectors * writes])
    fresh = first_in_stay(seen.stay, stored)
    count = len(seen.resident)
    dirty = sectors_of_stays(seen.stay, stored, count)
    valid = sectors_of_stays(seen.stay, sectors, count)
    kept = np.flatnonzero(seen.resident)
    kept = kept[np.argsort(seen.last_use[kept], kind="stable")]
    state.lines = lines[seen.last_use[kept]]
    state.valid, state.dirty = valid[kept], dirty[kept]
    return seen.hit_sectors[old:], fresh[old:]


def _distinct(rows: _Rows, scale: _Scale) -> int:
    """Distinct bytes that these rows touch. For CTAs that were not logged, as many new ones as the
    later half of the logged CTAs brought."""
    total = late = 0
    for bit in range(4):
        has = (rows.sectors >> bit & 1).astype(bool)
        # A stable sort by CTA, then the first row of each line: who touched it first.
        cta, line = rows.cta[has], rows.line[has]
        by_cta = np.argsort(cta, kind="stable")
        unique, first = np.unique(line[by_cta], return_index=True)
        total += len(unique)
        late += scale.late_ctas(cta[by_cta][first])
    return scale.total(total, late)


def _hottest(rows: _Rows, scale: float) -> int:
    """Atomic requests on the sector that gets most of them."""
    touched = rows.select(rows.kind == KIND_ATOMIC)
    most = 0
    for bit in range(4):
        lines = touched.line[(touched.sectors >> bit & 1).astype(bool)]
        if len(lines):
            most = max(most, int(np.unique(lines, return_counts=True)[1].max()))
    return round(most * scale)
