"""A control group per job, where root can make one: it bounds the tasks and finds them all."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """One control group that holds a job's processes."""

    path: Path

    def enter(self) -> None:
        """Move this process in."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def members(self) -> list[int]:
        """Process ids in it now."""
        try:
            return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []

    def kill(self) -> None:
        """Kill every member. Members can be born meanwhile: call again until `members` is empty."""
        everyone = self.path / "cgroup.kill"
        if everyone.exists():  # version 2 since 5.14: atomic
            everyone.write_text("1")
            return
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Delete the group. The kernel lets go of dead members a moment after they are reaped."""
        for _ in range(200):
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.005)
            else:
                return


def create(name: str, tasks: int) -> Group | None:
    """A new group for at most `tasks` processes and threads, None where none can be made."""
    for parent in _parents():
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(tasks))
        except OSError:
            group.rmdir()  # version 2 without the controller handed down
            continue
        return Group(group)
    return None


def end_all(prefix: str) -> None:
    """Kill and remove the groups that a dead worker left, whose names begin with `prefix`."""
    for parent in _parents():
        for path in parent.glob(f"{prefix}*"):
            group = Group(path)
            for _ in range(1000):
                group.kill()
                if not group.members():
                    break
                time.sleep(0.002)
            group.remove()


def available() -> bool:
    """Whether a group can be made here, found by making one."""
    group = create(f"kopt-probe-{os.getpid()}", 64)
    if group is None:
        return False
    group.remove()
    return True


def _parents() -> list[Path]:
    """Folders in which a pids group could be made: our own group, then the hierarchy's root."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    found: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mounted = Path(left.split()[4])
        kind, _, options = right.split()[:3]
        if kind == "cgroup" and "pids" in options.split(","):
            path = own.get("pids", "/")
        elif kind == "cgroup2":
            path = own.get("", "/")
        else:
            continue
        found += [mounted / path.lstrip("/"), mounted]
    return list(dict.fromkeys(found))
