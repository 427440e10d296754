"""Results on stdout, progress on stderr."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.status import Status

    from kopt.agent.events import Event


def print_json(document: BaseModel) -> None:
    """The one document of `--json`."""
    typer.echo(document.model_dump_json(indent=2))


class Progress:
    """A line on stderr for each thing that happened; on a terminal also what happens now."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._status: Status | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            console = Console(stderr=True, highlight=False)
            self._status = self._stack.enter_context(console.status("starting"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status = None
        self._stack.close()

    def say(self, line: str) -> None:
        """Something that happened."""
        if self._quiet:
            return
        if self._status is not None:
            self._status.console.print(line[:200], markup=False, soft_wrap=True)
        else:
            typer.echo(line[:200], err=True)

    def now(self, text: str) -> None:
        """Something that happens and takes a while."""
        if self._quiet:
            return
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))
        else:
            typer.echo(text, err=True)

    def event(self, event: Event) -> None:
        """A run's event; the start of an evaluation is shown on a terminal only."""
        doing = " ".join(filter(None, (event.event, event.technique)))
        if event.event in {"evaluating", "confirming"} and self._status is not None:
            self.now(doing)
        if event.event == "evaluating":
            return
        parts = [f"{event.wall_s:6.1f} s", event.event]
        if event.technique:
            parts.append(event.technique)
        if event.speedup is not None:
            parts.append(f"{event.speedup:.2f}x predicted")
        parts += [text for text in (event.status, event.text) if text]
        self.say("  ".join(parts))
