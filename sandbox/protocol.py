"""What a sandbox is: a job goes in, an outcome comes out, whatever the job does."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kopt.gpu.trace import Json


@dataclass(frozen=True)
class Limits:
    """What one job may use, all its processes together unless a field says otherwise."""

    wall_s: float = 30.0
    memory_bytes: int = 6 << 30
    """Memory beyond the warm worker's own: of one process by rlimit, of all by the watchdog."""
    output_bytes: int = 1 << 20
    """Bytes of stdout+stderr kept; the rest is discarded and counted."""
    file_bytes: int = 4 << 30
    """Largest file the job may write."""
    folder_bytes: int = 16 << 30
    """Most that the job's folder may hold on disk, checked while it runs."""
    processes: int = 64
    """Processes at one time; threads are allowed a few more per CPU on top."""


@dataclass(frozen=True)
class Job:
    """One untrusted call: `function` of the worker's table on the JSON in `folder/job.json`.

    `folder` is private to the job and, with `cache`, the only place it may write. The job leaves
    its answer in `Outcome.answer` and everything large beside `job.json`.
    """

    folder: Path
    function: str
    limits: Limits = field(default_factory=Limits)
    env: dict[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()
    """Files and folders that the job may read besides its own: inputs, the target's folder."""
    cache: Path | None = None
    """Compile cache kept for later jobs of the same candidate; None: one that ends with the job.

    Whoever writes it can poison it, so it is never shared between candidates.
    """


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
    """What is known about a finished job.

    `answer`, `output`, `stage` and the error's text come from the job: claims, not facts. When the
    outcome is handed out, every process of the job is gone and its folder holds nothing but plain
    files and folders.
    """

    status: OutcomeStatus
    detail: str
    """One sentence for people."""
    answer: dict[str, Json] = field(default_factory=dict)
    """What the function returned; empty unless the status is `OK`."""
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    output: str = ""
    """The first `output_bytes` of what the job printed."""
    output_dropped_bytes: int = 0
    wall_s: float = 0.0
    stage: str = ""
    """Where user code was: `import`, `make_inputs`, `entry`, … when it ended."""
    removed: tuple[str, ...] = ()
    """Links, pipes and the like that the job left in its folder and that were deleted."""


class Sandbox(Protocol):
    """Runs jobs, one at a time. One implementation per backend.

    Used as a context manager it stops everything at the end of the block.
    """

    name: str

    def probe(self) -> str | None:
        """Why this backend does not work here, found by running it; None if it works."""

    def start(self) -> None:
        """Start the warm worker; later jobs must not pay for imports.

        Raises `EnvironmentLacks` when it does not come up.
        """

    def run(self, job: Job) -> Outcome:
        """Run one job to its end, however it ends. Raises `EnvironmentLacks` for dead tools."""

    def close(self) -> None:
        """Stop every process that this sandbox started."""

    def isolation(self) -> tuple[str, ...]:
        """What is contained, in words for the report."""

    def lacks(self) -> tuple[str, ...]:
        """What is not contained, in words for the report."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
