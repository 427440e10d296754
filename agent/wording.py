"""Words for numbers, the same wherever a run is described."""

from __future__ import annotations

from kopt.agent.document import Best, RunDocument
from kopt.tools.models import Provenance, RunStatus, VerdictStatus


def microseconds(value: float) -> str:
    """A time for people: `12.3 µs`, `1.85 ms`."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} s"
    if value >= 1e3:
        return f"{value / 1e3:.3g} ms"
    return f"{value:.3g} µs"


def count(number: int, word: str) -> str:
    """`1 candidate`, `2 candidates`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def speedup(best: Best) -> str:
    """`1.84× predicted (1.31–2.40)`; a measured one says so."""
    kind = "measured" if best.provenance is Provenance.MEASURED else "predicted"
    return f"{best.speedup:.2f}× {kind} ({best.speedup_low:.2f}–{best.speedup_high:.2f})"


def headline(run: RunDocument) -> str:
    """How the run ended, in one sentence."""
    match run.status:
        case RunStatus.IMPROVED | RunStatus.PREDICTED_IMPROVED if run.best is not None:
            return f"{run.target.entry} is {speedup(run.best)}: {run.best.technique}"
        case RunStatus.NO_HEADROOM:
            return f"{run.target.entry} has no headroom: leave it as it is"
        case RunStatus.NO_GAIN:
            return f"no gain that can be claimed, after {count(len(run.candidates), 'candidate')}"
        case RunStatus.FAILED:
            return f"failed: {run.reason}"
        case RunStatus.INTERRUPTED:
            tried = count(len(run.candidates), "candidate")
            return f"interrupted after {tried}; everything is saved"
        case _:
            return f"{run.status}: {run.reason}".rstrip(": ")


def tally(run: RunDocument) -> str:
    """`14 candidates: 11 pass, 2 mismatch, 1 compile_error`."""
    counts: dict[VerdictStatus, int] = {}
    for row in run.candidates:
        counts[row.verdict.status] = counts.get(row.verdict.status, 0) + 1
    parts = [f"{n} {status}" for status, n in sorted(counts.items(), key=lambda i: (-i[1], i[0]))]
    return count(len(run.candidates), "candidate") + (f": {', '.join(parts)}" if parts else "")
