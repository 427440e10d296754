"""The tools that judge one target, in one registry."""

from __future__ import annotations

import shutil
from typing import TypeVar

from kopt.gpu.errors import UsageError
from kopt.tools.compiler import Compilation, compiled_kernels
from kopt.tools.models import (
    Candidate,
    Comparison,
    Diagnosis,
    Evaluation,
    Measurement,
    Model,
    Profile,
    Verdict,
    VerdictStatus,
)
from kopt.tools.registry import Registry, Tool
from kopt.tools.session import Session


class NoInput(Model):
    """A tool about the target itself."""


class SourceInput(Model):
    """A whole new version of the target's file."""

    source: str


class WorkloadInput(Model):
    """One workload of the target; null means the first."""

    workload: str | None = None


class TargetSummary(Model):
    """What is known about the target without running it."""

    file: str
    language: str
    entry: str
    reference: str | None
    kernels: tuple[str, ...]
    workloads: tuple[str, ...]
    source: str


class Benchmark(Model):
    """Times of a candidate and their ratio to the target's, if it is right."""

    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()


def inspect_target(session: Session, _: NoInput) -> TargetSummary:
    """The target as recognised."""
    target = session.target
    return TargetSummary(
        file=target.file,
        language=target.language,
        entry=target.entry,
        reference=target.reference,
        kernels=target.kernels,
        workloads=tuple(w.name for w in target.workloads),
        source=target.source,
    )


def compile_candidate(session: Session, given: SourceInput) -> Compilation:
    """Kernels of a candidate as compiled, or the compiler's error."""
    evaluation, facts = session.judged(_candidate(given.source), full=False)
    if facts:
        return Compilation(kernels=compiled_kernels(next(iter(facts.values()))))
    if evaluation.verdict.status is VerdictStatus.COMPILE_ERROR:
        return Compilation(error=evaluation.verdict.summary)
    return Compilation(error=f"{evaluation.verdict.status}: {evaluation.verdict.summary}")


def verify_candidate(session: Session, given: SourceInput) -> Verdict:
    """The full verdict."""
    return session.verify(given.source)


def benchmark_candidate(session: Session, given: SourceInput) -> Benchmark:
    """Quick verdict, times, ratios."""
    evaluation, _ = session.judged(_candidate(given.source), full=False)
    return Benchmark(
        verdict=evaluation.verdict,
        measurements=evaluation.measurements,
        comparisons=evaluation.comparisons,
    )


def profile_target(session: Session, given: WorkloadInput) -> Profile:
    """Metrics of every launch of the target."""
    return _of_workload(_baseline(session).profiles, given.workload)


def diagnose_target(session: Session, given: WorkloadInput) -> Diagnosis:
    """What limits the target."""
    return _of_workload(_baseline(session).diagnoses, given.workload)


def judging_tools() -> Registry[Session]:
    """The registry of everything that can be asked about one target and its candidates."""
    tools: Registry[Session] = Registry()
    tools.add(
        Tool(
            "inspect_target",
            "The kernel to optimize: source, entry, reference, workloads.",
            NoInput,
            TargetSummary,
            inspect_target,
        )
    )
    tools.add(
        Tool(
            "compile_candidate",
            "Compile a whole new version of the file; registers, spills, shared memory, occupancy"
            " of each kernel, or the compiler's error.",
            SourceInput,
            Compilation,
            compile_candidate,
        )
    )
    tools.add(
        Tool(
            "verify_candidate",
            "Judge a whole new version of the file in full: fp64 reference, value laws, held-out"
            " shapes, bounds, cheating.",
            SourceInput,
            Verdict,
            verify_candidate,
        )
    )
    tools.add(
        Tool(
            "benchmark_candidate",
            "Check a whole new version of the file quickly and give its time and its ratio to the"
            " target. On a virtual GPU the times are predicted.",
            SourceInput,
            Benchmark,
            benchmark_candidate,
        )
    )
    tools.add(
        Tool(
            "profile_target",
            "Counters and predicted time of every launch of the target on one workload.",
            WorkloadInput,
            Profile,
            profile_target,
        )
    )
    tools.add(
        Tool(
            "diagnose_target",
            "What limits the target on one workload, with the numbers that say so and the headroom"
            " left.",
            WorkloadInput,
            Diagnosis,
            diagnose_target,
        )
    )
    return tools


def _candidate(source: str) -> Candidate:
    return Candidate(id="candidate", source=source, technique="", rationale="")


def _baseline(session: Session) -> Evaluation:
    folder = session.work / "baseline"
    try:
        return session.baseline(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


T = TypeVar("T", Profile, Diagnosis)


def _of_workload(rows: tuple[T, ...], workload: str | None) -> T:
    for row in rows:
        if workload in (None, row.workload):
            return row
    names = ", ".join(row.workload for row in rows)
    raise UsageError(f"no workload is called {workload!r}", f"workloads: {names}")
