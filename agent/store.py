"""A run's folder: everything that a resume or a report needs, whole at every moment."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path

from pydantic import BaseModel, ValidationError

from kopt.agent.events import Event
from kopt.agent.files import explained, write_atomically
from kopt.agent.lock import RunLock
from kopt.agent.record import SCHEMA_VERSION, RunRecord
from kopt.agent.state import BASELINE
from kopt.gpu.errors import KoptError, UsageError
from kopt.tools.models import Candidate, Evaluation, Guidance, Target


class Closed(KoptError):
    """The store takes no more writes: the run was interrupted."""

    exit_code = 130


class RunStore:
    """One run on disk. Only the process that holds the lock writes.

    A finished evaluation is stored before anything else learns of it, so that a process killed at
    any moment loses only what it was computing.
    """

    def __init__(self, folder: Path, lock: RunLock | None = None) -> None:
        self.folder = folder
        self._lock = lock
        self._closed = False

    # Opening ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, runs: Path, record: RunRecord, target: Target) -> RunStore:
        """A new run. Raises `EnvironmentLacks` where the folder cannot be written."""
        folder = runs / record.run_id
        with explained(folder):
            (folder / "candidates").mkdir(parents=True)
        store = cls(folder, RunLock(folder / "lock"))
        store._write("target.json", target)
        store.save_record(record)
        return store

    @classmethod
    def open(cls, folder: Path, *, write: bool) -> RunStore:
        """An existing run. Raises `UsageError` for another version's, or one in use."""
        read_record(folder)
        return cls(folder, RunLock(folder / "lock") if write else None)

    def stop_writing(self) -> None:
        """From now on refuse writes, from whatever thread they come."""
        self._closed = True

    def release(self) -> None:
        """Let another process have the run."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # The run ---------------------------------------------------------------------------------

    def record(self) -> RunRecord:
        """`run.json`."""
        return read_record(self.folder)

    def save_record(self, record: RunRecord) -> None:
        """Replace `run.json`; allowed after `stop_writing`, which is how an interrupt is noted."""
        write_atomically(self.folder / "run.json", record.model_dump_json(indent=1) + "\n")

    def target(self) -> Target:
        """The target as it was when the run began."""
        return Target.model_validate_json((self.folder / "target.json").read_text())

    @property
    def checkpoint(self) -> Path:
        """The graph's own database."""
        return self.folder / "checkpoint.sqlite"

    def append(self, event: Event) -> None:
        """Add a line to `events.jsonl`."""
        path = self.folder / "events.jsonl"
        line = event.model_dump_json(exclude_defaults=True).encode() + b"\n"
        with explained(path), path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a crash cut the last line off: leave it alone
                    line = b"\n" + line
            file.write(line)

    def events(self) -> list[Event]:
        """All events; a line cut off by a crash is skipped."""
        path = self.folder / "events.jsonl"
        found = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                found.append(Event.model_validate_json(line))
            except ValidationError:
                continue
        return found

    # Candidates ------------------------------------------------------------------------------

    def candidate_folder(self, candidate: str) -> Path:
        """Where everything about a candidate lies; `baseline` is the target itself."""
        return self.folder / "candidates" / candidate

    def save_candidate(self, candidate: Candidate) -> None:
        """Keep a proposal; the same one twice is the same."""
        folder = self.candidate_folder(candidate.id)
        with explained(folder):
            folder.mkdir(exist_ok=True)
        if not (folder / "candidate.json").exists():
            self._write(f"candidates/{candidate.id}/source.py", candidate.source)
            self._write(f"candidates/{candidate.id}/candidate.json", candidate)

    def candidate(self, candidate: str) -> Candidate:
        """A stored proposal."""
        path = self.candidate_folder(candidate) / "candidate.json"
        return Candidate.model_validate_json(path.read_text())

    def work_folder(self, candidate: str) -> Path:
        """An existing folder for the judge to leave traces and facts in."""
        folder = self.candidate_folder(candidate)
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def save_evaluation(self, evaluation: Evaluation) -> None:
        """Keep a finished evaluation."""
        name = _evaluation_name(evaluation.full)
        self._write(f"candidates/{evaluation.candidate}/{name}", evaluation)

    def evaluation(self, candidate: str, *, full: bool = False) -> Evaluation | None:
        """A finished evaluation; None where it was never finished."""
        path = self.candidate_folder(candidate) / _evaluation_name(full)
        if not path.exists():
            return None
        return Evaluation.model_validate_json(path.read_text())

    def best_known(self, candidate: str) -> Evaluation | None:
        """The full evaluation if there is one, else the quick one."""
        return self.evaluation(candidate, full=True) or self.evaluation(candidate)

    def baseline(self) -> Evaluation | None:
        """The target's own evaluation."""
        return self.evaluation(BASELINE, full=True)

    # Results ---------------------------------------------------------------------------------

    def save_guidance(self, guidance: list[Guidance], markdown: str) -> None:
        """Keep the journal, for people and for programs."""
        rows = [g.model_dump(mode="json") for g in guidance]
        self._write("guidance.json", json.dumps(rows, indent=1) + "\n")
        self._write("guidance.md", markdown)

    def guidance(self) -> list[Guidance]:
        """The journal."""
        path = self.folder / "guidance.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        return [Guidance.model_validate(row) for row in rows]

    def save_text(self, name: str, text: str) -> Path:
        """Keep `report.md`, `best.py`, `best.patch`."""
        self._write(name, text)
        return self.folder / name

    def _write(self, name: str, content: str | BaseModel) -> None:
        if self._closed:
            raise Closed("the run was interrupted")
        text = content if isinstance(content, str) else content.model_dump_json(indent=1) + "\n"
        write_atomically(self.folder / name, text)


def _evaluation_name(full: bool) -> str:
    return "evaluation_full.json" if full else "evaluation.json"


def new_run_id(stem: str) -> str:
    """A readable name that is new: `softmax-20261201-101500-3f2a`."""
    clean = "".join(c if c.isalnum() or c in "_-" else "_" for c in stem)[:40] or "run"
    return f"{clean}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def read_record(folder: Path) -> RunRecord:
    """`run.json` of a folder. Raises `UsageError` saying what is wrong with it."""
    path = folder / "run.json"
    if not path.exists():
        raise UsageError(f"{folder} is no run: it has no run.json", "kopt runs lists the runs here")
    try:
        raw = json.loads(path.read_text())
        version = raw.get("schema_version") if isinstance(raw, dict) else None
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}", "start a new run") from error
    if version != SCHEMA_VERSION:
        writer = raw.get("kopt_version", "another version") if isinstance(raw, dict) else "unknown"
        raise UsageError(
            f"{folder} was written by kopt {writer} in run format {version}; this kopt reads"
            f" format {SCHEMA_VERSION}",
            "nothing in it was changed; start a new run, or use that version of kopt",
        )
    try:
        return RunRecord.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{path} is damaged: {where}: {first['msg']}"
        raise UsageError(message, "start a new run") from error


def find_run(runs: Path, name: str) -> Path:
    """The folder of a run by its path, id or unique beginning; `last` is the newest.

    Raises `UsageError` where there is none or more than one.
    """
    direct = Path(name).expanduser()
    if (direct / "run.json").exists():
        return direct.absolute()
    known = run_folders(runs)
    if name == "last" and known:
        return known[-1]
    exact = [f for f in known if f.name == name]
    matches = exact or [f for f in known if f.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(f.name for f in matches[:5])
        raise UsageError(f"{name!r} could be {len(matches)} runs: {listed}", "give more of the id")
    listed = ", ".join(f.name for f in known[-5:]) or "none"
    raise UsageError(f"no run {name!r} in {runs}; there are: {listed}", "kopt runs lists them")


def run_folders(runs: Path) -> list[Path]:
    """All runs' folders, oldest first."""
    if not runs.is_dir():
        return []
    found = [f for f in runs.iterdir() if (f / "run.json").exists()]
    return sorted(found, key=lambda f: (_born(f), f.name))


def _born(folder: Path) -> str:
    try:
        return str(json.loads((folder / "run.json").read_text()).get("created", ""))
    except (ValueError, OSError, AttributeError):
        return ""
