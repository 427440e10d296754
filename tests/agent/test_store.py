"""A run's folder: what goes in comes out, and what is not whole is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kopt.agent.events import Event
from kopt.agent.files import write_atomically
from kopt.agent.record import SCHEMA_VERSION, GpuInfo, RunRecord, TargetInfo
from kopt.agent.store import Closed, RunStore, find_run, read_record, run_folders
from kopt.gpu.errors import EnvironmentLacks, UsageError
from kopt.tools.models import (
    Budget,
    Candidate,
    Effect,
    Evaluation,
    Guidance,
    SandboxInfo,
    Target,
    Verdict,
    VerdictStatus,
    Workload,
)

TARGET = Target(
    file="/nowhere/k.py", source="x = 1\n", language="triton", entry="f",
    workloads=(Workload(name="w", params={"n": 3}),),
)  # fmt: skip
CANDIDATE = Candidate(id="abc", source="x = 2  # µs\n", technique="two", rationale="more")


def record(run_id: str = "k-1", created: str = "2026-01-01T00:00:00") -> RunRecord:
    return RunRecord(
        run_id=run_id, kopt_version="0", created=created, target_sha256="0",
        target=TargetInfo(file="/nowhere/k.py", entry="f", language="triton"),
        gpu=GpuInfo(name="a100", arch="sm_80", kind="virtual"), proposer="playbook",
        sandbox=SandboxInfo(backend="local"), budget=Budget(), seed_commitment="0",
    )  # fmt: skip


def evaluation(*, full: bool, summary: str = "") -> Evaluation:
    verdict = Verdict(status=VerdictStatus.RACE, summary=summary)
    return Evaluation(candidate="abc", full=full, verdict=verdict)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "runs", record(), TARGET)


def reopened(store: RunStore) -> RunStore:
    return RunStore.open(store.folder, write=False)


def test_everything_comes_back(store: RunStore) -> None:
    guidance = Guidance(
        candidate="abc", technique="two", evidence=("e",), change="c",
        predicted=(Effect(metric="dram_read_bytes"),), observed=(), verdict=VerdictStatus.RACE,
    )  # fmt: skip
    events = [Event(wall_s=0.5, event="started"), Event(wall_s=1.0, event="finished", text="µ")]
    store.save_candidate(CANDIDATE)
    store.save_evaluation(evaluation(full=False, summary="quick"))
    store.save_guidance([guidance], "# Guidance\n")
    for event in events:
        store.append(event)
    again = reopened(store)
    assert again.record() == record()
    assert again.target() == TARGET
    assert again.candidate("abc") == CANDIDATE
    assert (again.candidate_folder("abc") / "source.py").read_text() == CANDIDATE.source
    assert again.guidance() == [guidance]
    assert again.events() == events
    assert again.baseline() is None


def test_full_evaluation_stands_beside_the_quick_one_and_speaks_first(store: RunStore) -> None:
    store.save_candidate(CANDIDATE)
    assert store.best_known("abc") is None
    quick, full = evaluation(full=False), evaluation(full=True)
    store.save_evaluation(quick)
    assert store.best_known("abc") == quick
    store.save_evaluation(full)
    assert store.best_known("abc") == full
    assert store.evaluation("abc") == quick


def test_candidate_is_kept_as_it_came_first(store: RunStore) -> None:
    store.save_candidate(CANDIDATE)
    store.save_candidate(CANDIDATE.model_copy(update={"rationale": "another"}))
    assert store.candidate("abc").rationale == "more"


@pytest.mark.parametrize("torn", [b'{"wall_s": 1.0, "eve', '{"text": "µ'.encode()[:-1]])
def test_event_cut_off_by_a_crash_is_skipped(store: RunStore, torn: bytes) -> None:
    store.append(Event(wall_s=0.5, event="started"))
    with (store.folder / "events.jsonl").open("ab") as file:
        file.write(torn)
    assert [e.event for e in store.events()] == ["started"]
    store.append(Event(wall_s=2.0, event="resumed"))
    store.append(Event(wall_s=3.0, event="finished"))
    assert [e.event for e in store.events()] == ["started", "resumed", "finished"]


def test_one_writer_and_any_number_of_readers(store: RunStore) -> None:
    reopened(store)
    with pytest.raises(UsageError, match="in use by process"):
        RunStore.open(store.folder, write=True)
    store.release()
    RunStore.open(store.folder, write=True).release()


def test_after_an_interrupt_only_the_record_is_written(store: RunStore) -> None:
    store.stop_writing()
    with pytest.raises(Closed):
        store.save_text("report.md", "late")
    assert not (store.folder / "report.md").exists()
    store.save_record(record().model_copy(update={"reason": "interrupted"}))
    assert store.record().reason == "interrupted"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "damaged"),
        ("[]", "format None"),
        (json.dumps({"schema_version": SCHEMA_VERSION - 1, "kopt_version": "0.0.9"}), "kopt 0.0.9"),
        (json.dumps({"schema_version": SCHEMA_VERSION + 1}), "format 2"),
        (json.dumps({"schema_version": SCHEMA_VERSION}), "run_id"),
        (b"\xff\xfe", "damaged"),
    ],
)
def test_record_that_cannot_be_read(store: RunStore, text: str | bytes, says: str) -> None:
    raw = text if isinstance(text, bytes) else text.encode()
    (store.folder / "run.json").write_bytes(raw)
    with pytest.raises(UsageError, match=says):
        read_record(store.folder)
    assert (store.folder / "run.json").read_bytes() == raw


def test_finding_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert run_folders(runs) == []
    with pytest.raises(UsageError, match="there are: none"):
        find_run(runs, "last")
    for run_id, created in (("soft-b", "2026-01-01"), ("soft-a", "2026-01-02"), ("so", "2025")):
        RunStore.create(runs, record(run_id, created), TARGET).release()
    (runs / "no_run").mkdir()
    assert [f.name for f in run_folders(runs)] == ["so", "soft-b", "soft-a"]
    assert find_run(runs, "last").name == "soft-a"
    assert find_run(runs, "soft-b").name == "soft-b"
    assert find_run(runs, "so").name == "so"
    assert find_run(tmp_path, str(runs / "so")).name == "so"
    with pytest.raises(UsageError, match="could be 2 runs"):
        find_run(runs, "soft")
    with pytest.raises(UsageError, match="no run 'x'"):
        find_run(runs, "x")


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_atomically(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EnvironmentLacks, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
