"""Counters of a launch from what the generated code counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import LINE_LOG, InstructionClass, LaunchCounters, Site, line_hash
from kopt.gpu.virtual.launch_context import Context
from kopt.gpu.virtual.ptx import context as slot
from kopt.gpu.virtual.ptx.classes import classify, flops
from kopt.gpu.virtual.ptx.flow import is_barrier
from kopt.gpu.virtual.ptx.instruction import Imm
from kopt.gpu.virtual.ptx.translate import Translation
from kopt.gpu.virtual.segments import Segment

I64 = NDArray[np.int64]
Scale = Callable[[int], int]


def count(
    translation: Translation,
    contexts: Sequence[Context],
    grid: tuple[int, int, int],
    threads_per_cta: int,
    ctas_run: int,
    segments: Sequence[Segment],
) -> LaunchCounters:
    """The counters of a launch, scaled to the whole grid if only some CTAs ran."""
    total = grid[0] * grid[1] * grid[2]

    def scale(value: int) -> int:
        return value if ctas_run == total else round(int(value) * total / ctas_run)

    blocks = _total([c.blocks for c in contexts])
    edges = _total([c.edges for c in contexts])
    lanes_of = dict(
        zip(
            (i.index for i in translation.guarded),
            _total([c.guards for c in contexts])[:, 0].tolist(),
            strict=False,
        )
    )
    classes: Counter[InstructionClass] = Counter()
    opcodes: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    threads = branches = barriers = 0
    for block in translation.flow.blocks:
        times = int(blocks[block.index, 0])
        if not times:
            continue
        active = int(blocks[block.index, 1]) if translation.flow.divergent else 32 * times
        for i in block.instructions:
            lanes = lanes_of.get(i.index, active)
            classes[classify(i)] += times
            opcodes[i.opcode] += times
            threads += lanes
            branches += times if i.parts[0] == "bra" else 0
            barriers += times if is_barrier(i) else 0
            name, each, by_warp = flops(i)
            if each:
                operations[name] += each * (times if by_warp else lanes)
    lines, sampling = _lines(contexts)
    sites = [*_memory_sites(translation, contexts, segments, scale)]
    sites += [*_select_sites(translation, contexts, scale)]
    return LaunchCounters(
        kernel=translation.entry.name,
        grid=grid,
        threads_per_cta=threads_per_cta,
        ctas=total,
        ctas_counted=ctas_run,
        instructions={k: scale(v) for k, v in classes.items()},
        thread_instructions=scale(threads),
        opcodes={k: scale(v) for k, v in opcodes.items()},
        branches=scale(branches),
        divergent_branches=scale(int(edges[:, 1].sum())),
        barriers=scale(barriers),
        flops={k: scale(v) for k, v in operations.items()},
        sites=tuple(sorted(sites, key=lambda s: s.index)),
        lines=lines,
        line_sampling=sampling,
        static_instructions=sum(
            classify(i) != "param" for b in translation.flow.blocks for i in b.instructions
        ),
        pipeline_stages=_stages(translation),
    )


def _total(parts: Sequence[I64]) -> I64:
    return np.sum(parts, axis=0) if len(parts) > 1 else parts[0]


def _stages(translation: Translation) -> int:
    """From `cp.async.wait_group N`: N groups may still be in flight while one is used."""
    whole = [i for block in translation.flow.blocks for i in block.instructions]
    waits = [
        operand.bits
        for i in whole
        if i.opcode == "cp.async.wait_group"
        for operand in i.operands
        if isinstance(operand, Imm)
    ]
    loads = [i for i in whole if i.opcode.startswith("cp.async") and "global" in i.opcode]
    lines = len({i.line for i in loads}) or 1
    return 1 + max(waits, default=0) // lines


def _memory_sites(
    translation: Translation, contexts: Sequence[Context], segments: Sequence[Segment], scale: Scale
) -> list[Site]:
    tallies = _total([c.tallies for c in contexts])
    most = np.max([c.tallies[:, slot.MOST] for c in contexts], axis=0)
    names: dict[int, dict[str, None]] = defaultdict(dict)
    for context in contexts:
        for site, segment in context.touched:
            if segment < len(segments) and segments[segment].name:
                names[site].setdefault(segments[segment].name)
    found = []
    for info in translation.sites:
        row = tallies[info.number].tolist()
        i = info.instruction
        space: Literal["global", "shared", "local"] = "global"
        if info.space == "shared" or info.space == "local":
            space = info.space
        requests = scale(row[slot.REQUESTS])
        found.append(
            Site(
                index=i.index,
                opcode=i.opcode,
                space=space,
                kind=info.kind,
                bytes_per_lane=info.bytes_per_lane,
                file=i.file,
                line=i.line,
                args=tuple(names[info.number]),
                requests=requests,
                # The addresses of ldmatrix come from some lanes, its results go to all.
                lanes=32 * requests if info.kind == "ldmatrix" else scale(row[slot.LANES]),
                sectors=scale(row[slot.SECTORS]),
                wavefronts=scale(row[slot.WAVEFRONTS]),
                ideal=scale(row[slot.IDEAL]),
                max_conflict=int(most[info.number]),
                conflicts=scale(row[slot.CONFLICTS]),
            )
        )
    return found


def _select_sites(
    translation: Translation, contexts: Sequence[Context], scale: Scale
) -> list[Site]:
    selects = _total([c.selects for c in contexts])
    found = []
    for number, i in enumerate(translation.selects):
        times, true, false = (scale(v) for v in selects[number].tolist())
        found.append(
            Site(
                i.index, i.opcode, "", "select", 0, i.file, i.line, (), times, 32 * times, 0, 0, 0,
                uniform_true=true, uniform_false=false,
            )
        )  # fmt: skip
    return found


def _lines(contexts: Sequence[Context]) -> tuple[NDArray[np.void], int]:
    """The line logs of all threads at their common sampling rate, in order of CTA and request."""
    rate = max(c.line_sampling for c in contexts)
    parts = []
    for context in contexts:
        rows = context.lines
        if context.line_sampling < rate:
            rows = rows[line_hash(rows["line"]) & np.uint64(rate - 1) == 0]
        parts.append(rows)
    whole = np.concatenate(parts) if parts else np.zeros(0, LINE_LOG)
    key = (whole["cta"].astype(np.int64) << 32) | whole["order"]
    return whole[np.argsort(key, kind="stable")], rate
