"""The loop with a judge whose answers are written in the source that it judges.

Run as a script this module is the process that gets killed: `test_graph.py RUNS [RUN]`.
"""

from __future__ import annotations

import _thread
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kopt.agent import optimize
from kopt.agent.document import RunDocument
from kopt.agent.events import Event, Listener
from kopt.agent.proposer import ProposalContext
from kopt.agent.record import GpuInfo
from kopt.agent.store import RunStore
from kopt.gpu.errors import EnvironmentLacks, KoptError, TargetError
from kopt.tools.models import (
    Budget,
    Candidate,
    Comparison,
    ComparisonStatus,
    Diagnosis,
    Evaluation,
    Headroom,
    Measurement,
    Provenance,
    RunStatus,
    SandboxInfo,
    Target,
    Verdict,
    VerdictStatus,
    Workload,
)

BASE_US = 100.0
LIGHT_US = 10.0
TREE = {
    "100": ("80", "120", "wrong", "60 but wrong in full"),
    "80": ("50", "70"),
    "60 but wrong in full": ("40 but wrong in full",),
    "50": ("45",),
}
"""Each source with the rewrites that are proposed for it; a source begins with its time in µs."""


class WrittenJudge:
    """Reads the time from the source, and notes in `log` what it was asked."""

    def __init__(self, log: Path, error: KoptError | None = None) -> None:
        self.log = log
        self.error = error
        self.closed = False

    def sandbox_info(self) -> SandboxInfo:
        return SandboxInfo(backend="none")

    def baseline(self, folder: Path) -> Evaluation:
        assert folder.is_dir()
        if self.error is not None:
            raise self.error
        return self._answer("baseline", "100", full=True)

    def evaluate(self, candidate: Candidate, folder: Path, *, full: bool) -> Evaluation:
        assert folder.is_dir()
        with self.log.open("a") as file:
            file.write(f"{candidate.id} {'full' if full else 'quick'}\n")
        return self._answer(candidate.id, candidate.source, full=full)

    def close(self) -> None:
        self.closed = True

    def _answer(self, candidate: str, source: str, *, full: bool) -> Evaluation:
        if source == "wrong" or (full and source.endswith("in full")):
            verdict = Verdict(status=VerdictStatus.MISMATCH, summary="written so")
            return Evaluation(candidate=candidate, full=full, verdict=verdict)
        time_us = float(source.split()[0])
        speedup = BASE_US / time_us
        return Evaluation(
            candidate=candidate,
            full=full,
            verdict=Verdict(status=VerdictStatus.PASS, summary=""),
            measurements=(
                Measurement(
                    workload="w", time_us=time_us, low_us=time_us, high_us=time_us,
                    provenance=Provenance.PREDICTED,
                ),
            ),
            comparisons=() if candidate == "baseline" else (
                Comparison(
                    workload="w", speedup=speedup, speedup_low=0.9 * speedup,
                    speedup_high=1.1 * speedup, provenance=Provenance.PREDICTED,
                    status=ComparisonStatus.FASTER if speedup > 1.1 else ComparisonStatus.SAME,
                ),
            ),
            diagnoses=(_diagnosis(time_us),),
        )  # fmt: skip


class SpentJudge(WrittenJudge):
    """Says of every target that it is as fast as can be."""

    def baseline(self, folder: Path) -> Evaluation:
        return super().baseline(folder).model_copy(update={"diagnoses": (_diagnosis(LIGHT_US),)})


def _diagnosis(time_us: float) -> Diagnosis:
    ratio = time_us / LIGHT_US
    headroom = Headroom(speed_of_light_us=LIGHT_US, ratio=ratio, exceeds_interval=ratio > 1.2)
    return Diagnosis(
        workload="w", bottleneck="latency", kernel="k", evidence=(), metrics=(), headroom=headroom
    )


class TreeProposer:
    """Proposes what the tree holds."""

    name = "tree"

    def __init__(self, tree: dict[str, tuple[str, ...]]) -> None:
        self.tree = tree

    def propose(self, context: ProposalContext) -> Sequence[Candidate]:
        if context.phase == "tune":
            return ()
        return [
            Candidate(
                id=identity(source),
                source=source,
                parent=context.parent.id if context.parent else None,
                technique=f"to_{source.split()[0]}",
                rationale="it is in the tree",
            )
            for source in self.tree.get(context.source, ())
        ]


def identity(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def silent(event: Event) -> None:
    pass


def new_store(runs: Path, budget: Budget | None = None) -> RunStore:
    target = Target(
        file="/nowhere/k.py", source="100", language="triton", entry="f",
        workloads=(Workload(name="w"),),
    )  # fmt: skip
    return optimize.create(
        runs, target, gpu=GpuInfo(name="a100", arch="sm_80", kind="virtual"), sandbox="auto",
        proposer="tree", budget=budget or Budget(wall_s=None), seed=1,
    )  # fmt: skip


def carry(
    store: RunStore,
    judge: WrittenJudge,
    tree: dict[str, tuple[str, ...]] = TREE,
    listener: Listener = silent,
) -> RunDocument:
    try:
        return optimize.run(store, lambda *_: judge, TreeProposer(tree), listener)
    finally:
        store.release()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_STATE_DIR", str(tmp_path / "state"))


def test_best_that_holds_in_full_wins(tmp_path: Path) -> None:
    judge = WrittenJudge(tmp_path / "log")
    document = carry(new_store(tmp_path / "runs"), judge)
    assert document.status is RunStatus.PREDICTED_IMPROVED
    assert document.best is not None
    assert document.best.id == identity("45")
    assert document.best.technique == "to_80 + to_50 + to_45"
    assert document.best.speedup == pytest.approx(100 / 45)
    assert document.best.judged_in_full
    assert Path(document.best.path or "").read_text() == "45"
    assert judge.closed
    asked = judge.log.read_text().splitlines()
    assert f"{identity('40 but wrong in full')} full" in asked, "the faster one was not confirmed"
    assert len(asked) == len(set(asked)), "something was judged twice"
    statuses = {row.id: row.verdict.status for row in document.candidates}
    assert statuses[identity("wrong")] is VerdictStatus.MISMATCH


@pytest.mark.parametrize(
    "rewrites",
    [
        (),
        ("wrong",),
        ("120",),
        ("99",),  # too small to be news
        ("95",),  # inside the interval
        ("60 but wrong in full",),
    ],
)
def test_no_gain(tmp_path: Path, rewrites: tuple[str, ...]) -> None:
    judge = WrittenJudge(tmp_path / "log")
    document = carry(new_store(tmp_path / "runs"), judge, {"100": rewrites})
    assert document.status is RunStatus.NO_GAIN
    assert document.best is None
    assert len(document.candidates) == len(rewrites)


def test_no_headroom_tries_nothing(tmp_path: Path) -> None:
    judge = SpentJudge(tmp_path / "log")
    document = carry(new_store(tmp_path / "runs"), judge)
    assert document.status is RunStatus.NO_HEADROOM
    assert document.candidates == ()
    assert not judge.log.exists()


def test_budget_of_candidates_is_kept(tmp_path: Path) -> None:
    judge = WrittenJudge(tmp_path / "log")
    budget = Budget(wall_s=None, candidates=2)
    document = carry(new_store(tmp_path / "runs", budget), judge)
    assert document.spent.candidates == 2
    assert document.best is not None
    assert document.best.id == identity("80")


def test_target_that_fails(tmp_path: Path) -> None:
    store = new_store(tmp_path / "runs")
    judge = WrittenJudge(tmp_path / "log", TargetError("it divides by zero"))
    with pytest.raises(TargetError):
        carry(store, judge)
    assert store.record().status is RunStatus.FAILED
    assert store.record().reason == "it divides by zero"
    assert judge.closed


def test_lacking_tool_can_be_mended_and_the_run_resumed(tmp_path: Path) -> None:
    store = new_store(tmp_path / "runs")
    with pytest.raises(EnvironmentLacks):
        carry(store, WrittenJudge(tmp_path / "log", EnvironmentLacks("no ptxas")))
    assert store.record().status is RunStatus.INTERRUPTED
    again = RunStore.open(store.folder, write=True)
    document = carry(again, WrittenJudge(tmp_path / "log"))
    assert document.status is RunStatus.PREDICTED_IMPROVED


def test_interrupt_keeps_what_is_known(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.event == "evaluated" and event.technique == "to_50":
            _thread.interrupt_main()
            time.sleep(1.0)

    store = new_store(tmp_path / "runs")
    document = carry(store, WrittenJudge(tmp_path / "log"), listener=stop)
    assert document.status is RunStatus.INTERRUPTED
    finished = finished_evaluations(store.folder)
    assert f"{identity('50')} quick" in finished
    second = WrittenJudge(tmp_path / "second")
    document = carry(RunStore.open(store.folder, write=True), second)
    assert document.best is not None
    assert document.best.id == identity("45")
    assert not finished & set(second.log.read_text().splitlines())


# A real process, killed ----------------------------------------------------------------------

MOMENTS = [
    ("started", 1),
    ("baseline", 1),
    ("proposed", 1),
    ("evaluating", 1),
    ("evaluated", 1),
    ("evaluating", 3),
    ("proposed", 2),
    ("evaluated", 6),
    ("proposed", 3),
    ("confirming", 1),
    ("confirming", 2),
    ("finished", 1),
]
"""The process kills itself with SIGKILL right after the n-th event of that name is on disk."""


def finished_evaluations(folder: Path) -> set[str]:
    """In the words of the judge's log."""
    kinds = {"evaluation.json": "quick", "evaluation_full.json": "full"}
    return {
        f"{path.parent.name} {kinds[path.name]}"
        for path in folder.glob("candidates/*/evaluation*.json")
        if path.parent.name != "baseline"
    }


def child(runs: Path, log: Path, *run: str, die: str = "") -> int:
    done = subprocess.run(
        [sys.executable, __file__, runs, log, *run],
        env={**os.environ, "DIE_AT": die}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 16])
def test_killed_at_many_moments(tmp_path: Path, rounds: int) -> None:
    """The same end as without a kill, also where the budget ends it, and nothing judged again."""
    budget = Budget(wall_s=None, iterations=rounds)
    expected = carry(new_store(tmp_path / "whole", budget), WrittenJudge(tmp_path / "whole.log"))
    assert expected.best is not None
    for event, count in MOMENTS:
        moment = f"{event}:{count}"
        runs = tmp_path / moment.replace(":", "_")
        store = new_store(runs, budget)
        store.release()
        killed = child(runs, tmp_path / "log", store.folder.name, die=moment) != 0
        assert killed or rounds < 16, f"{moment} never comes"
        finished = finished_evaluations(store.folder)
        judge = WrittenJudge(tmp_path / f"{runs.name}.log")
        document = carry(RunStore.open(store.folder, write=True), judge)
        assert document.status is expected.status, moment
        assert document.best is not None
        assert document.best.id == expected.best.id, moment
        assert document.candidates == expected.candidates, moment
        assert document.spent.candidates == expected.spent.candidates, moment
        assert document.spent.iterations == expected.spent.iterations, moment
        asked = judge.log.read_text().splitlines() if judge.log.exists() else []
        assert not finished & set(asked), moment


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path) -> None:
    """Every process dies after its first evaluation; the run ends all the same."""
    runs, log = tmp_path / "runs", tmp_path / "log"
    store = new_store(runs)
    store.release()
    for _ in range(20):
        if child(runs, log, store.folder.name, die="evaluated:1") == 0:
            break
    else:
        pytest.fail("no progress across kills")
    record = store.record()
    assert record.best == identity("45")
    asked = log.read_text().splitlines()
    assert len(asked) == len(set(asked)), "a finished evaluation was repeated"
    assert record.spent.candidates == len([line for line in asked if line.endswith("quick")])


def _main(runs: Path, log: Path, run: str) -> None:
    name, _, count = os.environ["DIE_AT"].partition(":")
    seen = 0

    def die(event: Event) -> None:
        nonlocal seen
        seen += event.event == name
        if name and seen == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    carry(RunStore.open(runs / run, write=True), WrittenJudge(log), listener=die)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
