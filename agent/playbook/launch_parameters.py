"""Search over tile sizes, warps and pipeline stages of the launch that takes most time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.source import Site, Source, set_arguments
from kopt.tools.models import Effect

MOST = 14
"""Configurations proposed at a time."""


@dataclass(frozen=True)
class Knob:
    """One launch parameter: a tile size, `num_warps` or `num_stages`."""

    name: str
    value: int
    holder: cst.CSTNode | None
    """The literal to change; None: the launch does not set it yet."""


class LaunchParameters:
    """Launches whose tile sizes are constexprs written as numbers."""

    name = "launch_parameters"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """Neighbours of the present configuration of the costliest kernel, nearest first."""
        for kernel in call.ranked[:2]:
            source = Source(call.source)
            sites = source.sites(kernel.kernel.name)
            if len(sites) != 1:
                continue
            found = self._kernel(call, kernel, source, sites[0])
            if found:
                return found
        return []

    def _kernel(
        self, call: CallEvidence, kernel: KernelEvidence, source: Source, site: Site
    ) -> list[Proposal]:
        function = source.functions()[kernel.kernel.name]
        if any(_mentions(d, "autotune") for d in function.decorators):
            return []
        names = [p.name.value for p in function.params.params]
        knobs = _knobs(kernel, source, site)
        found = []
        for change in _changes(kernel, knobs):
            values = {}
            edits: list[tuple[cst.CSTNode, cst.CSTNode]] = []
            for knob, value in change:
                if knob.holder is not None and not _within(site.call, knob.holder):
                    edits.append((knob.holder, cst.Integer(str(value))))
                else:
                    values[knob.name] = str(value)
            if values:
                edits.append((site.call, set_arguments(site.call, values, names)))
            text = source.replace(edits)
            summary = ", ".join(f"{k.name} {k.value} to {v}" for k, v in change)
            found.append(
                Proposal(
                    technique=self.name,
                    source=text,
                    rationale=f"launch {kernel.kernel.name} with {summary}",
                    evidence=(_why(kernel),),
                    predicted=(
                        Effect(
                            metric="predicted_time_us",
                            direction="down",
                            sentence="found by trying; nothing is promised",
                        ),
                    ),
                    conditions="tuned for these sizes on this GPU; other sizes may want others",
                )
            )
        return found[:MOST]


def _why(kernel: KernelEvidence) -> str:
    facts = kernel.launch.compiled
    return (
        f"{kernel.kernel.name} runs {kernel.launch.counters.ctas:,} CTAs of"
        f" {kernel.launch.threads_per_cta} threads, {facts.ctas_per_sm} per SM (occupancy"
        f" {100 * facts.occupancy:.0f} %, limited by {facts.limiter.replace('_', ' ')})"
    )


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return name in cst.Module([]).code_for_node(node)


def _within(root: cst.CSTNode, node: cst.CSTNode) -> bool:
    return root is node or any(_within(child, node) for child in root.children)


def _knobs(kernel: KernelEvidence, source: Source, site: Site) -> list[Knob]:
    """Constexprs that are the length of some tile, and the two that Triton adds."""
    tiles = set(
        re.findall(r"end = (\d+) : i32", kernel.kernel.ttir)
        + re.findall(r"tensor<([\dx]+)x[a-z!]", kernel.kernel.ttir)
    )
    sizes = {int(n) for text in tiles for n in text.split("x") if n}
    knobs = []
    for name, value in kernel.kernel.constexprs.items():
        if not isinstance(value, int) or isinstance(value, bool) or value not in sizes or value < 8:
            continue
        held = source.literal(site, name)
        if held is not None and held[0] == value and value & (value - 1) == 0:
            knobs.append(Knob(name, value, held[1]))
    for name, value in (
        ("num_warps", kernel.kernel.num_warps),
        ("num_stages", kernel.kernel.num_stages),
    ):
        held = source.literal(site, name)
        if held is not None or name not in site.arguments:
            knobs.append(Knob(name, value, held[1] if held else None))
    return knobs


def _changes(kernel: KernelEvidence, knobs: list[Knob]) -> list[list[tuple[Knob, int]]]:
    """Configurations to try: one knob at a time, then tiles together with warps."""
    tiles = [k for k in knobs if k.name not in {"num_warps", "num_stages"}]
    warps = next((k for k in knobs if k.name == "num_warps"), None)
    stages = next((k for k in knobs if k.name == "num_stages"), None)
    has_dot = "tt.dot" in kernel.kernel.ttir and "scf.for" in kernel.kernel.ttir
    found: list[list[tuple[Knob, int]]] = []
    if warps is not None:
        found += [[(warps, v)] for v in (warps.value * 2, warps.value // 2) if 1 <= v <= 32]
    for tile in tiles:
        found += [[(tile, v)] for v in (tile.value * 2, tile.value // 2) if 16 <= v <= 65536]
    if has_dot and stages is not None:
        found += [[(stages, v)] for v in (2, 3, 4) if v != stages.value]
    if len(tiles) >= 2:
        found.append([(tile, min(tile.value * 2, 256)) for tile in tiles[:2]])
        if warps is not None:
            found.append(
                [
                    *((tile, min(tile.value * 2, 256)) for tile in tiles[:2]),
                    (warps, min(8, 2 * warps.value)),
                ]
            )
    elif tiles and warps is not None:
        for factor in (2, 4):
            grown = (tiles[0].value * factor, min(32, warps.value * factor))
            found.append([(tiles[0], grown[0]), (warps, grown[1])])
        found.append([(tiles[0], tiles[0].value * 4)])
    return [c for c in found if any(v != k.value for k, v in c)]


def configuration(rationale: str) -> str:
    """The `triton.Config` that a proposal's sentence describes."""
    changes = re.findall(r"(\w+) \d+ to (\d+)", rationale)
    tiles = ", ".join(f'"{n}": {v}' for n, v in changes if n not in {"num_warps", "num_stages"})
    options = "".join(f", {n}={v}" for n, v in changes if n in {"num_warps", "num_stages"})
    return f"triton.Config({{{tiles}}}{options})"
