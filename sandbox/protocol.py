"""What a sandbox is: a job goes in, an outcome comes out, whatever the job does."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Limits:
    """What one job may use."""

    wall_s: float = 30.0
    memory_bytes: int = 6 << 30
    """Address-space growth over the warm worker's own, enforced by rlimit or cgroup."""
    output_bytes: int = 1 << 20
    """Bytes of stdout+stderr kept; the rest is discarded and counted."""
    file_bytes: int = 4 << 30
    """Largest file the job may write."""
    processes: int = 64


@dataclass(frozen=True)
class Job:
    """One untrusted call: `function` of `kopt.sandbox.host` on the JSON in `folder/job.json`.

    `folder` is private to the job and the only place it may write. The job writes its answer to
    `folder/answer.json` and its trace to `folder/trace/`.
    """

    folder: Path
    function: str
    limits: Limits = field(default_factory=Limits)
    env: dict[str, str] = field(default_factory=dict)


class OutcomeStatus(StrEnum):
    """How a job ended, as seen from outside the job."""

    OK = "ok"
    """It returned and left an answer."""
    ERROR = "error"
    """User code raised; `error` has the message, `traceback` the user's frames."""
    CRASH = "crash"
    """Killed by a signal, exited early, or left no answer."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """Out of host memory."""


@dataclass(frozen=True)
class Outcome:
    """What is known about a finished job. Nothing in it was decided by the job except `answer`."""

    status: OutcomeStatus
    detail: str
    """One sentence for people."""
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    output: str = ""
    """The first `output_bytes` of what the job printed."""
    output_dropped_bytes: int = 0
    wall_s: float = 0.0
    stage: str = ""
    """Where user code was: `import`, `make_inputs`, `entry`, … when it ended."""


class Sandbox(Protocol):
    """Runs jobs. One implementation per backend."""

    name: str

    def probe(self) -> str | None:
        """Why this backend does not work here, found by running it; None if it works."""

    def start(self) -> None:
        """Start the warm worker; later jobs must not pay for imports."""

    def run(self, job: Job) -> Outcome:
        """Run one job to its end, however it ends. Raises `EnvironmentLacks` for dead tools."""

    def close(self) -> None:
        """Stop every process that this sandbox started."""

    def isolation(self) -> tuple[str, ...]:
        """What is contained, in words for the report."""

    def lacks(self) -> tuple[str, ...]:
        """What is not contained, in words for the report."""
