"""Bad accesses of a launch as findings that name the kernel's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from kopt.gpu.counters import Finding
from kopt.gpu.virtual.launch_context import Context
from kopt.gpu.virtual.ptx import context as slot
from kopt.gpu.virtual.ptx.translate import Translation
from kopt.gpu.virtual.segments import Segment

_FAR = 1 << 40
"""Bytes; a buffer further away than this is not what was meant."""


def findings(
    translation: Translation,
    contexts: Sequence[Context],
    segments: Sequence[Segment],
    limit: int,
) -> tuple[Finding, ...]:
    """Findings of all threads, one for each site and buffer, the first CTA's first."""
    rows = []
    for context in contexts:
        kept = min(int(context.findings[0]), limit)
        width = slot.FINDING_SLOTS
        rows.extend(context.findings[1 : 1 + width * kept].reshape(-1, width).tolist())
    merged: dict[tuple[int, str, str], Finding] = {}
    for number, signed, cta, lane in sorted(rows, key=lambda r: (r[2], r[0], r[3]))[:limit]:
        site = translation.sites[number]
        i = site.instruction
        address = signed & ((1 << 64) - 1)
        size = 16 if site.kind == "ldmatrix" else site.bytes_per_lane
        kind, arg, distance = _nearest(address, size, site.space, segments)
        key = (number, kind, arg)
        if key in merged:
            merged[key] = replace(merged[key], lanes=merged[key].lanes + 1)
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
    if space in {"shared", "local"}:
        return ("misaligned" if address % size else "out_of_bounds"), f"{space} memory", address
    if address < 4096:
        return "null", "", 0
    best: tuple[int, str, int] | None = None
    for s in segments:
        if s.base <= address and address + size <= s.base + s.nbytes:
            return "misaligned", s.name, 0
        if address >= s.base:
            gap = signed = address + size - (s.base + s.nbytes)
        else:
            gap, signed = s.base - address, address - s.base
        if best is None or gap < best[0]:
            best = gap, s.name, signed
    if best is None or best[0] > _FAR:
        return "out_of_bounds", "", 0
    return "out_of_bounds", best[1], best[2]
