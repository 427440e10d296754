"""The guidance journal: every advice with what was predicted, what was seen, and when it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kopt.agent.select import scored
from kopt.tools.models import (
    Candidate,
    Effect,
    Evaluation,
    Guidance,
    Metric,
    Provenance,
    VerdictStatus,
)

ADDITIVE_UNITS = frozenset({"byte", "bytes", "B", "instruction", "instructions", "count", "sector"})
"""Metrics in these add up over launches; of others the largest launch speaks."""

_ALWAYS = ("dram_read_bytes", "dram_write_bytes")


def observe(parent: Evaluation, child: Evaluation, metrics: Iterable[str]) -> tuple[Effect, ...]:
    """What the named metrics did from parent to child: counters, never predicted times."""
    effects = []
    for name in dict.fromkeys(metrics):
        before, after = _value(parent, name), _value(child, name)
        if before is None or after is None:
            continue
        effects.append(
            Effect(
                metric=name,
                before=before,
                after=after,
                direction="down" if after < before else "up" if after > before else "same",
                sentence=_sentence(name, before, after),
            )
        )
    return tuple(effects)


def advice(candidate: Candidate, parent: Evaluation | None, child: Evaluation) -> Guidance:
    """One entry of the journal, for a success or a failure alike."""
    observed: tuple[Effect, ...] = ()
    if parent is not None and child.verdict.status is VerdictStatus.PASS:
        observed = observe(parent, child, [*(e.metric for e in candidate.predicted), *_ALWAYS])
    return Guidance(
        candidate=candidate.id,
        technique=candidate.technique,
        evidence=candidate.evidence,
        change=candidate.rationale,
        predicted=candidate.predicted,
        observed=observed,
        verdict=child.verdict.status,
        comparison=child.comparisons,
        bottleneck_after=child.diagnoses[0].bottleneck if child.diagnoses else None,
        conditions=candidate.conditions,
    )


def render(entries: Sequence[Guidance], summaries: dict[str, str], bottleneck: str) -> str:
    """`guidance.md`. `summaries` says for each candidate why its verdict is what it is."""
    lines = ["# Guidance", ""]
    if not entries:
        lines += ["Nothing was tried.", ""]
    for entry in entries:
        lines += [f"## {entry.technique} (`{entry.candidate}`): {outcome(entry)}", ""]
        lines += [f"- evidence: {sentence}" for sentence in entry.evidence]
        lines += [f"- change: {entry.change}"]
        lines += [f"- predicted: {_words(effect)}" for effect in entry.predicted]
        lines += [f"- observed: {_words(effect)}" for effect in entry.observed]
        if entry.verdict is not VerdictStatus.PASS:
            lines += [f"- verdict: {entry.verdict}: {summaries.get(entry.candidate, '')}".rstrip()]
        if entry.bottleneck_after is not None:
            moved = "stays" if entry.bottleneck_after == bottleneck else f"was {bottleneck},"
            lines += [f"- bottleneck: {moved} {entry.bottleneck_after}"]
        if entry.conditions:
            lines += [f"- holds when: {entry.conditions}"]
        lines += [""]
    return "\n".join(lines)


def outcome(entry: Guidance) -> str:
    """The outcome in a few words, with its provenance."""
    if entry.verdict is not VerdictStatus.PASS:
        return str(entry.verdict)
    parts = []
    for row in entry.comparison:
        kind = "" if row.provenance is Provenance.MEASURED else " predicted"
        parts.append(f"{row.speedup:.2f}×{kind} ({row.speedup_low:.2f}–{row.speedup_high:.2f})")
    return ", ".join(parts) or "pass"


def refuted(entries: Sequence[tuple[Candidate, Evaluation, Evaluation]]) -> frozenset[str]:
    """Techniques that brought nothing where the bottleneck was and stayed the same.

    Rows are (candidate, its parent's evaluation, its own).
    """
    found = set()
    for candidate, parent, child in entries:
        mine, base = scored(child), scored(parent)
        before = base.speedup if base is not None else 1.0
        if mine is None or mine.speedup <= before:
            found.add(candidate.technique)
    return frozenset(found)


def _value(evaluation: Evaluation, name: str) -> float | None:
    """Over all launches of the first workload: a sum for amounts, else the costliest launch's."""
    if not evaluation.profiles:
        return None
    launches = sorted(evaluation.profiles[0].launches, key=lambda launch: -launch.time_us)
    found = [_metric(launch.metrics, name) for launch in launches]
    metrics = [m for m in found if m is not None and m.provenance is not Provenance.PREDICTED]
    if not metrics:
        return None
    if metrics[0].unit in ADDITIVE_UNITS:
        return sum(m.value for m in metrics)
    return metrics[0].value


def _metric(metrics: Sequence[Metric], name: str) -> Metric | None:
    return next((m for m in metrics if m.name == name), None)


def _sentence(name: str, before: float, after: float) -> str:
    if before == after:
        return f"{name} stayed at {_short(before)}"
    change = f" ({after / before:.2f}×)" if before else ""
    return f"{name} went from {_short(before)} to {_short(after)}{change}"


def _words(effect: Effect) -> str:
    if effect.sentence:
        return effect.sentence
    if effect.before is not None and effect.after is not None:
        return _sentence(effect.metric, effect.before, effect.after)
    return f"{effect.metric} {effect.direction}"


def _short(value: float) -> str:
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"
