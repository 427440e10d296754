"""The one document that says how a run went: what `--json` prints and every report is made of."""

from __future__ import annotations

import math

from pydantic import Field

from kopt.agent.record import GpuInfo, TargetInfo
from kopt.agent.select import guarded, score
from kopt.agent.state import Attempt
from kopt.agent.store import RunStore
from kopt.tools.models import (
    Comparison,
    Diagnosis,
    Evaluation,
    Guidance,
    Measurement,
    Model,
    Provenance,
    RunStatus,
    SandboxInfo,
    Spent,
    Verdict,
    VerdictStatus,
)


class Time(Model):
    """A time with its provenance; over several workloads their geometric mean."""

    time_us: float
    provenance: Provenance


class VerdictInfo(Model):
    """A verdict in short."""

    status: VerdictStatus
    summary: str = ""


class Best(Model):
    """The candidate that won."""

    id: str
    technique: str
    """All rewrites from the target to it, e.g. `row_in_one_block + launch_parameters`."""
    rationale: str
    time_us: float
    speedup: float
    speedup_low: float
    speedup_high: float
    provenance: Provenance
    dominated: bool
    """It wins whatever the device rates are, since no cost counter rises."""
    verdict: Verdict
    judged_in_full: bool
    """False: only the quick check was made, because the run was interrupted."""
    path: str | None


class WorkloadRow(Model):
    """One workload, the target against the best."""

    name: str
    baseline: Measurement
    best: Measurement | None = None
    comparison: Comparison | None = None
    diagnosis: Diagnosis | None = None


class CandidateRow(Model):
    """One candidate that was tried."""

    id: str
    parent: str
    technique: str
    verdict: VerdictInfo
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    provenance: Provenance | None


class RunDocument(Model):
    """How a run went."""

    run_id: str
    folder: str
    target: TargetInfo
    gpu: GpuInfo
    sandbox: SandboxInfo
    proposer: str
    status: RunStatus
    reason: str
    baseline: Time | None
    diagnosis: Diagnosis | None
    """Of the first workload; `workloads` has them all."""
    diagnosis_after: Diagnosis | None
    best: Best | None
    workloads: tuple[WorkloadRow, ...]
    candidates: tuple[CandidateRow, ...]
    advice: tuple[str, ...] = ()
    """Candidates that would be right for some workloads only."""
    guidance: tuple[Guidance, ...]
    spent: Spent
    budget_wall_s: float | None
    environment: dict[str, str] = Field(default_factory=dict)
    report: str | None


def build(store: RunStore) -> RunDocument:
    """Read a run's folder, finished or not."""
    record = store.record()
    baseline = store.baseline()
    best_attempt = next((a for a in record.attempts if a.id == record.best), None)
    best = store.best_known(best_attempt.id) if best_attempt else None
    report = store.folder / "report.md"
    return RunDocument(
        run_id=record.run_id,
        folder=str(store.folder),
        target=record.target,
        gpu=record.gpu,
        sandbox=record.sandbox,
        proposer=record.proposer,
        status=record.status,
        reason=record.reason,
        baseline=mean_time(baseline),
        diagnosis=baseline.diagnoses[0] if baseline and baseline.diagnoses else None,
        diagnosis_after=best.diagnoses[0] if best and best.diagnoses else None,
        best=_best(store, record.attempts, best_attempt, best),
        workloads=_workloads(baseline, best),
        candidates=tuple(_row(store, attempt) for attempt in record.attempts),
        advice=tuple(_dispatch(attempt) for attempt in guarded(record.attempts)),
        guidance=tuple(store.guidance()),
        spent=record.spent,
        budget_wall_s=record.budget.wall_s,
        environment=record.environment,
        report=str(report) if report.exists() else None,
    )


def chain(attempts: tuple[Attempt, ...], last: Attempt) -> list[Attempt]:
    """The rewrites that led to an attempt, first to last."""
    by_id = {a.id: a for a in attempts}
    found = [last]
    while (parent := by_id.get(found[0].parent)) is not None:
        found.insert(0, parent)
    return found


def _best(
    store: RunStore,
    attempts: tuple[Attempt, ...],
    attempt: Attempt | None,
    evaluation: Evaluation | None,
) -> Best | None:
    if attempt is None or evaluation is None:
        return None
    found, time = score(evaluation.comparisons), mean_time(evaluation)
    if found is None or time is None:
        return None
    path = store.folder / "best.py"
    steps = chain(attempts, attempt)
    return Best(
        id=attempt.id,
        technique=" + ".join(step.technique for step in steps),
        rationale="; ".join(store.candidate(step.id).rationale for step in steps),
        time_us=time.time_us,
        speedup=found.speedup,
        speedup_low=found.low,
        speedup_high=found.high,
        provenance=found.provenance,
        dominated=found.dominated,
        verdict=evaluation.verdict,
        judged_in_full=evaluation.full,
        path=str(path) if path.exists() else None,
    )


def _dispatch(attempt: Attempt) -> str:
    return (
        f"{attempt.technique} ({attempt.id}) is {attempt.speedup:.2f}× {attempt.provenance} over"
        f" all workloads but {attempt.worst:.2f}× on one: choose it by shape, behind a dispatch"
    )


def mean_time(evaluation: Evaluation | None) -> Time | None:
    """The time over all workloads; None where nothing was timed."""
    if evaluation is None or not evaluation.measurements:
        return None
    rows = evaluation.measurements
    mean = math.exp(sum(math.log(max(m.time_us, 1e-9)) for m in rows) / len(rows))
    return Time(time_us=mean, provenance=rows[0].provenance)


def _workloads(baseline: Evaluation | None, best: Evaluation | None) -> tuple[WorkloadRow, ...]:
    if baseline is None:
        return ()
    after = {m.workload: m for m in best.measurements} if best else {}
    compared = {c.workload: c for c in best.comparisons} if best else {}
    diagnosed = {d.workload: d for d in baseline.diagnoses}
    return tuple(
        WorkloadRow(
            name=m.workload,
            baseline=m,
            best=after.get(m.workload),
            comparison=compared.get(m.workload),
            diagnosis=diagnosed.get(m.workload),
        )
        for m in baseline.measurements
    )


def _row(store: RunStore, attempt: Attempt) -> CandidateRow:
    evaluation = store.best_known(attempt.id)
    verdict = evaluation.verdict if evaluation else None
    return CandidateRow(
        id=attempt.id,
        parent=attempt.parent,
        technique=attempt.technique,
        verdict=VerdictInfo(
            status=verdict.status if verdict else attempt.status,
            summary=verdict.summary if verdict else "",
        ),
        speedup=attempt.speedup,
        speedup_low=attempt.speedup_low,
        speedup_high=attempt.speedup_high,
        provenance=attempt.provenance,
    )
