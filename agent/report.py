"""`report.md`: the whole run for a reader who was not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kopt.agent.document import RunDocument
from kopt.agent.journal import outcome
from kopt.agent.wording import headline, microseconds, speedup, tally
from kopt.tools.models import Diagnosis, Metric, VerdictStatus


def render(run: RunDocument) -> str:
    """Markdown; every number with its provenance."""
    parts = [
        f"# {run.target.entry}: {run.status}",
        headline(run) + ("" if headline(run).endswith(".") else "."),
        _facts(run),
        _diagnosis(run.diagnosis, "What limits it"),
        _workloads(run),
        _winner(run),
        _tried(run),
        _guidance(run),
        _diagnosis(run.diagnosis_after, "What limits the best"),
        _unseen(run),
        _environment(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(run: RunDocument) -> str:
    rows = [
        ("target", f"`{run.target.file}`, entry `{run.target.entry}` ({run.target.language})"),
        ("GPU", f"{run.gpu.kind} {run.gpu.name} ({run.gpu.arch})"),
        ("sandbox", run.sandbox.backend),
        ("proposer", run.proposer),
        ("spent", f"{run.spent.wall_s:.1f} s of {_limit(run.budget_wall_s)}, {tally(run)}"),
        ("run", f"`{run.run_id}`"),
    ]
    if run.reason:
        rows.insert(0, ("why it ended", run.reason))
    if run.sandbox.isolation:
        rows.insert(4, ("contained", ", ".join(run.sandbox.isolation)))
    if run.sandbox.lacks:
        rows.insert(5, ("not contained", ", ".join(run.sandbox.lacks)))
    return _table(("", ""), rows)


def _limit(wall_s: float | None) -> str:
    return "no limit" if wall_s is None else f"{wall_s:g} s"


def _diagnosis(diagnosis: Diagnosis | None, title: str) -> str:
    if diagnosis is None:
        return ""
    head = diagnosis.headroom
    lines = [f"## {title}", "", f"**{diagnosis.bottleneck}**"]
    if diagnosis.kernel:
        lines[-1] += f" in `{diagnosis.kernel}`"
    lines[-1] += f" ({diagnosis.workload})"
    lines += ["", *(f"- {sentence}" for sentence in diagnosis.evidence)]
    lines += [
        f"- speed of light {microseconds(head.speed_of_light_us)} predicted; the call is"
        f" {head.ratio:.2f}× above it"
    ]
    if diagnosis.metrics:
        lines += ["", _table(("metric", "value", "provenance", "meaning"), _metrics(diagnosis))]
    return "\n".join(lines)


def _metrics(diagnosis: Diagnosis) -> Iterable[Sequence[str]]:
    for metric in diagnosis.metrics:
        yield (f"`{metric.name}`", value(metric), str(metric.provenance), metric.sentence)


def value(metric: Metric) -> str:
    """A metric's value with its unit."""
    number = f"{metric.value:,.0f}" if abs(metric.value) >= 1000 else f"{metric.value:.4g}"
    return f"{number} {metric.unit}".rstrip()


def _workloads(run: RunDocument) -> str:
    if not run.workloads:
        return ""
    rows = []
    for row in run.workloads:
        after, gain = "", ""
        if row.best is not None and row.comparison is not None:
            c = row.comparison
            after = microseconds(row.best.time_us)
            gain = f"{c.speedup:.2f}× ({c.speedup_low:.2f}–{c.speedup_high:.2f}), {c.status}"
        before = microseconds(row.baseline.time_us)
        coverage = f"{row.baseline.coverage:.0%}"
        rows.append((row.name, before, after, gain, str(row.baseline.provenance), coverage))
    heads = ("workload", "baseline", "best", "speed-up (interval)", "provenance", "coverage")
    return f"## Workloads\n\n{_table(heads, rows)}"


def _winner(run: RunDocument) -> str:
    best = run.best
    if best is None:
        return ""
    lines = [
        f"## What won: {best.technique}",
        "",
        f"{best.rationale}.".replace("..", "."),
        "",
        f"- {speedup(best)} on the objective (geometric mean over the workloads)",
        f"- verdict: **{best.verdict.status}**: {best.verdict.summary}",
    ]
    if not best.judged_in_full:
        lines += ["- judged by the quick check only: the run was interrupted"]
    if best.dominated:
        lines += ["- no cost counter rises: the prediction holds whatever the device rates are"]
    if best.path is not None:
        lines += [f"- written to `{best.path}`"]
    if best.verdict.cases:
        rows = [
            (c.case, str(c.status), _error(c.error_rms), _error(c.reference_error_rms), c.detail)
            for c in best.verdict.cases
        ]
        heads = ("case", "verdict", "error (rms)", "the original's", "")
        lines += ["", _table(heads, rows)]
    lines += ["", *(f"- skipped: {reason}" for reason in best.verdict.skipped)]
    return "\n".join(lines).rstrip()


def _error(number: float | None) -> str:
    return "" if number is None else f"{number:.2e}"


def _tried(run: RunDocument) -> str:
    if not run.candidates:
        return ""
    rows = []
    for row in run.candidates:
        gain = ""
        if row.speedup is not None:
            gain = f"{row.speedup:.2f}× ({row.speedup_low:.2f}–{row.speedup_high:.2f})"
        note = "" if row.verdict.status is VerdictStatus.PASS else row.verdict.summary
        rows.append(
            (f"`{row.id}`", row.technique, f"`{row.parent}`", row.verdict.status, gain, note)
        )
    heads = ("candidate", "technique", "from", "verdict", "speed-up (predicted unless said)", "")
    advice = "".join(f"\n- {sentence}" for sentence in run.advice)
    return f"## What was tried\n\n{_table(heads, rows)}" + (f"\n{advice}" if advice else "")


def _guidance(run: RunDocument) -> str:
    if not run.guidance:
        return ""
    lines = ["## Guidance", ""]
    for entry in run.guidance:
        lines += [f"- **{entry.technique}** (`{entry.candidate}`), {outcome(entry)}"]
        lines += [f"  - evidence: {sentence}" for sentence in entry.evidence]
        lines += [f"  - observed: {e.sentence}" for e in entry.observed if e.sentence]
        if entry.conditions:
            lines += [f"  - holds when: {entry.conditions}"]
    return "\n".join(lines)


def _unseen(run: RunDocument) -> str:
    unseen = run.diagnosis.unseen if run.diagnosis is not None else ()
    if not unseen:
        return ""
    lines = ["## What the model cannot see", "", *(f"- {sentence}" for sentence in unseen)]
    return "\n".join(lines)


def _environment(run: RunDocument) -> str:
    if not run.environment:
        return ""
    rows = sorted(run.environment.items())
    return f"## Environment\n\n{_table(('', ''), rows)}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return (
            "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
        )

    return "\n".join([line(heads), line("---" for _ in heads), *(line(row) for row in rows)])
