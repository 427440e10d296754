"""Split a long reduction among programs when there are fewer programs than SMs.

Each part of the loop runs in a program of its own and stores what it has accumulated; a second
kernel, which is the old one with the loop replaced, combines the parts and goes on as before.
"""

from __future__ import annotations

import math

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.split_kernels import in_parts
from kopt.agent.playbook.split_loop import Reduction, splittable
from kopt.agent.playbook.tidy import tidied
from kopt.gpu.spec import DeviceSpec
from kopt.tools.models import Effect


class SplitReduction:
    """Long reductions in launches with fewer programs than SMs."""

    name = "split_reduction"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such kernel."""
        found = []
        for kernel in call.ranked:
            ctas = kernel.launch.counters.ctas
            reduction = splittable(kernel)
            if reduction is None or 2 * ctas > call.spec.sms:
                continue
            parts = _parts(call.spec, kernel, reduction)
            if parts < 2:
                continue
            text = in_parts(call.source, kernel, reduction, parts) or in_parts(
                inlined(call.source, kernel.kernel.name), kernel, reduction, parts
            )
            if text is not None:
                text = tidied(call.source, text)
                found.append(self._proposal(call.spec, kernel, reduction, parts, text))
        return found

    def _proposal(
        self,
        spec: DeviceSpec,
        kernel: KernelEvidence,
        reduction: Reduction,
        parts: int,
        text: str,
    ) -> Proposal:
        ctas = kernel.launch.counters.ctas
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                f"{parts} programs share each loop of {reduction.trips:,} iterations, and a second"
                " small kernel combines what they have accumulated"
            ),
            evidence=(
                f"{kernel.kernel.name} runs {ctas:,} CTAs on {spec.sms} SMs, each with a loop of"
                f" {reduction.trips:,} iterations that could run in any order",
            ),
            predicted=(
                Effect(
                    metric="ctas",
                    before=float(ctas),
                    after=float(ctas * parts),
                    direction="up",
                    sentence="all SMs work, and more loads are in flight",
                ),
            ),
            conditions=(
                "fewer programs than SMs and long loops; floating-point sums are rounded in another"
                " order"
            ),
        )


def _parts(spec: DeviceSpec, kernel: KernelEvidence, reduction: Reduction) -> int:
    """Programs for each loop: enough for two CTAs on every SM, of four iterations at least."""
    wanted = 2 * spec.sms / kernel.launch.counters.ctas
    most = max(1, reduction.trips // 4)
    return min(1 << round(math.log2(max(1.0, wanted))), 1 << int(math.log2(most)))
