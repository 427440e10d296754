"""What the graph remembers between steps: small, typed, checkpointed. The large lies on disk."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict

from kopt.tools.models import Provenance, RunStatus, VerdictStatus

BASELINE = "baseline"
"""The id of the target itself among candidates."""

Phase = Literal["rewrite", "tune"]
"""Rewrites first, then launch parameters on the best of them."""


class Checkpointed(BaseModel):
    """A model that travels through checkpoints."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Attempt(Checkpointed):
    """One evaluated candidate, as far as the search needs to know it."""

    id: str
    parent: str
    technique: str
    phase: Phase
    depth: int
    """Rewrites between the target and this candidate."""
    status: VerdictStatus
    speedup: float | None = None
    """Geometric mean over the workloads; None unless the verdict is `pass`."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    worst: float | None = None
    """The least speed-up of any workload."""
    dominated: bool = False
    """On every workload no cost counter rises."""
    provenance: Provenance | None = None


class Job(Checkpointed):
    """What one evaluation is handed."""

    candidate: str
    depth: int
    phase: Phase


def merge_attempts(known: list[Attempt], new: list[Attempt]) -> list[Attempt]:
    """Append what is new; a repeated step adds nothing."""
    ids = {attempt.id for attempt in known}
    return [*known, *(a for a in new if a.id not in ids)]


class SearchState(BaseModel):
    """The graph's state."""

    model_config = ConfigDict(extra="forbid")

    phase: Phase = "rewrite"
    iteration: int = 0
    queue: list[Job] = []
    """Proposed in this round, best first."""
    attempts: Annotated[list[Attempt], merge_attempts] = []
    expanded: list[str] = []
    """`<phase>:<id>` of the parents that were asked for proposals."""
    best_speedup: float = 1.0
    stalled: int = 0
    """Rounds since the best became better."""
    stop: str = ""
    """Why the search ended; empty while it goes on."""
    no_headroom: bool = False
    status: RunStatus = RunStatus.RUNNING
    best: str | None = None


def updated(state: SearchState, **changes: object) -> dict[str, object]:
    """A node's answer, validated here because the graph does not validate it."""
    checked = SearchState.model_validate(
        {name: getattr(state, name) for name in SearchState.model_fields} | changes
    )
    return {name: getattr(checked, name) for name in changes}
