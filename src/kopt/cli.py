"""The command line: which commands there are, and what becomes of errors."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from kopt import __version__
from kopt.commands import catalogue, judging, optimize, runs, sweep
from kopt.gpu.errors import KoptError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make a GPU kernel faster and prove it, with or without a GPU.",
)
for command in (
    optimize.optimize,
    judging.profile,
    judging.verify,
    judging.bench,
    sweep.sweep,
    catalogue.devices,
    catalogue.init,
    runs.runs,
    runs.report,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"kopt {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every error becomes a sentence and the documented exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(standalone_mode=True)
    except KoptError as error:
        typer.echo(f"error: {error.message}", err=True)
        if error.hint:
            typer.echo(f"  {error.hint}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        typer.echo(f"error: internal error: {type(error).__name__}: {error}", err=True)
        if os.environ.get("KOPT_DEBUG"):
            traceback.print_exc()
        else:
            typer.echo(f"  please report it with its traceback{_kept_traceback()}", err=True)
        sys.exit(1)


def _kept_traceback() -> str:
    """Where the traceback was written; nothing where it could not be."""
    with suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="kopt-error-", suffix=".txt")
        os.close(handle)
        Path(name).write_text(f"kopt {__version__} {sys.argv}\n{traceback.format_exc()}")
        return f", kept in {name}"
    return ": run again with KOPT_DEBUG=1"


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
