"""Tile both dimensions of an array that is walked with one flat index.

With offsets from `//` and `%` of one index, lanes that are neighbours in one array are a row apart
in the other, and every access there moves a whole sector for one element.
"""

from __future__ import annotations

from collections.abc import Sequence

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.flat_index import flat_index
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.tidy import tidied
from kopt.agent.playbook.tile_kernel import tiled
from kopt.agent.playbook.ttir import Operation
from kopt.gpu.counters import Site
from kopt.tools.models import Effect


class TwoDimensionalTile:
    """Accesses through `//` and `%` of one index that move over twice the least sectors."""

    name = "two_dimensional_tile"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such kernel."""
        found = []
        for kernel in call.ranked:
            flat = flat_index(kernel)
            if flat is None:
                continue
            sites = _wasteful(kernel, flat.scattered)
            if not sites:
                continue
            edge = 32 if max(s.bytes_per_lane for s in sites) >= 4 else 64
            text = tiled(call.source, kernel, flat, edge) or tiled(
                inlined(call.source, kernel.kernel.name), kernel, flat, edge
            )
            if text is not None:
                found.append(self._proposal(kernel, sites, edge, tidied(call.source, text)))
        return found

    def _proposal(
        self, kernel: KernelEvidence, sites: list[Site], edge: int, text: str
    ) -> Proposal:
        moved = sum(s.sectors for s in sites)
        ideal = sum(s.ideal for s in sites)
        every = [s for s in kernel.launch.counters.sites if s.space == "global"]
        before = float(32 * sum(s.sectors for s in every))
        names = ", ".join(sorted({n for s in sites for n in s.args}))
        lines = ", ".join(sorted({str(s.line) for s in sites}))
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                f"a tile of {edge} by {edge} elements is contiguous in both arrays; the compiler"
                " exchanges it between lanes through shared memory"
            ),
            evidence=(
                f"the accesses to {names} at line {lines} of {kernel.kernel.name} move"
                f" {moved / max(1, ideal):.1f}x the sectors that their bytes need"
                f" ({moved:,} for {ideal:,}): their offsets are // and % of one index",
            ),
            predicted=(
                Effect(
                    metric="l1_requested_bytes",
                    before=before,
                    after=before - 32.0 * (moved - ideal),
                    direction="down",
                    sentence="every sector is used as a whole",
                ),
            ),
            conditions=f"both dimensions well over {edge}; narrow ones leave lanes idle",
        )


def _wasteful(kernel: KernelEvidence, operations: Sequence[Operation]) -> list[Site]:
    """Counted sites of these accesses with over twice the least sectors."""
    lines = {line for op in operations for line in (op.line, op.inner[1])}
    return [
        s
        for s in kernel.launch.counters.sites
        if s.space == "global"
        and s.kind in {"load", "store"}
        and s.line in lines
        and s.sectors > 2 * s.ideal > 0
    ]
