"""`kopt profile`, `kopt verify`, `kopt bench`: one look at a kernel, without a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.commands import options
from kopt.commands.output import Progress, print_json
from kopt.gpu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kopt.tools.models import Diagnosis, Evaluation, LaunchProfile, Measurement, Metric


def profile(
    target: options.Target,
    entry: options.Entry = None,
    workload: options.Workloads = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Only launches whose kernel matches this RE.")
    ] = None,
    launch: Annotated[
        int | None, typer.Option("--launch", min=0, help="Only the launch with this ordinal.")
    ] = None,
    gpu: options.Gpu = None,
    sandbox: options.Box = None,
    seed: options.Seed = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a kernel on the virtual GPU and say what limits it, with every metric explained."""
    evaluation = _baseline(target, entry, workload, gpu, sandbox, seed, Progress(quiet))
    if kernel is not None or launch is not None:
        evaluation = _narrowed(evaluation, kernel, launch)
    if as_json:
        print_json(evaluation)
    elif kernel is not None or launch is not None:
        for found in evaluation.profiles:
            for one in found.launches:
                _print_launch(found.workload, one)
    else:
        for diagnosis, time in zip(evaluation.diagnoses, evaluation.measurements, strict=True):
            _print_diagnosis(diagnosis, time)


def verify(
    candidate: Annotated[Path, typer.Argument(help="The rewritten file.")],
    against: Annotated[Path, typer.Option("--against", help="The original file.")],
    entry: options.Entry = None,
    gpu: options.Gpu = None,
    sandbox: options.Box = None,
    seed: options.Seed = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Is a rewrite right? Exits with 3 if the verdict is not `pass`."""
    from kopt.tools.models import VerdictStatus

    evaluation = _judged(
        candidate, against, entry, gpu, sandbox, seed, full=True, progress=Progress(quiet)
    )
    if as_json:
        print_json(evaluation)
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


def bench(
    target: options.Target,
    against: Annotated[
        Path | None, typer.Option("--against", help="Compare with this original.")
    ] = None,
    entry: options.Entry = None,
    workload: options.Workloads = None,
    gpu: options.Gpu = None,
    sandbox: options.Box = None,
    seed: options.Seed = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the time of a kernel, alone or against the original it replaces."""
    progress = Progress(quiet)
    if against is None:
        evaluation = _baseline(target, entry, workload, gpu, sandbox, seed, progress)
    else:
        evaluation = _judged(
            target, against, entry, gpu, sandbox, seed, workloads=workload, progress=progress
        )
    if as_json:
        print_json(evaluation)
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


def _baseline(
    target: Path,
    entry: str | None,
    workloads: list[str] | None,
    gpu: str | None,
    sandbox: str | None,
    seed: int | None,
    progress: Progress,
) -> Evaluation:
    from kopt.agent.seeds import new_secret
    from kopt.config import load
    from kopt.judge import chosen_target, session

    config = load({"gpu": gpu, "sandbox": sandbox})
    found = chosen_target(target, entry, workloads)
    with progress, tempfile.TemporaryDirectory() as folder:
        progress.now(f"running {target.name} on the virtual GPU ...")
        with session(found, config.gpu, config.sandbox, new_secret(seed)) as opened:
            return opened.baseline(Path(folder))


def _judged(
    candidate: Path,
    against: Path,
    entry: str | None,
    gpu: str | None,
    sandbox: str | None,
    seed: int | None,
    *,
    progress: Progress,
    workloads: list[str] | None = None,
    full: bool = False,
) -> Evaluation:
    from kopt.agent.seeds import new_secret
    from kopt.config import load
    from kopt.judge import chosen_target, given_candidate, session
    from kopt.tools.target import read_source

    config = load({"gpu": gpu, "sandbox": sandbox})
    rewritten = given_candidate(read_source(candidate))
    found = chosen_target(against, entry, workloads)
    with progress, tempfile.TemporaryDirectory() as folder:
        progress.now(f"judging {candidate.name} against {against.name} ...")
        with session(found, config.gpu, config.sandbox, new_secret(seed)) as opened:
            opened.baseline(Path(folder) / "baseline")
            return opened.evaluate(rewritten, Path(folder) / "candidate", full=full)


def _narrowed(evaluation: Evaluation, kernel: str | None, launch: int | None) -> Evaluation:
    import re

    try:
        pattern = re.compile(kernel or "")
    except re.error as error:
        raise UsageError(f"--kernel {kernel!r} is no regular expression: {error}") from error
    known = [one for found in evaluation.profiles for one in found.launches]
    profiles = []
    for found in evaluation.profiles:
        kept = [
            one
            for one in found.launches
            if pattern.search(one.kernel) and launch in (None, one.ordinal)
        ]
        profiles.append(found.model_copy(update={"launches": tuple(kept), "operators": ()}))
    if not any(found.launches for found in profiles):
        listed = ", ".join(dict.fromkeys(f"{one.ordinal}: {one.kernel}" for one in known))
        raise UsageError("no launch is left", f"there are: {listed or 'none'}")
    return evaluation.model_copy(update={"profiles": tuple(profiles), "diagnoses": ()})


def _print_diagnosis(diagnosis: Diagnosis, time: Measurement) -> None:
    typer.echo(
        f"{diagnosis.workload}: {time.time_us:.1f} us {time.provenance}"
        f" ({time.low_us:.1f} to {time.high_us:.1f}), limited by"
        f" {diagnosis.bottleneck.replace('_', ' ')}"
    )
    for sentence in diagnosis.evidence:
        typer.echo(f"  {sentence}")
    head = diagnosis.headroom
    typer.echo(
        f"  {head.ratio:.2f}x above the speed of light, {head.speed_of_light_us:.1f} us predicted\n"
    )
    _print_metrics(diagnosis.metrics)
    typer.echo(f"\n  not modelled: {'; '.join(diagnosis.unseen)}")


def _print_launch(workload: str, launch: LaunchProfile) -> None:
    grid = "x".join(str(n) for n in launch.grid)
    typer.echo(
        f"{workload}, launch {launch.ordinal}: {launch.kernel}, grid {grid},"
        f" {launch.threads_per_cta} threads, {launch.time_us:.1f} us predicted"
    )
    _print_metrics(launch.metrics)
    for line in launch.hot_lines:
        typer.echo(f"  {line}")


def _print_metrics(metrics: Iterable[Metric]) -> None:
    for metric in metrics:
        value = f"{metric.value:,.2f}".rstrip("0").rstrip(".")
        typer.echo(
            f"  {metric.name:34}{value:>16} {metric.unit:12}{metric.provenance:10}"
            f" {metric.sentence}".rstrip()
        )
