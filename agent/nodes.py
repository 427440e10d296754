"""The steps of the loop: ordinary functions from state to an update.

Every step may be run again after a crash: what was finished is read from the store.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from langgraph.runtime import Runtime

from kopt.agent import journal
from kopt.agent.budget import Meter
from kopt.agent.events import Event, EventName, Listener
from kopt.agent.ports import Evaluator
from kopt.agent.proposer import ProposalContext, Proposer
from kopt.agent.select import gaining, is_gain, ranked, score, scored
from kopt.agent.state import BASELINE, Attempt, Job, Phase, SearchState, updated
from kopt.agent.store import RunStore
from kopt.tools.models import (
    Candidate,
    Evaluation,
    Provenance,
    RunStatus,
    Target,
    VerdictStatus,
)

BEAM = 3
"""Parents kept across a round; 2 to 4 is what the evidence says works."""

PATIENCE = 2
"""Rounds of rewrites without progress after which launch parameters get their turn."""

REWRITE_SHARE = 0.65
"""Of the wall budget, for rewrites of rewrites; the rest is for launch parameters, which nearly
always bring something."""

CONFIRMATIONS = 3
"""How many winners are judged in full before the run gives up on claiming one."""


@dataclass(frozen=True)
class Deps:
    """What the steps work with; never checkpointed."""

    target: Target
    store: RunStore
    evaluator: Evaluator
    proposer: Proposer
    meter: Meter
    listener: Listener

    def tell(
        self,
        event: EventName,
        *,
        candidate: str | None = None,
        technique: str | None = None,
        status: str | None = None,
        speedup: float | None = None,
        text: str = "",
    ) -> None:
        """Log an event and show it."""
        entry = Event(
            wall_s=round(self.meter.spent.wall_s, 3),
            event=event,
            candidate=candidate,
            technique=technique,
            status=status,
            speedup=speedup,
            text=text,
        )
        self.store.append(entry)
        self.listener(entry)


def prepare(state: SearchState, runtime: Runtime[Deps]) -> dict[str, object]:
    """Run, check and profile the target itself. Raises `TargetError` when it fails."""
    deps = runtime.context
    known = deps.store.baseline()
    fresh = deps.evaluator.baseline(deps.store.work_folder(BASELINE))
    if known is None:
        deps.store.save_evaluation(fresh.model_copy(update={"candidate": BASELINE, "full": True}))
        times = ", ".join(f"{m.workload} {m.time_us:.4g} µs" for m in fresh.measurements)
        provenance = fresh.measurements[0].provenance if fresh.measurements else ""
        deps.tell("baseline", text=f"{times} ({provenance})")
    return updated(state, phase="rewrite")


def diagnose(state: SearchState, runtime: Runtime[Deps]) -> dict[str, object]:
    """Say what limits the target; without headroom the run ends here."""
    deps = runtime.context
    baseline = _baseline(deps)
    for diagnosis in baseline.diagnoses:
        headroom = f"{diagnosis.headroom.ratio:.2f}× above speed of light"
        deps.tell("diagnosed", text=f"{diagnosis.workload}: {diagnosis.bottleneck}, {headroom}")
    if not _has_headroom(baseline):
        reason = "no possible gain is larger than the model's own uncertainty"
        return updated(state, stop=reason, no_headroom=True)
    return updated(state, stop="")


def propose(state: SearchState, runtime: Runtime[Deps]) -> dict[str, object]:
    """Ask for rewrites of every parent in the beam that was not asked about yet."""
    deps = runtime.context
    if reason := deps.meter.exhausted():
        return updated(state, queue=[], stop=reason)
    known = {attempt.id for attempt in state.attempts}
    queue: list[Job] = []
    expanded = list(state.expanded)
    phase = state.phase
    for phase in _phases(deps, state):
        if phase != state.phase:
            deps.tell("phase", text="launch parameters of the best so far")
        for parent in _parents(state, phase):
            mark = f"{phase}:{parent}"
            if mark in expanded:
                continue
            expanded.append(mark)
            depth = _depth(state, parent) + 1
            for candidate in deps.proposer.propose(_context(deps, state, parent, phase)):
                if candidate.id in known or candidate.source == deps.target.source:
                    continue
                known.add(candidate.id)
                deps.store.save_candidate(candidate)
                queue.append(Job(candidate=candidate.id, depth=depth, phase=phase))
            if queue:
                break
        if queue:
            break
    if not queue:
        return updated(
            state, queue=[], expanded=expanded, phase=phase, stop="nothing is left to try"
        )
    deps.meter.charge(iterations=1)
    deps.tell("proposed", text=f"{len(queue)} in round {state.iteration + 1}")
    return updated(
        state, queue=queue, expanded=expanded, phase=phase, iteration=state.iteration + 1
    )


def evaluate(state: Job, runtime: Runtime[Deps]) -> dict[str, object]:
    """Judge one candidate, unless it was judged before or the budget is used up."""
    deps = runtime.context
    candidate = deps.store.candidate(state.candidate)
    evaluation = deps.store.evaluation(candidate.id)
    if evaluation is None:
        if deps.meter.exhausted(_share(state)):
            return {"attempts": []}
        evaluation = _judge(deps, candidate, full=False)
    return {"attempts": [_attempt(state, candidate, evaluation)]}


def reflect(state: SearchState, runtime: Runtime[Deps]) -> dict[str, object]:
    """Write down what was learned and decide whether to go on."""
    deps = runtime.context
    write_journal(deps.store, state.attempts)
    save_progress(deps, state)
    best = next(iter(ranked(state.attempts)), None)
    reason = deps.meter.exhausted() or ""
    if not reason and best is not None and is_gain_attempt(best):
        evaluation = deps.store.evaluation(best.id)
        if evaluation is not None and not _has_headroom(evaluation):
            reason = "the best candidate is as close to the speed of light as the model can tell"
    if reason:
        deps.tell("stopped", text=reason)
    speedup = best.speedup or 1.0 if best is not None else 1.0
    progress = speedup > 1.005 * state.best_speedup
    return updated(
        state,
        stop=reason,
        queue=[],
        best_speedup=max(speedup, state.best_speedup),
        stalled=0 if progress else state.stalled + 1,
    )


def conclude(state: SearchState, runtime: Runtime[Deps]) -> dict[str, object]:
    """Judge the best in full and say how the run ends."""
    deps = runtime.context
    for attempt in gaining(state.attempts)[:CONFIRMATIONS]:
        evaluation = deps.store.evaluation(attempt.id, full=True)
        if evaluation is None:
            if deps.meter.out_of_time() and _any_confirmed(deps, state):
                break
            candidate = deps.store.candidate(attempt.id)
            deps.tell("confirming", candidate=attempt.id, technique=attempt.technique)
            evaluation = _judge(deps, candidate, full=True)
        confirmed = scored(evaluation)
        if confirmed is not None and is_gain(confirmed):
            measured = confirmed.provenance is Provenance.MEASURED
            status = RunStatus.IMPROVED if measured else RunStatus.PREDICTED_IMPROVED
            deps.tell("confirmed", candidate=attempt.id, status="pass", speedup=confirmed.speedup)
            return updated(state, status=status, best=attempt.id)
        deps.tell(
            "confirmed",
            candidate=attempt.id,
            status=str(evaluation.verdict.status),
            text=evaluation.verdict.summary,
        )
    status = RunStatus.NO_HEADROOM if state.no_headroom else RunStatus.NO_GAIN
    return updated(state, status=status, best=None)


def write_journal(store: RunStore, attempts: list[Attempt]) -> None:
    """Rebuild the guidance journal from what is on disk."""
    baseline = store.baseline()
    entries, summaries = [], {}
    for attempt in attempts:
        child = store.best_known(attempt.id)
        if child is None:
            continue
        parent = store.best_known(attempt.parent) if attempt.parent != BASELINE else baseline
        entries.append(journal.advice(store.candidate(attempt.id), parent, child))
        summaries[attempt.id] = child.verdict.summary
    bottleneck = baseline.diagnoses[0].bottleneck if baseline and baseline.diagnoses else "unknown"
    store.save_guidance(entries, journal.render(entries, summaries, bottleneck))


def save_progress(deps: Deps, state: SearchState) -> None:
    """Bring `run.json` up to date."""
    record = deps.store.record()
    deps.store.save_record(
        record.model_copy(update={"attempts": tuple(state.attempts), "spent": deps.meter.spent})
    )


def is_gain_attempt(attempt: Attempt) -> bool:
    """Whether an attempt may be called an improvement."""
    return bool(gaining([attempt]))


def _judge(deps: Deps, candidate: Candidate, *, full: bool) -> Evaluation:
    deps.tell("evaluating", candidate=candidate.id, technique=candidate.technique)
    began = time.monotonic()
    folder = deps.store.work_folder(candidate.id)
    evaluation = deps.evaluator.evaluate(candidate, folder, full=full)
    deps.store.save_evaluation(evaluation)
    deps.meter.saw_evaluation(time.monotonic() - began)
    found = score(evaluation.comparisons)
    if not full:
        deps.meter.charge(candidates=1)
        deps.tell(
            "evaluated",
            candidate=candidate.id,
            technique=candidate.technique,
            status=str(evaluation.verdict.status),
            speedup=found.speedup if found else None,
            text="" if found else evaluation.verdict.summary,
        )
    return evaluation


def _attempt(job: Job, candidate: Candidate, evaluation: Evaluation) -> Attempt:
    found = scored(evaluation)
    return Attempt(
        id=candidate.id,
        parent=candidate.parent or BASELINE,
        technique=candidate.technique,
        phase=job.phase,
        depth=job.depth,
        status=evaluation.verdict.status,
        speedup=found.speedup if found else None,
        speedup_low=found.low if found else None,
        speedup_high=found.high if found else None,
        worst=found.worst if found else None,
        dominated=found.dominated if found else False,
        provenance=found.provenance if found else None,
    )


def _parents(state: SearchState, phase: Phase) -> list[str]:
    """Whom to rewrite: the best so far and, while it is among them, the target itself."""
    better = [a.id for a in ranked(state.attempts) if (a.speedup or 0.0) > 1.0]
    if phase == "tune":
        return (better or [BASELINE])[:1]
    return [*better, BASELINE][:BEAM]


def _phases(deps: Deps, state: SearchState) -> list[Phase]:
    """What to look for now, in order."""
    spent_share = deps.meter.exhausted(REWRITE_SHARE) is not None
    begun = state.iteration > 0  # a slow start must not cost the rewrites of the target itself
    if state.phase == "tune" or state.stalled >= PATIENCE or (begun and spent_share):
        return ["tune"]
    return ["rewrite", "tune"]


def _share(job: Job) -> float:
    """The part of the time that a job may still begin in."""
    return REWRITE_SHARE if job.phase == "rewrite" and job.depth > 1 else 1.0


def _depth(state: SearchState, parent: str) -> int:
    return next((a.depth for a in state.attempts if a.id == parent), 0)


def _context(deps: Deps, state: SearchState, parent: str, phase: Phase) -> ProposalContext:
    evaluation = _baseline(deps) if parent == BASELINE else deps.store.evaluation(parent)
    assert evaluation is not None, f"{parent} is a parent without an evaluation"
    return ProposalContext(
        target=deps.target,
        parent=None if parent == BASELINE else deps.store.candidate(parent),
        evaluation=evaluation,
        folder=deps.store.candidate_folder(parent),
        phase=phase,
        refuted=_refuted(deps, state, parent),
    )


def _refuted(deps: Deps, state: SearchState, parent: str) -> frozenset[str]:
    """Techniques that brought nothing to an ancestor with the same bottleneck as the parent."""
    by_id = {attempt.id: attempt for attempt in state.attempts}
    here = _bottleneck(deps, parent)
    rows = []
    current = by_id[parent].parent if parent in by_id else None
    while current is not None:
        if _bottleneck(deps, current) == here:
            before = _baseline(deps) if current == BASELINE else deps.store.evaluation(current)
            for attempt in state.attempts:
                after = deps.store.evaluation(attempt.id)
                if attempt.parent == current and before is not None and after is not None:
                    rows.append((deps.store.candidate(attempt.id), before, after))
        current = by_id[current].parent if current in by_id else None
    return journal.refuted(rows)


def _bottleneck(deps: Deps, candidate: str) -> str:
    evaluation = _baseline(deps) if candidate == BASELINE else deps.store.evaluation(candidate)
    return evaluation.diagnoses[0].bottleneck if evaluation and evaluation.diagnoses else ""


def _baseline(deps: Deps) -> Evaluation:
    baseline = deps.store.baseline()
    assert baseline is not None, "prepare stores the baseline first"
    return baseline


def _has_headroom(evaluation: Evaluation) -> bool:
    return not evaluation.diagnoses or any(
        d.headroom.exceeds_interval for d in evaluation.diagnoses
    )


def _any_confirmed(deps: Deps, state: SearchState) -> bool:
    return any(
        (e := deps.store.evaluation(a.id, full=True)) is not None
        and e.verdict.status is VerdictStatus.PASS
        for a in state.attempts
    )
