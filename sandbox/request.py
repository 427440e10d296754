"""What the supervisor asks of the warm worker: plain data that travels as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kopt.sandbox.containment import Containment
from kopt.sandbox.protocol import Job, Limits

MAX_MESSAGE_BYTES = 1 << 17
PASSED_ON = ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables of the caller that libraries need and that hold no secrets."""
TOKEN = "KOPT_WORKER"
"""Marks every process of one worker in its environment."""


def group_prefix(token: str) -> str:
    """How the control groups of one worker's jobs are called."""
    return f"kopt-{token[:12]}-"


@dataclass(frozen=True)
class Boot:
    """How to start a warm worker."""

    functions: str
    """`module:NAME` of the table of job functions."""
    preload: tuple[str, ...]
    """Modules imported and `module:function`s called once, before any job."""
    search_path: tuple[str, ...]
    containment: Containment
    readable: tuple[str, ...]
    """What every job may read."""
    hidden: tuple[str, ...]
    """Folders that no job sees but for its own paths in them."""
    protected: tuple[int, ...]
    """Process ids, and groups as negative numbers, that jobs may not signal."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Boot:
        """The inverse of `to_json`."""
        raw = json.loads(text)
        raw["containment"] = Containment(**raw["containment"])
        for name in ("preload", "search_path", "readable", "hidden", "protected"):
            raw[name] = tuple(raw[name])
        return Boot(**raw)


@dataclass(frozen=True)
class Request:
    """One job on its way to the worker."""

    job: Job
    nonce: str
    """Comes back in the answer, which shows that the worker's own code wrote it to the end."""
    tasks_before: int
    """Threads that count against the job's user before it starts."""

    def to_json(self) -> bytes:
        """One message."""
        job = self.job
        raw = {
            "folder": str(job.folder),
            "function": job.function,
            "limits": asdict(job.limits),
            "env": job.env,
            "readable": [str(path) for path in job.readable],
            "cache": str(job.cache) if job.cache else None,
            "nonce": self.nonce,
            "tasks_before": self.tasks_before,
        }
        return json.dumps(raw).encode()

    @staticmethod
    def from_json(message: bytes) -> Request:
        """The inverse of `to_json`."""
        raw = json.loads(message)
        job = Job(
            folder=Path(raw["folder"]),
            function=raw["function"],
            limits=Limits(**raw["limits"]),
            env=raw["env"],
            readable=tuple(Path(path) for path in raw["readable"]),
            cache=Path(raw["cache"]) if raw["cache"] else None,
        )
        return Request(job, raw["nonce"], raw["tasks_before"])


@dataclass(frozen=True)
class Report:
    """What the worker saw of a job's end, from outside the job."""

    how: str
    """`exit`, `timeout`, `memory`, `processes`, `disk`, `killed`, or `setup` (it never began)."""
    status: int | None
    """Wait status of the process that ran user code; None if nobody was left to see it."""
    wall_s: float
    peak_bytes: int = 0
    detail: str = ""
    oom_killed: bool = False
    survivors: int = 0
    """Processes that would not die."""

    def to_json(self) -> bytes:
        """One message."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(message: bytes) -> Report:
        """The inverse of `to_json`."""
        return Report(**json.loads(message))
