"""One run from its beginning, or from where it was killed, to its end."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kopt import __version__
from kopt.agent import document, report, seeds
from kopt.agent.budget import Meter
from kopt.agent.document import RunDocument
from kopt.agent.events import Event, EventName, Listener
from kopt.agent.files import explained
from kopt.agent.nodes import Deps, save_progress, write_journal
from kopt.agent.patch import unified
from kopt.agent.ports import Evaluator
from kopt.agent.proposer import Proposer
from kopt.agent.record import GpuInfo, RunRecord, TargetInfo
from kopt.agent.state import SearchState
from kopt.agent.store import RunStore, new_run_id
from kopt.gpu.errors import EnvironmentLacks, KoptError, TargetError
from kopt.tools.models import Budget, RunStatus, SandboxInfo, Spent, Target

MakeEvaluator = Callable[[Target, bytes, Path], Evaluator]
"""From the target, the run's secret and a scratch folder to a judge."""


def create(
    runs: Path,
    target: Target,
    *,
    gpu: GpuInfo,
    sandbox: str,
    proposer: str,
    budget: Budget,
    seed: int | None = None,
) -> RunStore:
    """A new run's folder. Raises `EnvironmentLacks` where it cannot be written."""
    run_id = new_run_id(Path(target.file).stem)
    secret = seeds.new_secret(seed)
    record = RunRecord(
        run_id=run_id,
        kopt_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        target=TargetInfo(file=target.file, entry=target.entry, language=target.language),
        target_sha256=hashlib.sha256(target.source.encode()).hexdigest(),
        gpu=gpu,
        sandbox=SandboxInfo(backend=sandbox),
        sandbox_asked=sandbox,
        proposer=proposer,
        budget=budget,
        seed_commitment=seeds.commitment(secret),
        environment=environment(),
    )
    store = RunStore.create(runs, record, target)
    seeds.store_secret(run_id, secret)
    return store


def environment() -> dict[str, str]:
    """Versions and machine facts that the numbers depend on."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": str(os.cpu_count()),
        "kopt": __version__,
    }
    for package in ("torch", "triton", "llvmlite", "numpy", "langgraph"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def run(
    store: RunStore, make_evaluator: MakeEvaluator, proposer: Proposer, listener: Listener
) -> RunDocument:
    """Carry a new or an unfinished run to its end and write its report.

    The search runs in a thread of its own, so that `KeyboardInterrupt` stops it at once: what is
    being judged is dropped, what is finished is on disk, and the document says `interrupted`.
    Raises `TargetError` when the target itself fails, `EnvironmentLacks` for missing tools.
    """
    if _is_finished(store):
        return document.build(store)
    search = _Search(store, make_evaluator, proposer, listener)
    thread = threading.Thread(target=search.carry_out, name="kopt-search", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except KeyboardInterrupt:
        store.stop_writing()
        search.close()
        thread.join(10.0)
        _remove_work_folder(store)
        _note_end(store, search, RunStatus.INTERRUPTED, "interrupted")
        return document.build(store)
    search.close()
    _remove_work_folder(store)
    if search.error is not None:
        _note_failure(store, search)
        raise search.error
    return document.build(store)


@dataclass
class _Search:
    """The part of a run that happens in the search thread."""

    store: RunStore
    make_evaluator: MakeEvaluator
    proposer: Proposer
    listener: Listener
    error: BaseException | None = None
    meter: Meter | None = None
    _evaluator: Evaluator | None = None
    _closing: threading.Lock = field(default_factory=threading.Lock)

    def carry_out(self) -> None:
        """The whole search; whatever goes wrong is kept in `error`."""
        try:
            self._search()
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        """Stop the judge, from any thread."""
        with self._closing:
            evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close()

    def _search(self) -> None:
        store, record = self.store, self.store.record()
        secret = seeds.load_secret(record.run_id, record.seed_commitment)
        self.meter = Meter(record.budget, spent_before(store))
        target = store.target()
        evaluator = self.make_evaluator(target, secret, _fresh_work_folder(store))
        with self._closing:
            self._evaluator = evaluator
        sandbox = evaluator.sandbox_info()
        store.save_record(
            record.model_copy(update={"sandbox": sandbox, "status": RunStatus.RUNNING})
        )
        deps = Deps(target, store, evaluator, self.proposer, self.meter, self.listener)
        resumed = store.checkpoint.exists()
        deps.tell("resumed" if resumed else "started", text=record.run_id)
        state = _walk(deps)
        _finish(deps, state)


def _is_finished(store: RunStore) -> bool:
    """Whether a resume has nothing left to do; the report is the last thing that a run writes."""
    ended = store.record().status not in {
        RunStatus.RUNNING,
        RunStatus.INTERRUPTED,
        RunStatus.FAILED,
    }
    return ended and (store.folder / "report.md").exists()


def spent_before(store: RunStore) -> Spent:
    """What earlier sessions of a run used, from what they left on disk."""
    spent = store.record().spent
    wall = max((event.wall_s for event in store.events()), default=0.0)
    judged = len(list(store.folder.glob("candidates/*/evaluation.json")))
    return spent.model_copy(update={"wall_s": max(wall, spent.wall_s), "candidates": judged})


def _walk(deps: Deps) -> SearchState:
    """Run the graph, from its last checkpoint if there is one."""
    from langchain_core.runnables import RunnableConfig

    from kopt.agent.graph import RECURSION_LIMIT, build_graph, checkpointer

    path = deps.store.checkpoint
    with explained(path), closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        graph = build_graph().compile(checkpointer=checkpointer(connection))
        config: RunnableConfig = {
            "configurable": {"thread_id": deps.store.folder.name},
            "recursion_limit": RECURSION_LIMIT,
            "max_concurrency": 1,  # one GPU, one sandbox: a second evaluation would only wait
        }
        known = graph.get_state(config).values
        deps.meter.continue_from(known.get("iteration", 0))
        output = graph.invoke(
            None if known else SearchState(),
            config,
            context=deps,
            durability="sync",
            version="v2",
        )
        return SearchState.model_validate(output.value, from_attributes=True)


def _finish(deps: Deps, state: SearchState) -> None:
    """Write the result: the best file, its patch, the journal and the report."""
    store = deps.store
    write_journal(store, state.attempts)
    save_progress(deps, state)
    record = store.record().model_copy(
        update={
            "status": state.status,
            "reason": state.stop,
            "best": state.best,
            "spent": deps.meter.spent,
        }
    )
    if state.best is not None:
        source = store.candidate(state.best).source
        store.save_text("best.py", source)
        store.save_text("best.patch", unified(deps.target.file, deps.target.source, source))
    store.save_record(record)
    deps.tell("finished", status=str(state.status), text=state.stop)
    store.save_text("report.md", report.render(document.build(store)))


def _fresh_work_folder(store: RunStore) -> Path:
    _remove_work_folder(store)
    work = store.folder / "work"
    with explained(work):
        work.mkdir()
    return work


def _remove_work_folder(store: RunStore) -> None:
    """Inputs and outputs of every case: hundreds of megabytes that nothing needs afterwards."""
    shutil.rmtree(store.folder / "work", ignore_errors=True)


def _note_end(store: RunStore, search: _Search, status: RunStatus, reason: str) -> None:
    """Write the end of a run that did not reach `conclude` into `run.json`."""
    from kopt.agent.select import ranked

    record = store.record()
    best = next(iter(ranked(record.attempts)), None)
    update: dict[str, object] = {
        "status": status,
        "reason": reason,
        "best": best.id if best is not None and (best.speedup or 0.0) > 1.0 else None,
    }
    if search.meter is not None:
        update["spent"] = search.meter.spent
    store.save_record(record.model_copy(update=update))
    wall = search.meter.spent.wall_s if search.meter else 0.0
    event: EventName = "interrupted" if status is RunStatus.INTERRUPTED else "error"
    store.append(Event(wall_s=round(wall, 3), event=event, text=reason))


def _note_failure(store: RunStore, search: _Search) -> None:
    """A target that fails has failed; anything else can be mended and resumed."""
    error = search.error
    status = RunStatus.FAILED if isinstance(error, TargetError) else RunStatus.INTERRUPTED
    reason = error.message if isinstance(error, KoptError) else f"internal error: {error!r}"
    with suppress(EnvironmentLacks):  # a full disk is the error that is being reported
        _note_end(store, search, status, reason)
