"""The supervisor's side of a warm worker process: starting it, talking to it, ending it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kopt
from kopt.gpu.errors import EnvironmentLacks
from kopt.sandbox import cgroup, view
from kopt.sandbox.output import OutputDrain
from kopt.sandbox.request import (
    MAX_MESSAGE_BYTES,
    PASSED_ON,
    TOKEN,
    Boot,
    Report,
    Request,
    group_prefix,
)

_START_S = 180.0
_STOP_S = 3.0
_LATE_S = 15.0
"""How long after its deadline the worker may take to report before it is killed itself."""


class WorkerDied(Exception):
    """The worker process is gone; whatever it was doing has no report."""


class Worker:
    """One running zygote. `command` turns a Python command line into the backend's."""

    def __init__(self, boot: Boot, command: Callable[[list[str]], list[str]], token: str) -> None:
        """Start it and wait until its imports are done. Raises `EnvironmentLacks`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._token = token
        self._uses_groups = boot.containment.cgroup
        self._control = ours
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        python = [sys.executable, "-s", "-P", "-c", _bootstrap(), str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command([*python, boot.to_json()]),
                pass_fds=[theirs.fileno()],
                env=_environment(token),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C at the terminal is for us alone
            )
        except OSError as error:
            ours.close()
            raise EnvironmentLacks(f"the sandbox's worker cannot be started: {error}") from error
        finally:
            theirs.close()
        self.pid = self._process.pid
        """Of the backend's command; everything of this worker is below it."""
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def run(self, request: Request, drain: OutputDrain) -> Report:
        """Hand over one job and wait for its end, draining its output. Raises `WorkerDied`."""
        try:
            socket.send_fds(self._control, [request.to_json()], [drain.writer])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WorkerDied from error
        self._receive()  # it has the job; from here on the job may be what takes it down
        drain.close_writer()
        deadline = time.monotonic() + request.job.limits.wall_s + _LATE_S
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(drain.reader, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return Report("timeout", None, request.job.limits.wall_s, survivors=1)
            for descriptor, _ in poll.poll(left * 1000):
                if descriptor == drain.reader:
                    if not drain.read_available():
                        poll.unregister(drain.reader)
                else:
                    message = self._receive()
                    drain.finish()
                    return Report.from_json(message)

    def stop(self) -> None:
        """End it and everything it started."""
        self._control.close()  # it kills its job and leaves
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._uses_groups:
            cgroup.end_all(group_prefix(self._token))
        self._kill_marked()
        self._log.close()

    def _await_ready(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(_START_S * 1000):
            raise EnvironmentLacks(
                f"the sandbox's worker did not start within {_START_S:g} s",
                "the machine may be overloaded or out of memory; try again",
            )
        try:
            message = json.loads(self._receive())
        except WorkerDied:
            said = self._said() or "no message"
            raise EnvironmentLacks(f"the sandbox's worker ended at its start: {said}") from None
        if "failed" in message:
            raise EnvironmentLacks(
                f"the sandbox's worker cannot import what jobs need: {message['failed']}",
                "reinstall kopt in this environment: pip install --force-reinstall kopt-gpu",
            )

    def _receive(self) -> bytes:
        try:
            message = self._control.recv(MAX_MESSAGE_BYTES)
        except ConnectionResetError as error:
            raise WorkerDied from error
        if not message:
            raise WorkerDied
        return message

    def _said(self) -> str:
        """The last line that the worker printed."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _kill_marked(self) -> None:
        """Kill processes that carry this worker's mark in their environment: a last net."""
        mark = f"{TOKEN}={self._token}".encode()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


def _bootstrap() -> str:
    """Import kopt and packages from where this process has them."""
    parent = str(Path(next(iter(kopt.__path__))).absolute().parent)
    sites = [str(place) for place in view.site_folders()]
    return (
        f"import sys; sys.path.insert(0, {parent!r})\n"
        f"sys.path += [place for place in {sites!r} if place not in sys.path]\n"
        "from kopt.sandbox.zygote import main; main()\n"
        "import os; os._exit(0)"  # taking torch apart would only cost time
    )


def _environment(token: str) -> dict[str, str]:
    """What the worker itself gets; jobs get less. Nothing of ours that could be a secret."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy's would start threads at import
        TOKEN: token,
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }
