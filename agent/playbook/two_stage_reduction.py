"""Add up in registers before adding up in memory.

Programs that all add to the same few addresses queue for them in the L2 cache. Each program takes
many of the former programs' shares instead and touches those addresses once.
"""

from __future__ import annotations

import math

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.contention import Contention, contended
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.register_sums import summed_in_registers
from kopt.agent.playbook.tidy import tidied
from kopt.gpu.spec import DeviceSpec
from kopt.tools.models import Effect


class TwoStageReduction:
    """Atomic additions of many programs to the same addresses."""

    name = "two_stage_reduction"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such kernel."""
        found = []
        for kernel in call.ranked:
            contention = contended(kernel)
            if contention is None:
                continue
            programs = _programs(call.spec, kernel, contention.axis)
            if contention.programs < 4 * programs:
                continue
            text = summed_in_registers(
                call.source, kernel, contention, programs
            ) or summed_in_registers(
                inlined(call.source, kernel.kernel.name), kernel, contention, programs
            )
            if text is not None:
                text = tidied(call.source, text)
                found.append(self._proposal(kernel, contention, programs, text))
        return found

    def _proposal(
        self, kernel: KernelEvidence, contention: Contention, programs: int, text: str
    ) -> Proposal:
        sites = [s for s in kernel.launch.counters.sites if s.kind == "atomic"]
        requests = sum(s.requests for s in sites)
        hottest = kernel.launch.traffic.atomic_hottest_requests
        names = " and ".join(a.address.base for a in contention.additions)
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                f"{programs} programs add up their shares in registers and then add once to"
                f" {names}, instead of {contention.programs:,} programs that add one share each"
            ),
            evidence=(
                f"{kernel.kernel.name} adds to {names} with {requests:,} atomic requests, of which"
                f" up to {hottest:,} go to one address: the address does not depend on grid axis"
                f" {contention.axis}, which has {contention.programs:,} programs",
            ),
            predicted=(
                Effect(
                    metric="atomic_hottest_requests",
                    before=float(hottest),
                    after=float(hottest * programs / contention.programs),
                    direction="down",
                    sentence="each program touches an address once",
                ),
            ),
            conditions=(
                f"many more than {programs} programs along the axis; sums are rounded in another"
                " order, as with any atomic addition"
            ),
        )


def _programs(spec: DeviceSpec, kernel: KernelEvidence, axis: int) -> int:
    """Programs along an axis that fill the GPU once, as a power of two."""
    others = math.prod(n for a, n in enumerate(kernel.event.grid) if a != axis)
    resident = spec.sms * max(1, kernel.launch.compiled.ctas_per_sm)
    return 1 << max(0, round(math.log2(max(1.0, resident / others))))
