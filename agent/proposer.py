"""Where rewrites come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kopt.agent.state import Phase
from kopt.tools.models import Candidate, Evaluation, Target


@dataclass(frozen=True)
class ProposalContext:
    """What a proposer may look at: one parent, what is known about it, what was tried before."""

    target: Target
    parent: Candidate | None
    """None: the target as it stands."""
    evaluation: Evaluation
    """Of the parent."""
    folder: Path
    """The parent's traces and facts: `<workload>/trace`, `<workload>/facts.json`."""
    phase: Phase
    refuted: frozenset[str] = frozenset()
    """Techniques that brought nothing on this branch, while the bottleneck was the same."""

    @property
    def source(self) -> str:
        """The text that a rewrite starts from."""
        return self.target.source if self.parent is None else self.parent.source


class Proposer(Protocol):
    """Proposes rewrites of a parent, the most promising first.

    The same context must give the same candidates: a resumed run asks again.
    """

    name: str

    def propose(self, context: ProposalContext) -> Sequence[Candidate]:
        """Whole files to try; empty where nothing fits."""
