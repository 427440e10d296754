"""The command line. Commands are thin; what they print for people they also give as `--json`."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt import __version__
from kopt.gpu.errors import KoptError, UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from kopt.agent.events import Event
    from kopt.tools.models import Evaluation

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make a GPU kernel faster and prove it, with or without a GPU.",
)

Target = Annotated[Path, typer.Argument(help="Python file with Triton kernels and an entry.")]
Entry = Annotated[str | None, typer.Option("--entry", help="Function whose calls are compared.")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Device to judge on; see `kopt devices`.")]
Box = Annotated[
    str | None, typer.Option("--sandbox", help="Where candidates run: auto, bubblewrap or local.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Repeat hidden inputs; without it they are secret.")
]


def _config(**flags: object):  # type: ignore[no-untyped-def]
    from kopt.config import load

    return load(flags)


def _print_json(document: BaseModel) -> None:
    typer.echo(document.model_dump_json(indent=2))


def _secret(seed: int | None) -> bytes:
    from kopt.agent.seeds import new_secret

    return new_secret(seed)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"kopt {__version__}")
        raise typer.Exit


@app.command()
def optimize(
    target: Annotated[
        Path | None, typer.Argument(help="Python file with Triton kernels and an entry.")
    ] = None,
    entry: Entry = None,
    gpu: Gpu = None,
    sandbox: Box = None,
    budget_s: Annotated[
        float | None, typer.Option("--budget-s", min=1.0, help="Wall time to spend, in seconds.")
    ] = None,
    max_candidates: Annotated[
        int | None, typer.Option("--max-candidates", min=1, help="Candidates to judge at most.")
    ] = None,
    proposer: Annotated[
        str | None, typer.Option("--proposer", help="Where rewrites come from: playbook.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Continue this run instead of starting one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the best kernel here.")
    ] = None,
    seed: Seed = None,
    fail_on_no_gain: Annotated[
        bool, typer.Option("--fail-on-no-gain", help="Exit with 3 unless something was gained.")
    ] = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Profile a kernel, try verified rewrites, and write the best one with the reasons."""
    from kopt.agent import optimize as agent
    from kopt.agent import summary
    from kopt.agent.proposers.playbook import PlaybookProposer
    from kopt.agent.record import GpuInfo
    from kopt.agent.store import RunStore, find_run
    from kopt.judge import device, open_session
    from kopt.tools.models import Budget, RunStatus
    from kopt.tools.target import load_target

    config = _config(
        gpu=gpu, sandbox=sandbox, budget_s=budget_s, max_candidates=max_candidates,
        proposer=proposer,
    )  # fmt: skip
    runs = Path(config.runs).absolute()
    if (target is None) == (resume is None):
        raise UsageError("give a target or --resume RUN, one of the two", "kopt optimize kernel.py")
    if output is not None and target is not None and output.resolve() == target.resolve():
        raise UsageError("--output names the target itself, which kopt never edits")
    if resume is not None:
        store = RunStore.open(find_run(runs, resume), write=True)
        spec = device(store.record().gpu.name)
    else:
        assert target is not None
        found = load_target(target, entry)
        spec = device(config.gpu)
        info = GpuInfo(name=spec.name, arch=f"sm_{spec.compute_capability}", kind="virtual")
        budget = Budget(wall_s=config.budget_s, candidates=config.max_candidates)
        store = agent.create(
            runs, found, gpu=info, sandbox=config.sandbox, proposer=config.proposer,
            budget=budget, seed=seed,
        )  # fmt: skip
    if not quiet:
        typer.echo(
            f"virtual {spec.marketing_name}; times are predictions. Rewrites: playbook"
            " (language-model proposers come later).",
            err=True,
        )
    asked = store.record().sandbox_asked
    try:
        document = agent.run(
            store,
            lambda t, secret, work: open_session(t, spec, asked, secret, work),
            PlaybookProposer(spec),
            _listener(quiet),
        )
    finally:
        store.release()
    if output is not None and document.best is not None and document.best.path is not None:
        _write(output, Path(document.best.path).read_text(encoding="utf-8"))
    if as_json:
        _print_json(document)
    else:
        typer.echo(summary.render(document), nl=False)
    if document.status is RunStatus.INTERRUPTED:
        typer.echo(
            f"interrupted; continue with: kopt optimize --resume {document.run_id}", err=True
        )
        raise typer.Exit(130)
    gained = document.status in {RunStatus.IMPROVED, RunStatus.PREDICTED_IMPROVED}
    if fail_on_no_gain and not gained:
        raise typer.Exit(3)


def _write(path: Path, text: str) -> None:
    from kopt.agent.files import explained

    with explained(path):
        path.write_text(text, encoding="utf-8")


def _listener(quiet: bool) -> Callable[[Event], None]:
    """One line on stderr for each event."""

    def show(event: Event) -> None:
        if quiet or event.event == "evaluating":
            return
        parts = [f"{event.wall_s:6.1f} s", event.event]
        if event.technique:
            parts.append(event.technique)
        if event.speedup is not None:
            parts.append(f"{event.speedup:.2f}x predicted")
        if event.status:
            parts.append(event.status)
        if event.text:
            parts.append(event.text)
        typer.echo("  ".join(parts)[:200], err=True)

    return show


def _progress(text: str) -> None:
    typer.echo(text, err=True)


@app.command()
def profile(
    target: Target,
    entry: Entry = None,
    gpu: Gpu = None,
    sandbox: Box = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Run a kernel on the virtual GPU and say what limits it, with every metric explained."""
    evaluation = _baseline(target, entry, gpu, sandbox, seed)
    if as_json:
        _print_json(evaluation)
        return
    for diagnosis, measured in zip(evaluation.diagnoses, evaluation.measurements, strict=True):
        typer.echo(
            f"{diagnosis.workload}: {measured.time_us:.1f} us {measured.provenance}"
            f" ({measured.low_us:.1f} to {measured.high_us:.1f}), limited by"
            f" {diagnosis.bottleneck.replace('_', ' ')}"
        )
        for sentence in diagnosis.evidence:
            typer.echo(f"  {sentence}")
        head = diagnosis.headroom
        typer.echo(
            f"  {head.ratio:.2f}x above the speed of light,"
            f" {head.speed_of_light_us:.1f} us predicted"
        )
        typer.echo("")
        for metric in diagnosis.metrics:
            value = f"{metric.value:,.2f}".rstrip("0").rstrip(".")
            typer.echo(
                f"  {metric.name:34}{value:>16} {metric.unit:12}{metric.provenance:10}"
                f" {metric.sentence}"
            )
        typer.echo(f"\n  not modelled: {'; '.join(diagnosis.unseen)}")


def _baseline(
    target: Path, entry: str | None, gpu: str | None, sandbox: str | None, seed: int | None
) -> Evaluation:
    import tempfile

    from kopt.judge import session

    config = _config(gpu=gpu, sandbox=sandbox)
    _progress(f"running {target.name} on the virtual GPU ...")
    with (
        session(target, entry, config.gpu, config.sandbox, _secret(seed)) as opened,
        tempfile.TemporaryDirectory() as folder,
    ):
        return opened.baseline(Path(folder))


@app.command()
def verify(
    candidate: Annotated[Path, typer.Argument(help="The rewritten file.")],
    against: Annotated[Path, typer.Option("--against", help="The original file.")],
    entry: Entry = None,
    gpu: Gpu = None,
    sandbox: Box = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Is a rewrite right? Exits with 3 if the verdict is not `pass`."""
    import tempfile

    from kopt.judge import session
    from kopt.tools.models import VerdictStatus
    from kopt.tools.target import read_source

    config = _config(gpu=gpu, sandbox=sandbox)
    source = read_source(candidate)
    _progress(f"judging {candidate.name} against {against.name} ...")
    with (
        session(against, entry, config.gpu, config.sandbox, _secret(seed)) as opened,
        tempfile.TemporaryDirectory() as folder,
    ):
        opened.baseline(Path(folder) / "baseline")
        evaluation = opened.evaluate(_candidate(source), Path(folder) / "candidate", full=True)
    if as_json:
        _print_json(evaluation)
    else:
        verdict = evaluation.verdict
        typer.echo(f"{verdict.status}: {verdict.summary}")
        for case in verdict.cases:
            error = f"  error {case.error_rms:.1e}" if case.error_rms is not None else ""
            typer.echo(f"  {case.status:13}{case.case}{error}  {case.detail}".rstrip())
        for note in (*verdict.evidence, *(f"skipped {s}" for s in verdict.skipped)):
            typer.echo(f"  {note}")
    if evaluation.verdict.status is not VerdictStatus.PASS:
        raise typer.Exit(3)


def _candidate(source: str):  # type: ignore[no-untyped-def]
    import hashlib

    from kopt.tools.models import Candidate

    return Candidate(
        id=hashlib.sha256(source.encode()).hexdigest()[:12],
        source=source,
        technique="given",
        rationale="given on the command line",
    )


@app.command()
def bench(
    target: Target,
    against: Annotated[
        Path | None, typer.Option("--against", help="Compare with this original.")
    ] = None,
    entry: Entry = None,
    gpu: Gpu = None,
    sandbox: Box = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Predict the time of a kernel, alone or against the original it replaces."""
    import tempfile

    from kopt.judge import session
    from kopt.tools.target import read_source

    if against is None:
        evaluation = _baseline(target, entry, gpu, sandbox, seed)
    else:
        config = _config(gpu=gpu, sandbox=sandbox)
        source = read_source(target)
        with (
            session(against, entry, config.gpu, config.sandbox, _secret(seed)) as opened,
            tempfile.TemporaryDirectory() as folder,
        ):
            opened.baseline(Path(folder) / "baseline")
            evaluation = opened.evaluate(_candidate(source), Path(folder) / "candidate", full=False)
    if as_json:
        _print_json(evaluation)
    else:
        typer.echo(f"{evaluation.verdict.status}: {evaluation.verdict.summary}")
        for m in evaluation.measurements:
            typer.echo(
                f"  {m.workload}: {m.time_us:.1f} us {m.provenance}"
                f" ({m.low_us:.1f} to {m.high_us:.1f})"
            )
        for c in evaluation.comparisons:
            typer.echo(
                f"  {c.workload}: {c.status}, {c.speedup:.2f}x"
                f" [{c.speedup_low:.2f}, {c.speedup_high:.2f}] {c.provenance}"
            )
    if not evaluation.measurements:
        raise typer.Exit(3)


@app.command()
def sweep(
    target: Target,
    entry: Entry = None,
    gpu: Gpu = None,
    sandbox: Box = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Try launch parameters of the costliest kernel; print a table and a `triton.Config` list."""
    import tempfile

    from kopt.agent.playbook.launch_parameters import configuration
    from kopt.agent.proposer import ProposalContext
    from kopt.agent.proposers.playbook import PlaybookProposer
    from kopt.judge import session
    from kopt.tools.models import VerdictStatus

    config = _config(gpu=gpu, sandbox=sandbox)
    rows: list[dict[str, object]] = []
    with (
        session(target, entry, config.gpu, config.sandbox, _secret(seed)) as opened,
        tempfile.TemporaryDirectory() as folder,
    ):
        base = Path(folder) / "baseline"
        evaluation = opened.baseline(base)
        context = ProposalContext(opened.target, None, evaluation, base, "tune")
        for candidate in PlaybookProposer(opened.spec).propose(context):
            _progress(candidate.rationale)
            judged = opened.evaluate(candidate, Path(folder) / candidate.id, full=False)
            good = judged.verdict.status is VerdictStatus.PASS and judged.measurements
            rows.append(
                {
                    "change": candidate.rationale,
                    "config": configuration(candidate.rationale),
                    "verdict": str(judged.verdict.status),
                    "time_us": judged.measurements[0].time_us if good else None,
                    "speedup": judged.comparisons[0].speedup if good else None,
                    "provenance": "predicted",
                }
            )
    rows.sort(key=lambda row: -float(str(row["speedup"] or 0)))
    if as_json:
        typer.echo(json.dumps({"target": str(target), "configurations": rows}, indent=2))
        return
    if not rows:
        typer.echo(
            "no launch parameter of this kernel is written as a number that could be changed"
        )
        return
    typer.echo(f"{'speedup':>9} {'us':>10}  change (times predicted)")
    for row in rows:
        speed = f"{row['speedup']:8.2f}x" if row["speedup"] else f"{row['verdict']:>9}"
        time = f"{row['time_us']:10.1f}" if row["time_us"] else " " * 10
        typer.echo(f"{speed} {time}  {row['change']}")
    typer.echo("\nconfigs = [")
    for row in rows:
        if row["speedup"] and float(str(row["speedup"])) >= 1.0:
            typer.echo(f"    {row['config']},")
    typer.echo("]")


@app.command()
def devices(as_json: Json = False) -> None:
    """List the GPUs that kopt knows."""
    from dataclasses import asdict

    from kopt.gpu.spec import list_specs

    specs = list_specs()
    if as_json:
        typer.echo(json.dumps([asdict(s) for s in specs], indent=2))
        return
    for s in specs:
        runs = "executes code" if s.executes else "facts only"
        typer.echo(
            f"{s.name:12} {s.marketing_name:28} sm_{s.compute_capability}  {s.sms:4} SMs"
            f"  {s.dram_bytes_per_s / 1e12:.2f} TB/s  {runs}"
        )


@app.command()
def init(
    target: Target,
    entry: Entry = None,
    as_json: Json = False,
) -> None:
    """Write `NAME.kopt.py` beside a file that lacks inputs, filled in as far as possible."""
    from kopt.agent.files import explained
    from kopt.tools.sidecar import init_sidecar
    from kopt.tools.target import sidecar_path

    text = init_sidecar(target, entry)
    path = sidecar_path(target)
    if path.exists():
        raise UsageError(f"{path} exists already", "edit it, or remove it first")
    with explained(path):
        path.write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"sidecar": str(path)}))
    else:
        typer.echo(f"wrote {path}; fill in what is marked, then: kopt optimize {target}")


@app.command()
def runs(as_json: Json = False) -> None:
    """List the runs of this folder, newest first."""
    from kopt.agent.store import read_record, run_folders

    config = _config()
    records = [read_record(folder) for folder in run_folders(Path(config.runs).absolute())]
    if as_json:
        typer.echo(json.dumps([json.loads(r.model_dump_json()) for r in records], indent=2))
        return
    if not records:
        typer.echo("no runs yet; start one with: kopt optimize kernel.py")
    for r in records:
        best = max((a.speedup or 0.0 for a in r.attempts), default=0.0)
        gain = f"{best:.2f}x predicted" if r.best else ""
        typer.echo(f"{r.run_id:44} {r.status:20} {gain:18} {Path(r.target.file).name}")


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="Run id or a part of it; `last` is the newest.")],
    as_json: Json = False,
) -> None:
    """Print the report of a run as Markdown."""
    from kopt.agent import document
    from kopt.agent import report as reports
    from kopt.agent.store import RunStore, find_run

    config = _config()
    store = RunStore.open(find_run(Path(config.runs).absolute(), run), write=False)
    built = document.build(store)
    if as_json:
        _print_json(built)
    else:
        typer.echo(reports.render(built), nl=False)


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
        if os.environ.get("KOPT_DEBUG"):
            traceback.print_exc()
        typer.echo(f"error: internal error: {type(error).__name__}: {error}", err=True)
        typer.echo("  run again with KOPT_DEBUG=1 for the traceback, and report it", err=True)
        sys.exit(1)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
