"""Fuse launches that hand data over program by program.

An elementwise kernel that feeds another one, or a row reduction, on the same grid and offsets: each
program of the second launch loads just what the same program of the first one has stored.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, Proposal
from kopt.agent.playbook.fused_file import fused_file
from kopt.agent.playbook.fused_kernel import FusedKernel
from kopt.agent.playbook.handovers import Chain, Handover, chains, label
from kopt.agent.playbook.inline import inlined
from kopt.agent.playbook.source import Source
from kopt.agent.playbook.tidy import tidied
from kopt.gpu.trace import Alloc, Launch, Operator, PointerArg
from kopt.tools.models import Effect


class FuseLaunches:
    """Consecutive launches of which one reads what the one before wrote at the same offsets."""

    name = "fuse_launches"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each chain of launches."""
        if len(call.launches) < 2:
            return []
        source = Source(call.source)
        found = []
        for position, chain in enumerate(chains(call, source)):
            text = _fused(call, source, chain)
            if text is None:
                written_out = Source(_inlined(call.source, chain))
                again = chains(call, written_out)
                if position < len(again):
                    text = _fused(call, written_out, again[position])
            if text is not None:
                found.append(self._proposal(call, chain, tidied(call.source, text)))
        return found

    def _proposal(self, call: CallEvidence, chain: Chain, text: str) -> Proposal:
        sizes = {b: _bytes(call, b) for b in {h.buffer for h in chain.handovers}}
        kept = {h.buffer for h in chain.handovers if _escapes(call, chain, h.buffer)}
        facts = [s.evidence.launch.traffic for s in chain.stages]
        before = float(sum(t.dram_read_bytes + t.dram_write_bytes for t in facts))
        requested = sum(t.l1_requested_bytes for t in facts)
        saved = sum(sizes[h.buffer] for h in chain.handovers)
        saved += sum(size for b, size in sizes.items() if b not in kept)
        names = [s.evidence.kernel.name for s in chain.stages]
        what = " and ".join(dict.fromkeys(label(h) for h in chain.handovers))
        stored = (
            " The intermediate result is used elsewhere, so it is still stored."
            if kept == set(sizes)
            else ""
        )
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                f"one launch instead of {len(names)}: {what} goes on in registers instead of"
                f" through memory.{stored}"
            ),
            evidence=(
                f"{' then '.join(names)} run on the same grid"
                f" {chain.stages[0].evidence.event.grid},"
                f" and each program loads {what} where it was stored just before:"
                f" {saved / 1e6:.1f} MB of the {requested / 1e6:.1f} MB that the launches request"
                " need not move",
            ),
            predicted=(
                Effect(
                    metric="dram_bytes",
                    before=before,
                    after=max(0.0, before - float(saved)),
                    direction="down",
                    sentence="the intermediate result is not read back",
                ),
                Effect(
                    metric="launches",
                    before=float(len(call.launches)),
                    after=float(len(call.launches) - len(names) + 1),
                    direction="down",
                    sentence="each launch costs its overhead and a drained GPU",
                ),
            ),
            conditions="the intermediate result is needed at the same offsets by the same program",
        )


def _bytes(call: CallEvidence, buffer: int) -> int:
    for event in call.trace.events:
        if isinstance(event, Alloc) and event.buffer == buffer:
            return event.nbytes
    return 0


def _inlined(text: str, chain: Chain) -> str:
    """The file with the helpers of a chain's kernels written out."""
    for stage in chain.stages:
        text = inlined(text, stage.evidence.kernel.name)
    return text


def _escapes(call: CallEvidence, chain: Chain, buffer: int) -> bool:
    """Whether something else uses a buffer: a caller, an operator, another launch."""
    trace = call.trace
    if any(t.buffer == buffer for t in (*trace.inputs, *trace.outputs)):
        return True
    own = {id(s.evidence.event) for s in chain.stages}
    for event in trace.events:
        if isinstance(event, Launch) and id(event) not in own:
            if any(isinstance(a, PointerArg) and a.buffer == buffer for a in event.args):
                return True
        elif isinstance(event, Operator):
            if f'"buffer": {buffer},' in repr(event).replace("'", '"'):
                return True
            if any(t.buffer == buffer for t in event.outputs):
                return True
        elif not isinstance(event, Launch | Alloc) and getattr(event, "buffer", None) == buffer:
            return True
    return False


def _only_here(source: Source, chain: Chain, handover: Handover) -> bool:
    """Whether the host's variable for a buffer is used in these launches alone."""
    arg = handover.writer.site.arguments.get(handover.store.parameter)
    owner = source.functions().get(handover.writer.site.function)
    if arg is None or not isinstance(arg.value, cst.Name) or owner is None:
        return False
    name = arg.value.value
    if len(source.assigned(name, owner.name.value)) != 1:
        return False
    inside = sum(len(m.findall(stage.site.call, m.Name(name))) for stage in chain.stages)
    return len(m.findall(owner, m.Name(name))) == inside + 1


def _fused(call: CallEvidence, source: Source, chain: Chain) -> str | None:
    """The file with a chain in one launch; None where the source does not show what TTIR does."""
    dropped = {
        h.buffer
        for h in chain.handovers
        if not _escapes(call, chain, h.buffer) and _only_here(source, chain, h)
    }
    kernel = FusedKernel(source, chain, dropped)
    if not all(kernel.add(stage) for stage in chain.stages):
        return None
    return fused_file(source, kernel)
