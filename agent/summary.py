"""The end of a run on the terminal: what was slow, what was tried, what won and why."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from kopt.agent.document import CandidateRow, RunDocument
from kopt.agent.wording import count, headline, microseconds, tally
from kopt.tools.models import RunStatus, VerdictStatus

SHOWN = 8
"""Candidates listed on the terminal; the report has them all."""


def render(run: RunDocument) -> str:
    """Plain text, at most a screen."""
    lines = [headline(run), ""]
    gpu = f"{run.gpu.kind} {run.gpu.name}"
    lines += [_field("target", f"{_near(run.target.file)}, entry {run.target.entry}, on {gpu}")]
    if run.baseline is not None:
        time = f"{microseconds(run.baseline.time_us)} {run.baseline.provenance}"
        many = len(run.workloads) > 1
        lines += [_field("baseline", f"{time}{' (geometric mean)' if many else ''}")]
    if run.diagnosis is not None:
        lines += [_field("bottleneck", run.diagnosis.bottleneck)]
        lines += [_field("", sentence) for sentence in run.diagnosis.evidence[:3]]
        head = run.diagnosis.headroom
        lines += [
            _field(
                "headroom",
                f"{head.ratio:.2f}× above the speed of light,"
                f" {microseconds(head.speed_of_light_us)} predicted",
            )
        ]
    if run.candidates:
        lines += [_field("tried", tally(run))]
        lines += [_field("", line) for line in _tried(run)]
    lines += [_field("by shape" if i == 0 else "", text) for i, text in enumerate(run.advice)]
    lines += _outcome(run)
    lines += _workloads(run)
    unseen = run.diagnosis.unseen if run.diagnosis is not None else ()
    if unseen and run.gpu.kind == "virtual":
        lines += [_field("not modelled", "; ".join(unseen))]
    sandbox = run.sandbox.backend
    if run.sandbox.lacks:
        sandbox += f" (not contained: {', '.join(run.sandbox.lacks)})"
    lines += [_field("sandbox", sandbox)]
    lines += [
        _field("spent", f"{run.spent.wall_s:.1f} s, {count(run.spent.candidates, 'evaluation')}")
    ]
    lines += ["", *(f"  {command}" for command in next_commands(run))]
    return "\n".join(lines) + "\n"


def next_commands(run: RunDocument) -> list[str]:
    """What a person would type next."""
    commands = []
    if run.status is RunStatus.INTERRUPTED:
        return [f"kopt optimize --resume {run.run_id}"]
    if run.best is not None and run.best.path is not None:
        target = shlex.quote(_near(run.target.file))
        patch = Path(run.best.path).with_suffix(".patch")
        commands += [
            f"kopt verify {shlex.quote(_near(run.best.path))} --against {target}",
            f"patch {target} < {shlex.quote(_near(str(patch)))}",
        ]
    return [*commands, f"kopt report {run.run_id}"]


def _outcome(run: RunDocument) -> list[str]:
    best = run.best
    if best is None:
        return [_field("why", run.reason)] if run.reason else []
    word = "won" if best.judged_in_full else "best so far"
    lines = [_field(word, f"{best.technique}: {best.rationale}")]
    for entry in run.guidance:
        if entry.candidate == best.id:
            lines += [_field("", e.sentence) for e in entry.observed[:2] if e.sentence]
    judged = f"{best.verdict.status}: {best.verdict.summary}"
    if not best.judged_in_full:
        judged += " (quick check only)"
    lines += [_field("verdict", judged)]
    if best.dominated:
        lines += [_field("", "no cost counter rises, so it holds whatever the device rates are")]
    if best.path is not None:
        lines += [_field("written", _near(best.path))]
    return lines


def _tried(run: RunDocument) -> list[str]:
    order = sorted(run.candidates, key=lambda row: (-(row.speedup or -1.0), row.id))
    shown = [_candidate(row) for row in order[:SHOWN]]
    hidden = len(order) - len(shown)
    return [*shown, f"and {hidden} more in the report"] if hidden > 0 else shown


def _candidate(row: CandidateRow) -> str:
    if row.verdict.status is VerdictStatus.PASS and row.speedup is not None:
        return f"{row.speedup:6.2f}× {row.provenance}  {row.technique}"
    return f"{row.verdict.status:>7}  {row.technique}: {row.verdict.summary}"


def _workloads(run: RunDocument) -> list[str]:
    if len(run.workloads) < 2:
        return []
    lines: list[str] = []
    for row in run.workloads:
        text = f"{row.name}: {microseconds(row.baseline.time_us)}"
        if row.best is not None and row.comparison is not None:
            text += f" → {microseconds(row.best.time_us)}, {row.comparison.speedup:.2f}×"
        lines += [_field("workload" if not lines else "", f"{text} {row.baseline.provenance}")]
    return lines


def _field(name: str, text: str) -> str:
    return f"  {name:<13}{text}".rstrip()


def _near(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("../..") else relative
