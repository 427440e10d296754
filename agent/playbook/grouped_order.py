"""Walk the tiles of a matrix product in groups, so that programs that run together share operands.

In row-major order one wave of programs needs few rows of one operand and all of the other; a
squarer patch of tiles needs less of both.
"""

from __future__ import annotations

import math

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.grouped_tiles import in_groups
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.tile_order import TileOrder, tile_order
from kopt.tools.models import Effect

EXCESS = 1.2
"""DRAM bytes over compulsory bytes."""


class GroupedOrder:
    """Products whose programs read operands again from DRAM."""

    name = "grouped_program_order"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such kernel."""
        found = []
        for kernel in call.ranked:
            traffic = kernel.launch.traffic
            moved = traffic.dram_read_bytes + traffic.dram_write_bytes
            needed = traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
            resident = call.spec.sms * max(1, kernel.launch.compiled.ctas_per_sm)
            waves = kernel.launch.counters.ctas / resident
            order = tile_order(kernel)
            if order is None or moved <= EXCESS * needed or waves <= 1:
                continue
            size = _group(order, resident)
            text = in_groups(call.source, kernel, order, size) or in_groups(
                inlined(call.source, kernel.kernel.name), kernel, order, size
            )
            if text is not None:
                wide = max(1.0, resident / order.fast_count)
                change = min(1.0, order.panels(size, resident) / order.panels(wide, resident))
                after = max(float(needed), traffic.dram_read_bytes * change)
                found.append(self._proposal(kernel, size, (moved, needed, after), waves, text))
        return found

    def _proposal(
        self,
        kernel: KernelEvidence,
        size: int,
        bytes_: tuple[int, int, float],
        waves: float,
        text: str,
    ) -> Proposal:
        moved, needed, after = bytes_
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                f"groups of {size} rows of tiles keep both operands of a wave small enough to stay"
                " in L2"
            ),
            evidence=(
                f"{kernel.kernel.name} moves {moved / 1e6:.1f} MB through DRAM,"
                f" {moved / max(1, needed):.2f}x the {needed / 1e6:.1f} MB that it touches, in"
                f" {waves:.1f} waves whose programs are numbered along one axis of the tiles",
            ),
            predicted=(
                Effect(
                    metric="dram_bytes",
                    before=float(moved),
                    after=after,
                    direction="down",
                    sentence="tiles of both operands are read again from L2",
                ),
            ),
            conditions="more than one wave, and operands that do not fit in L2 together",
        )


def _group(order: TileOrder, resident: int) -> int:
    """Rows of tiles in a group that make a wave's patch of the output about square."""
    ideal = math.sqrt(resident * order.fast_extent / order.slow_extent)
    return int(min(32, max(2, 1 << round(math.log2(max(2.0, ideal))))))
