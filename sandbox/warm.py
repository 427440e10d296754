"""The sandbox itself: one warm worker under a backend, restarted when a job takes it down."""

from __future__ import annotations

import atexit
import dataclasses
import os
import secrets
import stat
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kopt.gpu.errors import EnvironmentLacks
from kopt.sandbox import ending, host, keeper, probe, view, watch
from kopt.sandbox import folder as folders
from kopt.sandbox.containment import Containment, reachable_by_others
from kopt.sandbox.output import OutputDrain
from kopt.sandbox.protocol import Job, Outcome
from kopt.sandbox.request import Boot, Report, Request
from kopt.sandbox.worker import Worker, WorkerDied

PRELOAD = (
    "torch",
    "torch._dynamo",  # torch imports it at the first call of a function marked for it
    "triton",
    "triton.language.extra.libdevice",
    "triton.compiler.code_generator",
    "triton.experimental.gluon.nvidia.hopper",  # with all of gluon, at the first compilation
    "triton.backends.nvidia.compiler",
    "kopt.gpu.virtual.active",
    "kopt.gpu.virtual.record",
    "kopt.sandbox.warmup:warm",
)
"""What a first job would otherwise import by itself, and every later one again."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a warm worker is told at its start."""

    functions: str = "kopt.sandbox.jobs:FUNCTIONS"
    """`module:NAME` of the table of job functions."""
    preload: tuple[str, ...] = PRELOAD
    """Modules imported once, in this order, and functions called once (`module:name`).

    They must start no thread and run no operator.
    """
    search_path: tuple[Path, ...] = ()
    """Folders to import from besides the interpreter's own."""
    readable: tuple[Path, ...] = ()
    """Files and folders that every job may read."""


class Backend(Protocol):
    """How a worker is started and what then contains its jobs. One implementation per module."""

    name: str

    def unavailable(self) -> str | None:
        """Why it cannot even be tried here; None if it can."""

    def containment(self, needed: tuple[Path, ...]) -> Containment:
        """What it will use; `needed` are the paths that jobs must reach."""

    def command(self, python: list[str], root: Path) -> list[str]:
        """The command that runs `python` under this backend; jobs' folders lie below `root`."""


class WarmSandbox:
    """A `Sandbox` with one warm worker under `backend`.

    Jobs' folders and caches must lie below `root`, a folder that exists. What else is below
    `root` no job sees, unless it names it as readable.
    """

    def __init__(self, backend: Backend, root: Path, settings: Settings) -> None:
        self.name = backend.name
        self.backend = backend
        self.root = Path(os.path.realpath(root))
        self._settings = settings
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._owner = os.getpid()
        self._readable = (*view.interpreter_paths(settings.search_path), *settings.readable)
        self._means: Containment | None = None
        self.starts = 0
        """How many workers it has started; more than one: some died."""

    def probe(self) -> str | None:
        """Why this backend does not work here, found by running it; None if it works."""
        problem = self.backend.unavailable()
        if problem:
            return problem
        trial = dataclasses.replace(
            self._settings, functions="kopt.sandbox.probe:FUNCTIONS", preload=()
        )
        try:
            with (
                tempfile.TemporaryDirectory(prefix="probe-", dir=self.root) as scratch,
                WarmSandbox(self.backend, self.root, trial) as sandbox,
            ):
                return probe.examine(sandbox, Path(scratch), sandbox.containment())
        except (EnvironmentLacks, OSError) as error:
            return str(error)

    def processes(self) -> list[int]:
        """Ids of the worker's processes that live now, a running job's among them."""
        worker = self._worker
        return [] if worker is None else [worker.pid, *watch.descendants(worker.pid)]

    def containment(self) -> Containment:
        """The means it uses, decided once."""
        if self._means is None:
            self._means = self.backend.containment((*self._readable, self.root))
        return self._means

    def isolation(self) -> tuple[str, ...]:
        """What is contained, in words for the report."""
        return self.containment().isolation()

    def lacks(self) -> tuple[str, ...]:
        """What is not contained, in words for the report."""
        return self.containment().lacks()

    def start(self) -> None:
        """Start the warm worker. Raises `EnvironmentLacks` when it does not come up."""
        with self._lock:
            self._started()

    def run(self, job: Job) -> Outcome:
        """Run one job to its end. Raises `EnvironmentLacks` if it cannot be run at all."""
        with self._lock:
            job = self._located(job)
            try:
                before = self._prepare(job)
            except OSError as error:
                raise EnvironmentLacks(
                    f"a job's folder cannot be prepared: {error}",
                    f"free or allow writing to {self.root}",
                ) from error
            request = Request(job, secrets.token_hex(16), self._tasks_before())
            drain = OutputDrain(job.limits.output_bytes)
            try:
                report = self._report(request, drain)
            except BaseException:
                self._stop()  # nobody waits any more for whatever is running
                raise
            finally:
                drain.close()
            return self._outcome(request, report, drain, before)

    def close(self) -> None:
        """Stop every process that this sandbox started."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _started(self) -> Worker:
        if self._worker is None:
            boot = Boot(
                functions=self._settings.functions,
                preload=self._settings.preload,
                search_path=tuple(str(path) for path in self._settings.search_path),
                containment=self.containment(),
                readable=tuple(str(path) for path in self._readable),
                hidden=(str(self.root),),
                protected=(-1, os.getpid(), -os.getpgrp()),
            )
            self._worker = Worker(
                boot,
                lambda python: self.backend.command(python, self.root),
                secrets.token_hex(16),
            )
            self.starts += 1
            atexit.register(self._stop)
        return self._worker

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and os.getpid() == self._owner:  # not in a fork of ours
            atexit.unregister(self._stop)
            worker.stop()

    def _located(self, job: Job) -> Job:
        """The job with real paths.

        Raises `ValueError` if its own are not where they must be, and `EnvironmentLacks` if it
        could not read what it is to read.
        """
        folder = Path(os.path.realpath(job.folder))
        cache = Path(os.path.realpath(job.cache)) if job.cache else None
        for path in (folder, cache):
            if path is not None and (path == self.root or not path.is_relative_to(self.root)):
                raise ValueError(f"{path} is not below the sandbox's root {self.root}")
        means = self.containment()
        if means.uid is not None and not means.reads_any_mode:
            for path in job.readable:
                if not reachable_by_others(path):
                    raise EnvironmentLacks(
                        f"jobs run as another user here, who may not read {path}",
                        f"allow it: chmod -R o+rX {path}, and the folders above it o+x",
                    )
        return dataclasses.replace(job, folder=folder, cache=cache)

    def _prepare(self, job: Job) -> tuple[int, int]:
        """Make the private folders; returns what identifies the job's folder."""
        private = job.folder / keeper.PRIVATE
        folders.remove(private)
        for name in (host.ANSWER, host.STAGE):
            folders.remove(job.folder / name)
        for name in ("home", "tmp", "cache"):
            (private / name).mkdir(parents=True)
        if job.cache is not None:
            job.cache.mkdir(parents=True, exist_ok=True)
        uid = self.containment().uid
        if uid is not None:
            if not self.containment().reads_any_mode:
                self._open_the_way(job)
            folders.give_to(job.folder, uid)
            if job.cache is not None and job.cache.stat().st_uid != uid:
                folders.give_to(job.cache, uid)
        return _identity(job.folder)

    def _open_the_way(self, job: Job) -> None:
        """Let the job's user enter the folders below `root` that lead to its own."""
        for end in (job.folder, job.cache or job.folder):
            for above in end.parents:
                if above.is_relative_to(self.root):
                    above.chmod(stat.S_IMODE(above.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)

    def _tasks_before(self) -> int:
        """The kernel counts all tasks of a user against its limit, not only the job's."""
        return 0 if self.containment().uid is not None else watch.user_tasks(os.getuid())

    def _report(self, request: Request, drain: OutputDrain) -> Report:
        """Run it on the worker; one that died while idle is replaced first."""
        for attempt in (1, 2):
            try:
                return self._started().run(request, drain)
            except WorkerDied:
                self._stop()
                if drain.writer < 0:  # the job had begun: it may have done this
                    return Report("exit", None, 0.0)
                if attempt == 2:
                    break
        raise EnvironmentLacks(
            "the sandbox's worker keeps ending before it takes a job",
            "the machine may be out of memory: see the kernel's log",
        )

    def _outcome(
        self, request: Request, report: Report, drain: OutputDrain, before: tuple[int, int]
    ) -> Outcome:
        job = request.job
        if report.how in ("setup", "killed"):
            self._stop()
            raise EnvironmentLacks(
                f"the {self.name} sandbox cannot set up a job: {report.detail or report.how}",
                "try another one: --sandbox auto takes the strongest that works",
            )
        if report.survivors:
            self._stop()
        same = _identity(job.folder) == before
        removed: tuple[str, ...] = ()
        stage = ""
        if same:
            folders.remove(job.folder / keeper.PRIVATE)
            owner = os.getuid() if self.containment().uid is not None else None
            removed = folders.clean(job.folder, owner)
            stage = folders.read_stage(job.folder)
        outcome = ending.judge(report, job.limits, job.folder if same else None, request.nonce)
        return dataclasses.replace(
            outcome,
            output=drain.text(),
            output_dropped_bytes=drain.dropped,
            stage=stage,
            removed=removed,
        )


def _identity(folder: Path) -> tuple[int, int]:
    """Tells a folder from anything put in its place; zeros if it is gone or no folder."""
    try:
        if not folder.is_dir() or folder.is_symlink():
            return 0, 0
        info = folder.stat()
    except OSError:
        return 0, 0
    return info.st_dev, info.st_ino
