"""Least-recently-used caches over a log of accesses, exactly and without a loop over accesses.

An access finds its line iff at most `capacity` distinct lines were used since the line's last use,
itself included. The last `capacity` distinct lines before time t begin at a position f(t) that
never falls, so a few exact values of f settle almost every access; what is left between two of them
is counted with a wavelet matrix (Claude and Navarro, SPIRE 2012) in O(log n) array operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
U8 = NDArray[np.uint8]
_BLOCKS = 64


@dataclass(frozen=True)
class Uses:
    """Accesses in time order, linked by line."""

    order: I64
    """Accesses sorted by line, then by time."""
    again: Bools
    """Along `order`: whether the access is of the same line as the one before it."""
    previous: I64
    """Position of the line's use before this one, -1 for none."""
    next: I64
    """Position of the line's next use, the number of accesses for none."""


def link(lines: I64) -> Uses:
    """Link the accesses of each line."""
    n = len(lines)
    order = np.argsort(lines, kind="stable").astype(np.int64)
    ordered = lines[order]
    again = np.zeros(n, bool)
    again[1:] = ordered[1:] == ordered[:-1]
    previous = np.full(n, -1, np.int64)
    following = np.full(n, n, np.int64)
    later, earlier = order[again], order[np.flatnonzero(again) - 1]
    previous[later] = earlier
    following[earlier] = later
    return Uses(order, again, previous, following)


def first_resident(uses: Uses, time: int, capacity: int) -> int:
    """Where the last `capacity` distinct lines before `time` begin; 0 if there are fewer."""
    last = np.flatnonzero(uses.next[:time] >= time)
    return int(last[-capacity]) if len(last) >= capacity else 0


def line_hits(uses: Uses, capacity: int) -> Bools:
    """Which accesses find their line in a cache of `capacity` lines."""
    n = len(uses.order)
    hit = uses.previous >= 0
    if capacity < 1:
        return np.zeros(n, bool)
    far = hit & (np.arange(n) - uses.previous > capacity)
    if not far.any():
        return hit
    bounds = np.unique(np.linspace(0, n, _BLOCKS + 1).astype(np.int64))
    begins = np.array([first_resident(uses, int(t), capacity) for t in bounds])
    open_rows = []
    for k in range(len(bounds) - 1):
        rows = bounds[k] + np.flatnonzero(far[bounds[k] : bounds[k + 1]])
        before = uses.previous[rows]
        hit[rows[before < begins[k]]] = False
        between = (before >= begins[k]) & (before < begins[k + 1])
        open_rows.append(rows[between])
    rows = np.concatenate(open_rows)
    if len(rows):
        before = uses.previous[rows]
        # Lines whose first use after `before` lies in the window, and the line itself.
        distinct = 1 + _count_below(uses.previous + 1, before + 1, rows, before + 2)
        hit[rows[distinct > capacity]] = False
    return hit


def _count_below(values: I64, begin: I64, end: I64, limit: I64) -> I64:
    """For each query, how many of `values[begin:end]` are below `limit`."""
    total = np.zeros(len(begin), np.int64)
    left, right, current = begin.copy(), end.copy(), values
    for level in reversed(range(int(max(values.max(), limit.max())).bit_length())):
        ones = (current >> level & 1).astype(bool)
        zeros = np.concatenate([[0], np.cumsum(~ones)])
        left_zeros, right_zeros = zeros[left], zeros[right]
        up = (limit >> level & 1).astype(bool)
        total += np.where(up, right_zeros - left_zeros, 0)
        left = np.where(up, zeros[-1] + left - left_zeros, left_zeros)
        right = np.where(up, zeros[-1] + right - right_zeros, right_zeros)
        current = np.concatenate([current[~ones], current[ones]])
    return total


@dataclass(frozen=True)
class Stays:
    """The stays of lines in a sectored cache: from the miss that brings a line to its eviction."""

    hit_sectors: U8
    """For each access, which of its sectors were there."""
    stay: I64
    """For each access, the number of the stay it belongs to."""
    resident: Bools
    """For each stay, whether it lasts to the end."""
    last_use: I64
    """For each stay, its last access."""


def stays(lines: I64, sectors: U8, capacity: int) -> Stays:
    """Run accesses through a cache whose lines hold the sectors that were asked for."""
    n = len(lines)
    uses = link(lines)
    hit = line_hits(uses, capacity)
    start = ~(uses.again & hit[uses.order])
    number = np.cumsum(start) - 1
    found = np.zeros(n, np.uint8)
    ordered = sectors[uses.order]
    for bit in range(4):
        rows = np.flatnonzero(ordered >> bit & 1)
        again = np.zeros(len(rows), bool)
        again[1:] = number[rows[1:]] == number[rows[:-1]]
        found[uses.order[rows[again]]] |= np.uint8(1 << bit)
    stay = np.empty(n, np.int64)
    stay[uses.order] = number
    ends = np.flatnonzero(np.append(start[1:], True)) if n else np.zeros(0, np.int64)
    last_use = uses.order[ends]
    held = uses.next[last_use] == n
    if capacity >= 1:
        held &= last_use >= first_resident(uses, n, capacity)
    else:
        held[:] = False
    return Stays(found, stay, held, last_use)


def sectors_of_stays(which: I64, sectors: U8, count: int) -> U8:
    """The union of `sectors` over the accesses of each of `count` stays."""
    union = np.zeros(count, np.uint8)
    np.bitwise_or.at(union, which, sectors)
    return union


def first_in_stay(which: I64, sectors: U8) -> U8:
    """Of each access, the sectors that no earlier access of its stay names."""
    first = np.zeros(len(which), np.uint8)
    for bit in range(4):
        rows = np.flatnonzero(sectors >> bit & 1)
        _, position = np.unique(which[rows], return_index=True)
        first[rows[position]] |= np.uint8(1 << bit)
    return first
