"""`kopt runs` and `kopt report`: what was done before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kopt.commands import options
from kopt.commands.output import print_json
from kopt.gpu.errors import UsageError


def runs(as_json: options.AsJson = False) -> None:
    """List the runs of this folder, newest last."""
    from kopt.agent.record import RunRecord
    from kopt.agent.store import read_record, run_folders
    from kopt.config import load

    folders = run_folders(Path(load({}).runs).absolute())
    records: list[RunRecord] = []
    for folder in folders:
        try:
            records.append(read_record(folder))
        except UsageError as error:  # another version's, or damaged: the others are still listed
            typer.echo(f"left out: {error.message}", err=True)
    if as_json:
        typer.echo(json.dumps([r.model_dump(mode="json") for r in records], indent=2))
        return
    if not folders:
        typer.echo("no runs yet; start one with: kopt optimize kernel.py")
    for r in records:
        best = next((a for a in r.attempts if a.id == r.best), None)
        gain = f"{best.speedup:.2f}x {best.provenance}" if best and best.speedup else ""
        typer.echo(f"{r.run_id:44} {r.status:20} {gain:18} {Path(r.target.file).name}")


def report(
    run: Annotated[str, typer.Argument(help="Run id or its beginning; `last` is the newest.")],
    as_json: options.AsJson = False,
) -> None:
    """Print the report of a run as Markdown."""
    from kopt.agent import document
    from kopt.agent import report as reports
    from kopt.agent.store import RunStore, find_run
    from kopt.config import load

    store = RunStore.open(find_run(Path(load({}).runs).absolute(), run), write=False)
    built = document.build(store)
    if as_json:
        print_json(built)
    else:
        typer.echo(reports.render(built), nl=False)
