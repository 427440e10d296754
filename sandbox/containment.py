"""Which means of containment a worker uses, decided once when it starts."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kopt.sandbox import cgroup, landlock, linux, seccomp

_UNASSIGNED = range(60578, 61184)
"""User ids that nobody hands out: https://systemd.io/UIDS-GIDS"""
_TO_CHANGE_USER = (
    linux.CAP_SETUID,
    linux.CAP_SETGID,
    linux.CAP_KILL,
    linux.CAP_CHOWN,
    linux.CAP_FOWNER,
    linux.CAP_DAC_OVERRIDE,
)
"""What root needs to run jobs as another user and to have their files back; containers take some
capabilities away."""


@dataclass(frozen=True)
class Containment:
    """What confines the processes of a job, besides rlimits, the watchdog and a clean start."""

    namespaces: bool = False
    """Own PID, mount and IPC namespace per job, with a root that shows only what it needs."""
    network: bool = False
    """No network interface: the worker lives in an empty network namespace."""
    uid: int | None = None
    """The job runs as this otherwise unused user."""
    reads_any_mode: bool = False
    """That user may read root's private files, among those that mounts or Landlock let it see.

    As root, targets often lie in folders that only root may enter. The filter forbids the one
    call that would turn this capability into access to other files (`open_by_handle_at`).
    """
    cgroup: bool = False
    """The job runs in its own control group, which bounds its tasks and finds them all."""
    landlock: int = 0
    """Landlock version that confines files (and signals, from version 6); 0: not used."""
    seccomp: bool = False
    """System calls are filtered: no sockets, no tracing, no signals to the supervisor."""

    def isolation(self) -> tuple[str, ...]:
        """What is contained, in words for the report."""
        said = [
            "own session, wall-clock kill, memory watchdog, output cap, clean environment",
        ]
        if self.namespaces:
            said.append("PID, mount and IPC namespace per job, read-only root with no user files")
        if self.network:
            said.append("empty network namespace")
        if self.uid is not None:
            said.append(f"unprivileged user id {self.uid}")
        if self.cgroup:
            said.append("pids control group")
        if self.landlock and not self.namespaces:
            said.append(f"files confined by Landlock (version {self.landlock})")
        if self.landlock >= landlock.ABI_SIGNALS and not self.namespaces:
            said.append("no signals to processes outside")
        if self.seccomp:
            said.append("system-call filter: no network sockets, tracing or namespaces")
        return tuple(said)

    def lacks(self) -> tuple[str, ...]:
        """What is not contained, in words for the report."""
        said = []
        if not (self.namespaces or self.landlock):
            whose = "world-readable files" if self.uid is not None else "any file of this user"
            said.append(f"a job can read {whose}")
            if self.uid is None:
                said.append("a job can write any file of this user")
        if not (self.network or self.seccomp):
            said.append("a job can use the network")
        confined = self.namespaces or self.uid is not None
        if not (confined or self.landlock >= landlock.ABI_SIGNALS):
            said.append("a job can signal other processes of this user")
        held = self.cgroup or self.seccomp or self.landlock >= landlock.ABI_SIGNALS
        if not (confined or held):
            said.append("a job can kill its supervisor and leave processes behind")
        if os.geteuid() == 0 and self.uid is None and not self.cgroup:
            said.append("the number of processes is watched, not bounded by the kernel")
        return tuple(said)


def for_local(needed: Iterable[Path]) -> Containment:
    """The strongest that works without namespaces. `needed` are paths that jobs must reach.

    As root: an unused user id if it can reach them all, else a pids control group.
    """
    root = os.geteuid() == 0
    version, filtered = landlock.abi(), seccomp.available()
    uid = unused_uid() if root and linux.has_capabilities(*_TO_CHANGE_USER) else None
    may_read = linux.has_capabilities(linux.CAP_DAC_READ_SEARCH)
    reads_any_mode = uid is not None and version > 0 and filtered and may_read
    if uid is not None and not reads_any_mode and not all(map(reachable_by_others, needed)):
        uid = None
    return Containment(
        uid=uid,
        reads_any_mode=reads_any_mode,
        cgroup=root and uid is None and cgroup.available(),
        landlock=version,
        seccomp=filtered,
    )


def for_namespaces(*, privileged: bool) -> Containment:
    """With namespaces per job. `privileged`: root itself made them, not a user namespace."""
    filtered = seccomp.available()
    uid = unused_uid() if privileged else None
    may_read = linux.has_capabilities(linux.CAP_DAC_READ_SEARCH)
    return Containment(
        namespaces=True,
        network=True,
        uid=uid,
        reads_any_mode=uid is not None and filtered and may_read,
        seccomp=filtered,
    )


def reachable_by_others(path: Path) -> bool:
    """Whether every user may enter all folders on the way to `path`, and read it."""
    real = path.resolve()
    try:
        above = all(parent.stat().st_mode & stat.S_IXOTH for parent in real.parents)
        return above and bool(real.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def unused_uid() -> int | None:
    """A user id that is mapped here, has no account and runs nothing."""
    mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    running = _running_users()
    for uid in secrets.SystemRandom().sample(_UNASSIGNED, len(_UNASSIGNED)):
        if uid in running or not any(int(a) <= uid < int(a) + int(n) for a, _, n in mapped):
            continue
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid
    return None


def _running_users() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.add(entry.stat().st_uid)
    return found
