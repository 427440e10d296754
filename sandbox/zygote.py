"""The warm worker: imports once, then forks for each job and watches it from outside.

It runs no operator and no user code. A thread pool started here would hang every child, so it
stays single-threaded. It speaks JSON messages over one socket and ends when the other side does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from kopt.sandbox import cgroup, keeper, limits, linux, watch
from kopt.sandbox.request import MAX_MESSAGE_BYTES, TOKEN, Boot, Report, Request, group_prefix

_LOOK_S = 0.05
"""How often a running job's memory and processes are looked at."""
_DEATH_S = 10.0
"""How long killed processes get to disappear."""


def main() -> None:
    """Serve jobs from the socket whose descriptor is the first argument, until it closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    boot = Boot.from_json(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    linux.adopt_orphans()
    sys.path[:0] = [path for path in boot.search_path if path not in sys.path]
    try:
        functions = _load(boot)
    except Exception as error:
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    gc.collect()
    gc.freeze()  # what is here is shared with every child; do not touch its pages again
    control.send(json.dumps({"ready": True}).encode())
    baseline = watch.usage([os.getpid()]).memory_bytes
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
        if not message:
            return
        if not descriptors:
            continue  # a late "kill" for a job that has just ended
        request = Request.from_json(message)
        control.send(b"begun")
        report = _Supervision(boot, request, control, baseline).run(functions, descriptors[0])
        try:
            control.send(report.to_json())
        except BrokenPipeError:
            return


def _load(boot: Boot) -> Mapping[str, keeper.Function]:
    for name in boot.preload:
        thing = _named(name)
        if callable(thing):
            thing()
    functions: Mapping[str, keeper.Function] = _named(boot.functions)  # type: ignore[assignment]
    return functions


def _named(name: str) -> object:
    """The module, or what `module:name` stands for."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


@dataclass
class _Supervision:
    """One job from its fork to its last process's end."""

    boot: Boot
    request: Request
    control: socket.socket
    baseline: int
    """Memory of this process, which its children share."""
    group: cgroup.Group | None = None
    child: int = 0
    peak: int = 0
    detail: str = ""

    def run(self, functions: Mapping[str, keeper.Function], output: int) -> Report:
        """Fork, watch, kill what is left, and say how it ended."""
        kills_before = watch.oom_kills()
        if self.boot.containment.cgroup:
            tasks = limits.tasks(self.request.job.limits)
            self.group = cgroup.create(
                group_prefix(os.environ[TOKEN]) + self.request.nonce[:12], tasks
            )
            if self.group is None:
                return Report("setup", None, 0.0, detail="the control group cannot be made")
        started = time.monotonic()
        report_r, report_w = os.pipe()
        try:
            self._fork(functions, output, report_w)
            how = ""
        except OSError as error:
            how, self.detail = "setup", str(error)
        os.close(output)
        os.close(report_w)
        how = how or self._watch(report_r, started)
        wall_s = time.monotonic() - started
        survivors = self._kill_all()
        said = _read_all(report_r)
        os.close(report_r)
        if self.group is not None:
            self.group.remove()
        status, problem = keeper.parse_report(said)
        if problem:
            how, self.detail = "setup", problem
        oom = watch.oom_kills() > kills_before
        return Report(how, status, wall_s, self.peak, self.detail, oom, survivors)

    def _fork(self, functions: Mapping[str, keeper.Function], output: int, report: int) -> None:
        """Fork the keeper, into a PID namespace of its own where there are namespaces."""
        if not self.boot.containment.namespaces:
            self.child = os.fork()
        else:
            own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            linux.unshare(linux.CLONE_NEWPID)
            self.child = os.fork()
            if self.child != 0:
                linux.setns(own, linux.CLONE_NEWPID)
            os.close(own)
        if self.child == 0:
            keeper.keep(
                self.boot, self.request, functions, output=output, report=report, group=self.group
            )

    def _watch(self, report: int, started: float) -> str:
        """Wait until the keeper is gone or a limit is passed; say which."""
        poll = select.poll()
        poll.register(report, 0)  # only the hang-up that the keeper's end is
        poll.register(self.control, select.POLLIN)
        job = self.request.job
        deadline = started + job.limits.wall_s
        next_look = started + _LOOK_S
        next_disk = started + 1.0
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= next_look:
                broken = self._over_limit()
                if broken:
                    return broken
                now = time.monotonic()
                next_look = now + _LOOK_S
            if now >= next_disk:
                if watch.folder_bytes(job.folder) > job.limits.folder_bytes:
                    return "disk"
                after = time.monotonic()
                next_disk = after + max(1.0, 10 * (after - now))
            wait_s = min(deadline, next_look) - time.monotonic()
            for descriptor, event in poll.poll(max(0, wait_s * 1000)):
                if descriptor == report and event & (select.POLLHUP | select.POLLERR):
                    return "exit"
                if descriptor == self.control.fileno():
                    self.control.recv(MAX_MESSAGE_BYTES)
                    return "killed"  # asked to, or the other side is gone

    def _members(self) -> list[int]:
        """The job's processes, without the keeper."""
        found = [pid for pid in watch.descendants(os.getpid()) if pid != self.child]
        if self.group is not None:
            found += [pid for pid in self.group.members() if pid != self.child]
        return list(dict.fromkeys(found))

    def _over_limit(self) -> str:
        members = self._members()
        bound = self.request.job.limits
        if len(members) > bound.processes:
            self.detail = f"{len(members)} processes at once"
            return "processes"
        seen = watch.usage(members)
        self.peak = max(self.peak, seen.memory_bytes - self.baseline)
        if seen.memory_bytes <= bound.memory_bytes + self.baseline:
            return ""
        exact = watch.exact_memory(members)
        return "memory" if exact > bound.memory_bytes + self.baseline else ""

    def _kill_all(self) -> int:
        """Kill every process of the job and bury it; how many would not die."""
        deadline = time.monotonic() + _DEATH_S
        while True:
            if self.group is not None:
                self.group.kill()
            # Parents first: a fork bomb's parent must not outrun us.
            for pid in watch.descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            gone = _bury()
            left = len(self._members())
            if gone and not left:
                return 0
            if time.monotonic() > deadline:
                return max(left, 1)
            time.sleep(0.001)


def _bury() -> bool:
    """Reap every child that has ended; True if there is none left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False


def _read_all(descriptor: int) -> bytes:
    """What a pipe whose writers are dead still holds."""
    os.set_blocking(descriptor, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(descriptor, 65536):
            parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
