"""Runs compiled PTX on the CPU: grids of CTAs over the buffers of the virtual GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import Finding, LaunchCounters
from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.counting import Raw, count
from kopt.gpu.virtual.ptx import memory_ir as slot
from kopt.gpu.virtual.ptx.jit import Compiled
from kopt.gpu.virtual.ptx.parse import WIDTHS, Param
from kopt.gpu.virtual.ptx.registers import CONSTANT_BASE
from kopt.gpu.virtual.ptx.translate import Translation, translate
from kopt.gpu.virtual.segments import Segment

Arithmetic = Literal["ieee", "wide"]

_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_CHUNK = 16
"""CTAs that a thread takes at a time."""
LOG_RECORDS = 1 << 20
LOG_TABLES = 1 << 23
"""Capacity of the access log, shared by the threads: 32 bytes a record, and
words of 8 bytes for addresses that are not side by side."""


@dataclass(frozen=True)
class LaunchResult:
    """What one launch left besides its outputs."""

    counters: LaunchCounters | None
    findings: tuple[Finding, ...]


class LoadedKernel:
    """A kernel ready to launch."""

    def __init__(self, translation: Translation, code: Compiled, counted: bool) -> None:
        self.translation = translation
        self._code = code
        self._counted = counted
        self._run = _RUN(code.address("run_ctas"))
        self._constant_data = np.frombuffer(bytes(translation.entry.constant_data), np.uint8).copy()
        self._constants = [
            Segment(CONSTANT_BASE, len(self._constant_data), self._constant_data.ctypes.data, "")
        ] * bool(len(self._constant_data))

    @property
    def was_cached(self) -> bool:
        """Whether its machine code came from the disk."""
        return self._code.was_cached

    def launch(
        self,
        grid: tuple[int, int, int],
        threads_per_cta: int,
        shared_bytes: int,
        params: Sequence[int | float],
        segments: Sequence[Segment],
        *,
        threads: int | None = None,
        ctas: Sequence[int] | None = None,
        max_findings: int = 64,
    ) -> LaunchResult:
        """Run a grid to its end.

        `params` has one value for each PTX parameter; pointers are virtual addresses inside
        `segments`. An access outside every segment is a finding: a load gives 0, a store is
        dropped. `ctas` runs only those linear CTAs. Kernels with float atomics run on one thread.
        """
        total = grid[0] * grid[1] * grid[2]
        if total <= 0:
            return LaunchResult(None, ())
        segments = [*segments, *self._constants]
        todo = np.asarray(range(total) if ctas is None else ctas, np.int64)
        workers = 1 if self.translation.ordered else max(1, threads or os.cpu_count() or 1)
        workers = min(workers, max(1, len(todo) // 2))
        contexts = [
            _Context(
                self.translation, grid, threads_per_cta, shared_bytes, params, segments,
                max_findings, self._counted, workers,
            )
            for _ in range(workers)
        ]  # fmt: skip
        if workers == 1:
            self._chunk(contexts[0], todo)
        else:
            self._parallel(contexts, todo)
        findings = _findings(self.translation, contexts, segments, max_findings)
        if not self._counted:
            return LaunchResult(None, findings)
        raws = [context.raw() for context in contexts]
        counters = count(self.translation, raws, grid, threads_per_cta, len(todo), segments)
        return LaunchResult(counters, findings)

    def _chunk(self, context: _Context, ctas: NDArray[np.int64]) -> None:
        self._run(context.slots.ctypes.data, ctas.ctypes.data, len(ctas))

    def _parallel(self, contexts: list[_Context], todo: NDArray[np.int64]) -> None:
        lock = threading.Lock()
        position = 0

        def work(context: _Context) -> None:
            nonlocal position
            while True:
                with lock:
                    start = position
                    position += _CHUNK
                if start >= len(todo):
                    return
                self._chunk(context, np.ascontiguousarray(todo[start : start + _CHUNK]))

        workers = [threading.Thread(target=work, args=(c,)) for c in contexts[1:]]
        for worker in workers:
            worker.start()
        work(contexts[0])
        for worker in workers:
            worker.join()


class _Context:
    """The memory that one thread of execution owns, and the slots that point to it."""

    def __init__(
        self,
        translation: Translation,
        grid: tuple[int, int, int],
        threads_per_cta: int,
        dynamic_shared: int,
        params: Sequence[int | float],
        segments: Sequence[Segment],
        max_findings: int,
        counted: bool,
        share: int,
    ) -> None:
        entry = translation.entry
        warps = -(-threads_per_cta // 32)
        shared = entry.static_shared_bytes + dynamic_shared
        self.params = _pack(entry.params, params)
        self.shared = _aligned(max(shared, 16))
        local_stride = -(-max(entry.local_bytes, 8) // 8) * 8
        self.local = np.zeros(local_stride * 32 // 8, np.int64)
        self.segments = np.array(
            [(s.base, s.base + s.nbytes, s.host - s.base) for s in segments], np.int64
        ).reshape(-1, 3)
        self.findings = np.zeros(1 + slot.FINDING_SLOTS * max_findings, np.int64)
        self.state = _aligned(translation.state_bytes * warps)
        self.orders = np.zeros(2 * warps, np.int64)
        self.blocks = np.zeros((len(translation.flow.blocks), 2), np.int64)
        self.selects = np.zeros((max(1, len(translation.selects)), 3), np.int64)
        self.cache = np.zeros((max(1, len(translation.sites)), 4), np.int64)
        for site in translation.sites:
            if site.space == "shared":
                self.cache[site.number, :3] = 0, shared, self.shared.ctypes.data
            elif site.space == "local":
                start = self.local.ctypes.data
                self.cache[site.number, :3] = start, start + self.local.nbytes, 0
            else:
                # No address is inside until the first search.
                self.cache[site.number, :3] = 1, 0, 0
        records = LOG_RECORDS // share if counted else 0
        tables = LOG_TABLES // share if counted else 0
        self.log = np.empty((records, slot.LOG_SLOTS), np.uint64)
        self.table = np.empty(tables + 32, np.uint64)
        self.slots = np.zeros(slot.CONTEXT_SLOTS, np.int64)
        values = {
            slot.PARAMS: self.params.ctypes.data,
            slot.NCTAID: grid[0], slot.NCTAID + 1: grid[1], slot.NCTAID + 2: grid[2],
            slot.NTID: threads_per_cta, slot.NTID + 1: 1, slot.NTID + 2: 1,
            slot.SHARED: self.shared.ctypes.data, slot.SHARED_BYTES: shared,
            slot.LOCAL: self.local.ctypes.data,
            slot.SEGMENTS: self.segments.ctypes.data, slot.SEGMENT_COUNT: len(segments),
            slot.FINDINGS: self.findings.ctypes.data, slot.FINDING_LIMIT: max_findings,
            slot.STATE: self.state.ctypes.data, slot.BLOCKS: self.blocks.ctypes.data,
            slot.LOG: self.log.ctypes.data, slot.LOG_LIMIT: records,
            slot.SHARED_LIMIT: records // 4,
            slot.TABLE: self.table.ctypes.data, slot.TABLE_LIMIT: tables,
            slot.ORDER: self.orders.ctypes.data, slot.SELECTS: self.selects.ctypes.data,
            slot.CACHE: self.cache.ctypes.data, slot.WARPS: warps,
            slot.STATE_BYTES: translation.state_bytes,
        }  # fmt: skip
        for index, value in values.items():
            self.slots[index] = value

    def raw(self) -> Raw:
        """The counters as the generated code left them."""
        return Raw(
            self.blocks,
            self.selects,
            self.log[: int(self.slots[slot.LOG_COUNT])],
            self.table[: int(self.slots[slot.TABLE_COUNT])],
            bool(self.slots[slot.LOG_FULL]),
            int(self.slots[slot.SHARED_STOP]) if self.slots[slot.SHARED_FULL] else None,
        )


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    whole = np.zeros(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]


def _pack(declared: Sequence[Param], values: Sequence[int | float]) -> NDArray[np.uint8]:
    if len(declared) != len(values):
        raise Unsupported(f"the kernel takes {len(declared)} parameters, not {len(values)}")
    block = np.zeros(
        max(8, declared[-1].offset + declared[-1].width // 8 if declared else 8), np.uint8
    )
    for param, value in zip(declared, values, strict=True):
        size = WIDTHS[param.type] // 8
        if param.width != WIDTHS[param.type]:
            raise Unsupported(f"PTX parameter {param.name} by value of {param.width // 8} bytes")
        if isinstance(value, float):
            kind = {"f32": np.float32, "b32": np.float32, "f64": np.float64}.get(param.type)
            if kind is None:
                kind = {2: np.float16, 4: np.float32, 8: np.float64}[size]
            raw = np.array([value], kind).tobytes()
        else:
            raw = (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        block[param.offset : param.offset + size] = np.frombuffer(raw, np.uint8)
    return block


def _findings(
    translation: Translation,
    contexts: Sequence[_Context],
    segments: Sequence[Segment],
    limit: int,
) -> tuple[Finding, ...]:
    """Findings of all threads, one for each site and buffer, the first CTA's first."""
    rows = []
    for context in contexts:
        kept = min(int(context.findings[0]), limit)
        rows.extend(context.findings[1 : 1 + 4 * kept].reshape(-1, 4).tolist())
    merged: dict[tuple[int, str, str], Finding] = {}
    for number, address, cta, lane in sorted(rows, key=lambda r: (r[2], r[0], r[3])):
        site = translation.sites[number]
        i = site.instruction
        address &= (1 << 64) - 1
        kind, arg, distance = _nearest(address, site.bytes_per_lane, site.space, segments)
        key = (number, kind, arg)
        if key in merged:
            old = merged[key]
            merged[key] = Finding(**{**old.__dict__, "lanes": old.lanes + 1})
            continue
        merged[key] = Finding(
            kind, translation.entry.name, i.file, i.line, i.opcode, arg, distance, address,
            cta, lane, 1,
        )  # fmt: skip
    return tuple(merged.values())


def _nearest(
    address: int, size: int, space: str, segments: Sequence[Segment]
) -> tuple[Literal["out_of_bounds", "misaligned", "null"], str, int]:
    """What is wrong with an access, the nearest buffer and the distance past its end."""
    if space == "shared":
        return ("misaligned" if address % size else "out_of_bounds"), "shared memory", address
    if address < 4096:
        return "null", "", 0
    best: tuple[int, str, int] | None = None
    for s in segments:
        if s.base <= address and address + size <= s.base + s.nbytes:
            return "misaligned", s.name, 0
        if address >= s.base:
            gap, signed = address + size - (s.base + s.nbytes), address + size - s.base - s.nbytes
        else:
            gap, signed = s.base - address, address - s.base
        if best is None or gap < best[0]:
            best = gap, s.name, signed
    if best is None or best[0] > 1 << 40:
        return "out_of_bounds", "", 0
    return "out_of_bounds", best[1], best[2]


_LOADED: OrderedDict[str, LoadedKernel] = OrderedDict()
_KEEP = 256


def load_kernel(
    ptx: str, entry: str, *, arithmetic: Arithmetic = "ieee", counted: bool = False
) -> LoadedKernel:
    """Translate and compile a PTX entry, or take it from memory or the user's cache.

    Raises `Unsupported` with the name of what the executor does not know.
    """
    key = hashlib.sha256(f"{entry}|{arithmetic}|{counted}|{ptx}".encode()).hexdigest()
    if key not in _LOADED:
        if arithmetic == "wide":
            raise Unsupported("wide arithmetic is not available yet")
        translation = translate(ptx, entry, counted)
        _LOADED[key] = LoadedKernel(translation, Compiled(translation.text), counted)
        while len(_LOADED) > _KEEP:
            _LOADED.popitem(last=False)
    _LOADED.move_to_end(key)
    return _LOADED[key]
