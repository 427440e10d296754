"""`kopt optimize`: a run from its beginning, or from where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.commands import options
from kopt.commands.output import Progress, print_json
from kopt.gpu.errors import UsageError

if TYPE_CHECKING:
    from kopt.agent.document import RunDocument
    from kopt.agent.store import RunStore
    from kopt.config import Config


def optimize(
    target: Annotated[
        Path | None, typer.Argument(help="Python file with Triton kernels and an entry.")
    ] = None,
    entry: options.Entry = None,
    workload: options.Workloads = None,
    gpu: options.Gpu = None,
    sandbox: options.Box = None,
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
    seed: options.Seed = None,
    fail_on_no_gain: Annotated[
        bool, typer.Option("--fail-on-no-gain", help="Exit with 3 unless something was gained.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Profile a kernel, try verified rewrites, and write the best one with the reasons."""
    from kopt.agent import summary
    from kopt.config import load
    from kopt.tools.models import RunStatus

    config = load(
        {
            "gpu": gpu,
            "sandbox": sandbox,
            "budget_s": budget_s,
            "max_candidates": max_candidates,
            "proposer": proposer,
        }
    )
    if (target is None) == (resume is None):
        raise UsageError("give a target or --resume RUN, one of the two", "kopt optimize kernel.py")
    if resume is not None:
        decided = {
            "--entry": entry, "--workload": workload, "--gpu": gpu, "--sandbox": sandbox,
            "--proposer": proposer, "--seed": seed,
        }  # fmt: skip
        given = [name for name, value in decided.items() if value is not None]
        if given:
            raise UsageError(
                f"{', '.join(given)} was decided when the run began",
                f"continue it as it is: kopt optimize --resume {resume}",
            )
        store = _resumed(config, resume, budget_s, max_candidates)
    else:
        assert target is not None
        _refuse_overwriting(target, output)
        store = _created(config, target, entry, workload, seed)
    try:
        if output is not None:
            _refuse_overwriting(Path(store.record().target.file), output)
        document = _carry_out(store, Progress(quiet))
    finally:
        store.release()
    if output is not None and document.best is not None and document.best.path is not None:
        _write(output, Path(document.best.path).read_text(encoding="utf-8"))
    if as_json:
        print_json(document)
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


def _created(
    config: Config, path: Path, entry: str | None, workloads: list[str] | None, seed: int | None
) -> RunStore:
    from kopt.agent import optimize as agent
    from kopt.agent.record import GpuInfo
    from kopt.judge import chosen_target, device
    from kopt.tools.models import Budget

    found = chosen_target(path, entry, workloads)
    spec = device(config.gpu)
    return agent.create(
        Path(config.runs).absolute(),
        found,
        gpu=GpuInfo(name=spec.name, arch=f"sm_{spec.compute_capability}", kind="virtual"),
        sandbox=config.sandbox,
        proposer=config.proposer,
        budget=Budget(wall_s=config.budget_s, candidates=config.max_candidates),
        seed=seed,
    )


def _resumed(
    config: Config, run: str, budget_s: float | None, max_candidates: int | None
) -> RunStore:
    """An earlier run; its budget may be raised, everything else stays."""
    from kopt.agent.store import RunStore, find_run

    store = RunStore.open(find_run(Path(config.runs).absolute(), run), write=True)
    asked = {"wall_s": budget_s, "candidates": max_candidates}
    changed = {name: value for name, value in asked.items() if value is not None}
    if changed:
        record = store.record()
        budget = record.budget.model_copy(update=changed)
        store.save_record(record.model_copy(update={"budget": budget}))
    return store


def _carry_out(store: RunStore, progress: Progress) -> RunDocument:
    from kopt.agent import optimize as agent
    from kopt.agent.proposers.playbook import PlaybookProposer
    from kopt.judge import device, open_session

    record = store.record()
    spec = device(record.gpu.name)
    with progress:
        progress.say(
            f"virtual {spec.marketing_name}; times are predictions. Rewrites: playbook"
            " (language-model proposers come later)."
        )
        return agent.run(
            store,
            lambda t, secret, work: open_session(t, spec, record.sandbox_asked, secret, work),
            PlaybookProposer(spec),
            progress.event,
        )


def _refuse_overwriting(target: Path, output: Path | None) -> None:
    if output is not None and output.resolve() == target.resolve():
        raise UsageError(
            "--output names the target itself, which kopt never edits", "choose another file"
        )


def _write(path: Path, text: str) -> None:
    from kopt.agent.files import explained

    with explained(path):
        path.write_text(text, encoding="utf-8")
