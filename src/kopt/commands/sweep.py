"""`kopt sweep`: launch parameters of the costliest kernel."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from kopt.commands import options
from kopt.commands.output import Progress


@dataclass(frozen=True)
class Row:
    """One configuration that was tried; times are predicted."""

    change: str
    config: str
    """As a `triton.Config(...)`."""
    verdict: str
    time_us: float | None
    """Of all workloads together: their geometric mean."""
    speedup: float | None
    provenance: str = "predicted"


def sweep(
    target: options.Target,
    entry: options.Entry = None,
    workload: options.Workloads = None,
    gpu: options.Gpu = None,
    sandbox: options.Box = None,
    seed: options.Seed = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Try launch parameters of the costliest kernel; print a table and a `triton.Config` list."""
    with Progress(quiet) as progress:
        rows = _rows(target, entry, workload, gpu, sandbox, seed, progress)
    rows.sort(key=lambda row: -(row.speedup or 0.0))
    if as_json:
        document = {"target": str(target), "configurations": [asdict(row) for row in rows]}
        typer.echo(json.dumps(document, indent=2))
        return
    if not rows:
        typer.echo(
            "no launch parameter of this kernel is written as a number that could be changed"
        )
        return
    typer.echo(f"{'speedup':>9} {'us':>10}  change (times predicted)")
    for row in rows:
        speed = f"{row.speedup:8.2f}x" if row.speedup is not None else f"{row.verdict:>9}"
        time = f"{row.time_us:10.1f}" if row.time_us is not None else " " * 10
        typer.echo(f"{speed} {time}  {row.change}")
    typer.echo("\nconfigs = [")
    for row in rows:
        if row.speedup is not None and row.speedup >= 1.0:
            typer.echo(f"    {row.config},")
    typer.echo("]")


def _rows(
    path: Path,
    entry: str | None,
    workloads: list[str] | None,
    gpu: str | None,
    sandbox: str | None,
    seed: int | None,
    progress: Progress,
) -> list[Row]:
    from kopt.agent.document import mean_time
    from kopt.agent.playbook.launch_parameters import configuration
    from kopt.agent.proposer import ProposalContext
    from kopt.agent.proposers.playbook import PlaybookProposer
    from kopt.agent.seeds import new_secret
    from kopt.agent.select import scored
    from kopt.config import load
    from kopt.judge import chosen_target, session

    config = load({"gpu": gpu, "sandbox": sandbox})
    target = chosen_target(path, entry, workloads)
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        session(target, config.gpu, config.sandbox, new_secret(seed)) as opened,
    ):
        progress.now(f"running {path.name} on the virtual GPU ...")
        base = Path(folder) / "baseline"
        context = ProposalContext(target, None, opened.baseline(base), base, "tune")
        for candidate in PlaybookProposer(opened.spec).propose(context):
            progress.now(candidate.rationale)
            judged = opened.evaluate(candidate, Path(folder) / candidate.id, full=False)
            found, time = scored(judged), mean_time(judged)
            rows.append(
                Row(
                    change=candidate.rationale,
                    config=configuration(candidate.rationale),
                    verdict=str(judged.verdict.status),
                    time_us=time.time_us if found and time else None,
                    speedup=found.speedup if found else None,
                )
            )
    return rows
