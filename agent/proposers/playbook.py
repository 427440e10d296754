"""Rewrites of the playbook: deterministic, free, and the default where there is no model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from kopt.agent.playbook.base import CallEvidence, call_evidence
from kopt.agent.playbook.registry import REWRITES, TUNING, propose_all
from kopt.agent.proposer import ProposalContext
from kopt.gpu import facts_io, trace_io
from kopt.gpu.spec import DeviceSpec
from kopt.tools.models import Candidate


class PlaybookProposer:
    """Asks every rewrite of the playbook about the parent's costliest workload."""

    name = "playbook"

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec

    def propose(self, context: ProposalContext) -> Sequence[Candidate]:
        """Candidates in the playbook's order; launch parameters in the phase `tune`."""
        call = self._evidence(context)
        if call is None:
            return []
        rewrites = TUNING if context.phase == "tune" else REWRITES
        parent = context.parent.id if context.parent else None
        found = []
        for proposal in propose_all(call, rewrites):
            if proposal.technique in context.refuted and context.phase != "tune":
                continue
            found.append(
                Candidate(
                    id=hashlib.sha256(proposal.source.encode()).hexdigest()[:12],
                    source=proposal.source,
                    parent=parent,
                    technique=proposal.technique,
                    rationale=proposal.rationale,
                    evidence=proposal.evidence,
                    predicted=proposal.predicted,
                    conditions=proposal.conditions,
                )
            )
        return found

    def _evidence(self, context: ProposalContext) -> CallEvidence | None:
        """What the judge left about the parent; None where it has no facts."""
        times = {m.workload: m.time_us for m in context.evaluation.measurements}
        if not times:
            return None
        workload = max(times, key=lambda name: times[name])
        folder = context.folder / workload
        trace = trace_io.load(folder / "trace")
        facts = facts_io.from_json(json.loads((folder / "facts.json").read_text(encoding="utf-8")))
        if not facts.launches:
            return None
        diagnosis = next(d for d in context.evaluation.diagnoses if d.workload == workload)
        kernel = next(iter(trace.kernels.values()), None)
        return call_evidence(
            source=context.source,
            file=kernel.source_file if kernel else str(Path(context.target.file)),
            entry=context.target.entry,
            spec=self.spec,
            facts=facts,
            trace=trace,
            diagnosis=diagnosis,
        )
