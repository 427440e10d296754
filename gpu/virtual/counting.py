"""Counters of a launch from what the generated code left: block counts and the access log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import (
    KIND_ATOMIC,
    KIND_LOAD,
    KIND_LOAD_BYPASS_L1,
    KIND_STORE,
    LINE_LOG,
    InstructionClass,
    LaunchCounters,
    Site,
    line_hash,
)
from kopt.gpu.virtual.ptx.flow import is_barrier
from kopt.gpu.virtual.ptx.parse import Imm, Instruction
from kopt.gpu.virtual.ptx.registers import SiteInfo
from kopt.gpu.virtual.ptx.translate import Translation
from kopt.gpu.virtual.segments import Segment

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
SIDE_BY_SIDE, EACH, GROUPS = 0, 1, 2
"""Shapes of a log record, see `kopt.gpu.virtual.ptx.memory_ir`."""


@dataclass(frozen=True)
class Raw:
    """One thread's counters. Layouts: `kopt.gpu.virtual.ptx.memory_ir`."""

    blocks: I64
    selects: I64
    log: U64
    table: U64
    full: bool
    shared_stop: int | None
    """CTA at which shared accesses filled their part of the log."""


MAX_LINES = 250_000
"""About how many rows the line log keeps; a longer one is sampled by a hash of the line."""


@dataclass
class _Kept:
    """How much of the log there is, and the line log as it grows."""

    ctas: int
    shared_ctas: int
    """CTAs whose shared-memory accesses were logged too."""
    rate: int
    lines: list[NDArray[np.void]]


@dataclass(frozen=True)
class _Log:
    """The decoded access log of the CTAs that were logged whole."""

    cta: I64
    site: I64
    mask: NDArray[np.uint32]
    order: I64
    warp: I64
    first: U64
    shape: I64
    word: I64
    """Where in `table` the addresses start."""
    table: U64


def count(
    translation: Translation,
    raws: Sequence[Raw],
    grid: tuple[int, int, int],
    threads_per_cta: int,
    ctas_run: int,
    segments: Sequence[Segment],
) -> LaunchCounters:
    """The counters of a launch, scaled from the logged CTAs where the log did not hold them all."""
    blocks = sum((r.blocks for r in raws), np.zeros_like(raws[0].blocks))
    selects = sum((r.selects for r in raws), np.zeros_like(raws[0].selects))
    log, logged, shared_logged = _decode(translation, raws, ctas_run)
    total = grid[0] * grid[1] * grid[2]
    scale = total / ctas_run
    warps = -(-threads_per_cta // 32)
    classes: Counter[InstructionClass] = Counter()
    opcodes: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    threads = branches = barriers = 0
    for block in translation.flow.blocks:
        times = round(int(blocks[block.index, 0]) * scale)
        if not times:
            continue
        lanes = (
            round(int(blocks[block.index, 1]) * scale) if translation.flow.divergent else 32 * times
        )
        for i in block.instructions:
            kind = classify(i)
            classes[kind] += times
            opcodes[i.opcode] += times
            threads += lanes
            branches += i.parts[0] == "bra" and times
            barriers += is_barrier(i) and times
            name, each = _flops(i)
            if each:
                flops[name] += each * (times if name.startswith("mma") else lanes)
    rate = 1
    while len(log.cta) / rate > MAX_LINES:
        rate *= 2
    whole = _Kept(logged, shared_logged, rate, [])
    sites = _sites(translation, log, whole, total, segments, warps)
    sites += _select_sites(translation, selects, scale)
    return LaunchCounters(
        kernel=translation.entry.name,
        grid=grid,
        threads_per_cta=threads_per_cta,
        ctas=total,
        ctas_counted=logged,
        instructions=dict(classes),
        thread_instructions=threads,
        opcodes=dict(opcodes),
        branches=branches,
        divergent_branches=0,
        barriers=barriers,
        flops=dict(flops),
        sites=tuple(sorted(sites, key=lambda s: s.index)),
        lines=np.concatenate(whole.lines) if whole.lines else np.zeros(0, LINE_LOG),
        line_sampling=rate,
        static_instructions=sum(
            classify(i) != "param" for b in translation.flow.blocks for i in b.instructions
        ),
        pipeline_stages=_stages(translation),
    )


def _stages(translation: Translation) -> int:
    """From `cp.async.wait_group N`: N groups may still be in flight while one is used."""
    waits = [
        operand.bits
        for block in translation.flow.blocks
        for i in block.instructions
        if i.opcode == "cp.async.wait_group"
        for operand in i.operands
        if isinstance(operand, Imm)
    ]
    loads = [
        i
        for block in translation.flow.blocks
        for i in block.instructions
        if i.opcode.startswith("cp.async") and "global" in i.opcode
    ]
    lines = len({i.line for i in loads}) or 1
    return 1 + max(waits, default=0) // lines


_CLASS: dict[str, InstructionClass] = {
    "mma": "mma", "ldmatrix": "ldmatrix", "shfl": "shuffle", "vote": "vote", "redux": "vote",
    "match": "vote", "activemask": "vote", "atom": "atomic", "red": "atomic", "bra": "control",
    "ret": "control", "exit": "control", "cvt": "convert", "setp": "compare", "set": "compare",
    "selp": "select", "mov": "move", "prmt": "int", "cvta": "move", "bar": "barrier",
    "barrier": "barrier",
}  # fmt: skip
_SFU = {"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"}


def classify(i: Instruction) -> InstructionClass:
    """The class of an instruction."""
    name, kind = i.parts[0], i.parts[-1]
    if name in {"ld", "st", "ldu"}:
        space = next((p for p in i.parts[1:] if p in {"shared", "local", "param"}), "global")
        if space in {"local", "param"}:
            return "local" if space == "local" else "param"
        load = name != "st"
        if space == "shared":
            return "shared_load" if load else "shared_store"
        return "global_load" if load else "global_store"
    if name == "cp":
        return "cp_async" if "global" in i.parts else "other"
    if name in _CLASS:
        return _CLASS[name]
    if name in _SFU:
        return "sfu"
    if kind == "f32":
        return "fp32"
    if kind == "f64":
        return "fp64"
    if kind in {"f16", "bf16", "f16x2", "bf16x2"}:
        return "fp16"
    if name in {
        "add", "sub", "mul", "mad", "madc", "addc", "min", "max", "and", "or", "xor", "not", "shl",
        "shr", "shf", "neg", "abs", "div", "rem", "popc", "clz", "brev", "bfe", "bfi", "bfind",
        "lop3", "dp4a",
    }:  # fmt: skip
        return "int"
    return "other"


def _flops(i: Instruction) -> tuple[str, int]:
    """Name and number of floating-point operations per lane (per warp for matrices)."""
    name, kind = i.parts[0], i.parts[-1]
    if name == "mma":
        tile = next(p for p in i.parts if p.startswith("m16n8k"))
        types = [p for p in i.parts if p in {"f16", "bf16", "tf32", "f32", "s8", "u8", "s32"}]
        label = {"s8": "int8", "u8": "int8"}.get(types[1], types[1])
        return f"mma_{label}", 2 * 16 * 8 * int(tile[6:])
    dtype = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "fp16", "f16x2": "fp16",
             "bf16x2": "fp16"}.get(kind)  # fmt: skip
    if dtype is None or name not in {"add", "sub", "mul", "fma", "mad", "div", *_SFU}:
        return "", 0
    return dtype, (2 if name in {"fma", "mad"} else 1) * (2 if kind.endswith("x2") else 1)


def _decode(translation: Translation, raws: Sequence[Raw], ctas_run: int) -> tuple[_Log, int, int]:
    """The logs of all threads without the CTA at which a full log stopped, the CTAs kept, and
    those whose shared accesses were kept too."""
    shared = np.array([s.space == "shared" for s in translation.sites] or [False])
    low = np.uint64(0xFFFFFFFF)
    parts: list[tuple[U64, int]] = []
    offset = shared_ctas = 0
    full = any(r.full for r in raws)
    cut = any(r.shared_stop is not None for r in raws)
    for raw in raws:
        rows = raw.log
        ctas = (rows[:, 0] & low).astype(np.int64)
        if full and len(rows):
            rows, ctas = rows[ctas != ctas[-1]], ctas[ctas != ctas[-1]]
        stop = raw.shared_stop
        if stop is not None:
            is_shared = shared[(rows[:, 0] >> np.uint64(32)).astype(np.int64)]
            shared_ctas += len(np.unique(ctas[ctas < stop]))
            rows = rows[~is_shared | (ctas < stop)]
        else:
            shared_ctas += len(np.unique(ctas))
        parts.append((rows, offset))
        offset += len(raw.table)
    log = np.concatenate([p for p, _ in parts])
    shift = np.concatenate([np.full(len(p), o, np.int64) for p, o in parts])
    table = np.concatenate([r.table for r in raws])
    word = (log[:, 2] >> np.uint64(32)).astype(np.int64) + shift
    shape = (log[:, 2] >> np.uint64(16)).astype(np.int64) & 0xFFFF
    cta = (log[:, 0] & low).astype(np.int64)
    decoded = _Log(
        cta,
        (log[:, 0] >> np.uint64(32)).astype(np.int64),
        (log[:, 1] & low).astype(np.uint32),
        (log[:, 1] >> np.uint64(32)).astype(np.int64),
        (log[:, 2] & np.uint64(0xFFFF)).astype(np.int64),
        log[:, 3],
        shape,
        word,
        table,
    )
    logged = len(np.unique(cta)) if full else ctas_run
    return decoded, logged, min(logged, shared_ctas) if cut else logged


def _select_sites(translation: Translation, selects: I64, scale: float) -> list[Site]:
    found = []
    for info in translation.selects:
        times, true, false = (round(int(v) * scale) for v in selects[info.number])
        i = info.instruction
        found.append(
            Site(
                i.index, i.opcode, "", "select", 0, i.file, i.line, (), times, 32 * times, 0, 0, 0,
                uniform_true=true, uniform_false=false,
            )
        )  # fmt: skip
    return found


@dataclass
class _Tally:
    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    ideal: int = 0
    max_conflict: int = 0
    conflicts: int = 0


def _sites(
    translation: Translation,
    log: _Log,
    whole: _Kept,
    total: int,
    segments: Sequence[Segment],
    warps: int,
) -> list[Site]:
    found: list[Site] = []
    order = np.argsort(log.site, kind="stable")
    bounds = np.searchsorted(log.site[order], np.arange(len(translation.sites) + 1))
    for info in translation.sites:
        rows = order[bounds[info.number] : bounds[info.number + 1]]
        if info.space == "local":
            continue
        counted = whole.shared_ctas if info.space == "shared" else whole.ctas
        scale = total / counted if counted else 0.0
        tally, touched = _site(info, log, rows, warps, whole)
        names = _names(touched, segments) if info.space == "global" else ()
        i = info.instruction
        space: Literal["global", "shared"] = "shared" if info.space == "shared" else "global"
        kind: Literal["load", "store", "atomic", "cp_async", "ldmatrix"] = info.kind  # type: ignore[assignment]
        found.append(
            Site(
                i.index, i.opcode, space, kind, info.bytes_per_lane, i.file, i.line, names,
                round(tally.requests * scale), round(tally.lanes * scale),
                round(tally.sectors * scale), round(tally.wavefronts * scale),
                round(tally.ideal * scale), max_conflict=tally.max_conflict,
                conflicts=round(tally.conflicts * scale),
            )
        )  # fmt: skip
    return found


def _site(info: SiteInfo, log: _Log, rows: I64, warps: int, whole: _Kept) -> tuple[_Tally, U64]:
    """Counts of one site, and the addresses of its first lanes."""
    tally = _Tally()
    if not len(rows):
        return tally, np.zeros(0, np.uint64)
    size = 16 if info.kind == "ldmatrix" else info.bytes_per_lane
    mask = log.mask[rows]
    plain = (log.shape[rows] == SIDE_BY_SIDE) & (mask == 0xFFFFFFFF)
    tally.requests = len(rows)
    tally.lanes = int(np.bitwise_count(mask).sum())
    _contiguous(info, log, rows[plain], size, tally, warps, whole)
    _scattered(info, log, rows[~plain], size, tally, warps, whole)
    return tally, log.first[rows]


def _kind(info: SiteInfo) -> int:
    if info.kind == "cp_async":
        return KIND_LOAD_BYPASS_L1 if "cg" in info.instruction.parts else KIND_LOAD
    return {"load": KIND_LOAD, "store": KIND_STORE}.get(info.kind, KIND_ATOMIC)


def _contiguous(
    info: SiteInfo,
    log: _Log,
    rows: I64,
    size: int,
    tally: _Tally,
    warps: int,
    whole: _Kept,
) -> None:
    if not len(rows):
        return
    if info.space == "shared":
        passes = max(1, 32 * size // 128)
        tally.wavefronts += passes * len(rows)
        tally.ideal += passes * len(rows)
        return
    start = log.first[rows]
    end = start + np.uint64(32 * size - 1)
    first, last = start >> np.uint64(5), end >> np.uint64(5)
    tally.sectors += int((last - first + np.uint64(1)).sum())
    tally.ideal += size * len(rows)
    if info.kind == "atomic":
        tally.max_conflict = max(tally.max_conflict, 1)
    for step in range(32 * size // 128 + 1 if size >= 4 else 2):
        line = (first >> np.uint64(2)) + np.uint64(step)
        low = np.maximum(first, line << np.uint64(2)) - (line << np.uint64(2))
        high = np.minimum(last, (line << np.uint64(2)) + np.uint64(3)).astype(np.int64) - (
            line << np.uint64(2)
        ).astype(np.int64)
        keep = high >= low.astype(np.int64)
        if not keep.any():
            break
        bits = ((2 << high[keep]) - 1) & ~((1 << low[keep].astype(np.int64)) - 1)
        _append(whole, log, rows[keep], line[keep], bits, _kind(info), warps)


def _append(
    whole: _Kept, log: _Log, rows: I64, line: U64, bits: I64, kind: int, warps: int
) -> None:
    """Add rows to the line log, sampled by line."""
    if whole.rate > 1:
        kept = line_hash(line) % np.uint64(whole.rate) == 0
        rows, line, bits = rows[kept], line[kept], bits[kept]
    out = np.zeros(len(rows), LINE_LOG)
    out["cta"] = log.cta[rows]
    out["order"] = log.order[rows] * warps + log.warp[rows]
    out["line"] = line
    out["sectors"] = bits
    out["kind"] = kind
    whole.lines.append(out)


def _scattered(
    info: SiteInfo,
    log: _Log,
    rows: I64,
    size: int,
    tally: _Tally,
    warps: int,
    whole: _Kept,
) -> None:
    if not len(rows):
        return
    lane = np.arange(32, dtype=np.uint64)
    shape, word = log.shape[rows], log.word[rows]
    address = log.first[rows][:, None] + lane[None, :] * np.uint64(size)
    each, groups = shape == EACH, shape == GROUPS
    if each.any():
        address[each] = log.table[word[each][:, None] + np.arange(32)[None, :]]
    if groups.any():
        heads = log.table[word[groups][:, None] + np.arange(32)[None, :] // 8]
        address[groups] = heads + (lane % np.uint64(8))[None, :] * np.uint64(size)
    active = (log.mask[rows][:, None] >> lane.astype(np.uint32)[None, :]) & 1 == 1
    if info.space == "shared":
        passes, ideal = _wavefronts(address, active, size)
        tally.wavefronts += passes
        tally.ideal += ideal
        return
    # The sectors of the active lanes; lanes that are off repeat the first active one.
    first_on = np.argmax(active, axis=1)
    filler = np.take_along_axis(address, first_on[:, None], axis=1)
    address = np.where(active, address, filler)
    if info.kind == "atomic":
        _conflicts(address, active, tally)
    ordered = np.sort(address, axis=1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    tally.ideal += int((-(-(fresh.sum(axis=1) * size) // 32)).sum())
    sector = ordered >> np.uint64(5)
    new = np.ones(sector.shape, bool)
    new[:, 1:] = sector[:, 1:] != sector[:, :-1]
    tally.sectors += int(new.sum())
    line = sector >> np.uint64(2)
    row_index, column = np.nonzero(new)
    flat_line = line[row_index, column]
    bit = 1 << (sector[row_index, column] & np.uint64(3)).astype(np.int64)
    starts = np.ones(len(flat_line), bool)
    starts[1:] = (flat_line[1:] != flat_line[:-1]) | (row_index[1:] != row_index[:-1])
    begin = np.flatnonzero(starts)
    bits = np.bitwise_or.reduceat(bit, begin)
    _append(whole, log, rows[row_index[begin]], flat_line[begin], bits, _kind(info), warps)


def _conflicts(address: U64, active: NDArray[np.bool_], tally: _Tally) -> None:
    """Same-address lanes: the hardware serialises them."""
    keyed = np.where(active, address, np.arange(32, dtype=np.uint64)[None, :])
    ordered = np.sort(keyed, axis=1)
    run = np.ones(len(keyed), np.int64)
    worst = np.ones(len(keyed), np.int64)
    for column in range(1, 32):
        same = ordered[:, column] == ordered[:, column - 1]
        run = np.where(same, run + 1, 1)
        worst = np.maximum(worst, run)
    tally.max_conflict = max(tally.max_conflict, int(worst.max()))
    tally.conflicts += int((worst - 1).sum())


def _wavefronts(address: U64, active: NDArray[np.bool_], size: int) -> tuple[int, int]:
    """Shared-memory passes: for each group of lanes, the most distinct words in one bank.

    32 banks of 4 bytes; 8-byte accesses go in two halves, 16-byte ones in four quarters
    (CUDA C++ Programming Guide, shared memory; research note: equal to `ncu` on an A10G).
    """
    group = 32 * 4 // max(size, 4)
    words = max(1, size // 4)
    total = ideal = 0
    base = (address >> np.uint64(2)).astype(np.int64)
    for start in range(0, 32, group):
        part = base[:, start : start + group]
        on = active[:, start : start + group]
        every = (part[:, :, None] + np.arange(words)[None, None, :]).reshape(len(part), -1)
        live = np.repeat(on, words, axis=1)
        every = np.where(live, every, -1)
        ordered = np.sort(every, axis=1)
        fresh = ordered >= 0
        fresh[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
        row, column = np.nonzero(fresh)
        bank = ordered[row, column] % 32
        counts = np.bincount(row * 32 + bank, minlength=len(part) * 32).reshape(-1, 32)
        worst = counts.max(axis=1)
        total += int(worst.sum())
        ideal += int((worst > 0).sum())
    return total, ideal


def _names(addresses: U64, segments: Sequence[Segment]) -> tuple[str, ...]:
    """Names of the buffers that hold these addresses, in order of first touch."""
    found: list[tuple[int, str]] = []
    for s in segments:
        inside = (addresses >= np.uint64(s.base)) & (addresses < np.uint64(s.base + s.nbytes))
        if inside.any():
            found.append((int(np.argmax(inside)), s.name))
    return tuple(dict.fromkeys(name for _, name in sorted(found)))
