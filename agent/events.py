"""What happens in a run, as it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kopt.tools.models import Model

EventName = Literal[
    "started",
    "resumed",
    "baseline",
    "diagnosed",
    "proposed",
    "evaluating",
    "evaluated",
    "confirming",
    "confirmed",
    "phase",
    "stopped",
    "finished",
    "interrupted",
    "error",
]


class Event(Model):
    """One line of `events.jsonl` and one line of progress."""

    wall_s: float
    """Of the run, earlier sessions included."""
    event: EventName
    candidate: str | None = None
    technique: str | None = None
    status: str | None = None
    speedup: float | None = None
    text: str = ""


Listener = Callable[[Event], None]
