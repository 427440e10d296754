"""Skip tiles that are masked as a whole.

A loop over all tiles of a row, whose select then discards the tiles on one side of a line that
moves with the program id: causal attention, sliding windows, triangular products.
"""

from __future__ import annotations

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.loop_bounds import tightened
from kopt.agent.playbook.masked_edges import Edge, masked_edges
from kopt.agent.playbook.tidy import tidied
from kopt.agent.playbook.ttir import Operation
from kopt.tools.models import Effect


class MaskedTiles:
    """Loops that compute tiles which a select then discards as a whole."""

    name = "skip_masked_tiles"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each kernel with such loops."""
        found = []
        for kernel in call.ranked:
            edges = [e for e in masked_edges(kernel) if _counted(kernel, e)]
            if not edges:
                continue
            text = tightened(call.source, kernel, edges) or tightened(
                inlined(call.source, kernel.kernel.name), kernel, edges
            )
            if text is not None:
                found.append(self._proposal(kernel, edges, tidied(call.source, text)))
        return found

    def _proposal(self, kernel: KernelEvidence, edges: list[Edge], text: str) -> Proposal:
        share = sum(e.share for e in edges)
        issued = float(sum(kernel.launch.counters.instructions.values()))
        lines = ", ".join(sorted({str(e.select.line) for e in edges}))
        counted = [_selects(kernel, e.select) for e in edges]
        requests, uniform = (sum(pair[i] for pair in counted) for i in (0, 1))
        sides = " and ".join(
            "after the last visible column" if e.side == "end" else "before the first visible one"
            for e in edges
        )
        return Proposal(
            technique=self.name,
            source=text,
            rationale=f"the loop leaves out the tiles {sides}: a masked tile changes nothing",
            evidence=(
                f"{100 * share:.0f} % of the tiles in the loop of {kernel.kernel.name} are masked"
                f" as a whole by the select at line {lines}; {uniform:,} of its {requests:,} warp"
                " executions took one side in every lane",
            ),
            predicted=(
                Effect(
                    metric="instructions",
                    before=issued,
                    after=issued * (1 - share),
                    direction="down",
                    sentence="masked tiles are neither loaded nor computed",
                ),
            ),
            conditions="more programs than SMs: those with fewer tiles finish earlier",
        )


def _selects(kernel: KernelEvidence, select: Operation) -> tuple[int, int]:
    """Warp executions of a select, and those in which every lane took one side."""
    sites = [
        s
        for s in kernel.launch.counters.sites
        if s.kind == "select" and s.line in {select.line, select.inner[1]} and s.requests
    ]
    return (
        sum(s.requests for s in sites),
        sum(max(s.uniform_true, s.uniform_false) for s in sites),
    )


def _counted(kernel: KernelEvidence, edge: Edge) -> bool:
    """Whether the executor saw as many one-sided selects as there are masked tiles."""
    requests, uniform = _selects(kernel, edge.select)
    return requests > 0 and uniform >= 0.9 * edge.share * requests
