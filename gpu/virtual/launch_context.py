"""The memory that one thread of execution owns during a launch, laid out for generated code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import LINE_LOG
from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx import context as slot
from kopt.gpu.virtual.ptx.instruction import WIDTHS
from kopt.gpu.virtual.ptx.parse import Param
from kopt.gpu.virtual.ptx.registers import LOCAL_WINDOW, SHARED_WINDOW
from kopt.gpu.virtual.ptx.translate import Translation
from kopt.gpu.virtual.segments import Segment

LOG_ROWS = 1 << 18
"""Rows of the line log, shared by the threads; a log that would grow longer is thinned."""

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """How a launch runs, the same for all of its threads."""

    grid: tuple[int, int, int]
    threads_per_cta: int
    dynamic_shared_bytes: int
    max_findings: int
    counted: bool
    line_sampling: int

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.threads_per_cta // 32)


class Context:
    """Buffers and counters of one thread; `address` is what generated code takes."""

    def __init__(
        self,
        translation: Translation,
        shape: Shape,
        params: Sequence[int | float],
        segments: Sequence[Segment],
        share: int,
        wide: bool = False,
    ) -> None:
        entry = translation.entry
        shared_bytes = entry.static_shared_bytes + shape.dynamic_shared_bytes
        self._params = _pack(entry.params, params)
        self._shared = _aligned(max(shared_bytes, 16))
        self._local = _aligned(translation.local_stride * 32)
        shade = 4 if wide else 0
        self._shared_shadow = _aligned(shade * len(self._shared))
        self._local_shadow = _aligned(shade * len(self._local))
        self._segments = _table(
            [
                *segments,
                _window(SHARED_WINDOW, self._shared[:shared_bytes], self._shared_shadow),
                _window(LOCAL_WINDOW, self._local, self._local_shadow),
            ]
        )
        self.findings = np.zeros(1 + slot.FINDING_SLOTS * shape.max_findings, np.int64)
        self._states = _aligned(translation.state_bytes * shape.warps)
        self._resumes = np.zeros(shape.warps, np.int64)
        self._orders = np.zeros(shape.warps, np.int64)
        self.blocks = _counters(len(translation.flow.blocks), slot.BLOCK_SLOTS)
        self.edges = _counters(len(translation.edges), slot.EDGE_SLOTS)
        self.guards = _counters(len(translation.guarded), 1)
        self.selects = _counters(len(translation.selects), slot.SELECT_SLOTS)
        self.tallies = _counters(len(translation.sites), slot.TALLY_SLOTS)
        pairs = len(translation.sites) * min(64, len(segments) + 2)
        self._halves = np.zeros((32, 2), np.int64)
        self._touched = np.zeros((pairs + 1, 2), np.int64)
        self._cache = _counters(len(translation.sites), slot.CACHE_SLOTS)
        self._fill_cache(translation, shared_bytes)
        rows = LOG_ROWS // share if shape.counted else 0
        self._lines = np.empty(rows, LINE_LOG)
        self._slots = np.zeros(slot.SLOTS, np.int64)
        arrays: dict[int, NDArray[Any]] = {
            slot.PARAMS: self._params, slot.SHARED: self._shared, slot.LOCAL: self._local,
            slot.SEGMENTS: self._segments, slot.CACHE: self._cache, slot.FINDINGS: self.findings,
            slot.STATES: self._states, slot.RESUMES: self._resumes, slot.BLOCKS: self.blocks,
            slot.EDGES: self.edges, slot.GUARDS: self.guards, slot.SELECTS: self.selects,
            slot.TALLIES: self.tallies, slot.ORDERS: self._orders, slot.LINES: self._lines,
            slot.TOUCHED: self._touched, slot.HALVES: self._halves,
        }  # fmt: skip
        for index, array in arrays.items():
            self._slots[index] = array.ctypes.data
        if wide:
            self._slots[slot.SHARED_SHADOW] = self._shared_shadow.ctypes.data
            self._slots[slot.LOCAL_SHADOW] = self._local_shadow.ctypes.data
        values = {
            slot.NCTAID: shape.grid[0], slot.NCTAID + 1: shape.grid[1],
            slot.NCTAID + 2: shape.grid[2], slot.NTID: shape.threads_per_cta, slot.NTID + 1: 1,
            slot.NTID + 2: 1, slot.SHARED_BYTES: shared_bytes, slot.WARPS: shape.warps,
            slot.SEGMENT_COUNT: len(self._segments), slot.FINDING_LIMIT: shape.max_findings,
            slot.STATE_BYTES: translation.state_bytes, slot.LINE_LIMIT: rows,
            slot.SAMPLE: shape.line_sampling - 1,
        }  # fmt: skip
        for index, value in values.items():
            self._slots[index] = value

    def _fill_cache(self, translation: Translation, shared_bytes: int) -> None:
        """Shared and local sites always use one segment; others find theirs at the first access."""
        for site in translation.sites:
            row = self._cache[site.number]
            size = 16 if site.kind == "ldmatrix" else site.bytes_per_lane
            if site.space == "shared":
                start, length, shadow = 0, shared_bytes, self._shared_shadow
                row[slot.SEG_DELTA] = self._shared.ctypes.data
            elif site.space == "local":
                start, length = self._local.ctypes.data, len(self._local)
                shadow = self._local_shadow
            else:
                continue
            row[slot.SEG_LO] = start
            row[slot.SEG_LIMIT] = max(0, length - size + 1)
            row[slot.SEG_SHADOW] = shadow.ctypes.data - 4 * start if len(shadow) else 0

    @property
    def address(self) -> int:
        """Where the context's slots are."""
        return int(self._slots.ctypes.data)

    @property
    def stuck(self) -> bool:
        """Whether a CTA gave up waiting."""
        return bool(self._slots[slot.STUCK])

    @property
    def lines(self) -> NDArray[np.void]:
        """The line log as far as it is filled."""
        return self._lines[: int(self._slots[slot.LINE_COUNT])]

    @property
    def line_sampling(self) -> int:
        """1 in this many lines is in the log."""
        return int(self._slots[slot.SAMPLE]) + 1

    @property
    def touched(self) -> list[tuple[int, int]]:
        """Pairs of site and index of a segment, in order of first touch."""
        kept = self._touched[: int(self._slots[slot.TOUCHED_COUNT])]
        return [(int(site), int(segment)) for site, segment in kept]


def _counters(count: int, width: int) -> I64:
    return np.zeros((max(1, count), width), np.int64)


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    whole = np.zeros(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]


def _window(base: int, memory: NDArray[np.uint8], shadow: NDArray[np.uint8]) -> Segment:
    where = shadow.ctypes.data if len(shadow) else 0
    return Segment(base, len(memory), memory.ctypes.data, "", where)


def _table(segments: Sequence[Segment]) -> I64:
    rows = [
        (s.base, s.nbytes, s.host - s.base, s.shadow - 4 * s.base if s.shadow else 0)
        for s in segments
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def _pack(declared: Sequence[Param], values: Sequence[int | float]) -> NDArray[np.uint8]:
    if len(declared) != len(values):
        raise Unsupported(f"the kernel takes {len(declared)} parameters, not {len(values)}")
    end = declared[-1].offset + declared[-1].width // 8 if declared else 8
    block = np.zeros(max(8, end), np.uint8)
    for param, value in zip(declared, values, strict=True):
        size = WIDTHS[param.type] // 8
        if param.width != WIDTHS[param.type]:
            raise Unsupported(f"PTX parameter {param.name} by value of {param.width // 8} bytes")
        if isinstance(value, float):
            raw = _float_bytes(param.type, size, value)
        else:
            raw = (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        block[param.offset : param.offset + size] = np.frombuffer(raw, np.uint8)
    return block


def _float_bytes(kind: str, size: int, value: float) -> bytes:
    if kind == "bf16":
        word = int(np.array([value], np.float32).view(np.uint32)[0])
        rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
        return rounded.to_bytes(2, "little")
    dtype = {2: np.float16, 4: np.float32, 8: np.float64}[size]
    return np.array([value], dtype).tobytes()
