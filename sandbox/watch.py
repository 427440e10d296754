"""What the processes of a job use, seen from outside through /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """A snapshot of some processes."""

    processes: int
    memory_bytes: int
    """Anonymous and shared memory, pages shared between them counted more than once."""


def descendants(root: int) -> list[int]:
    """Process ids below `root`, parents first."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with open(thread / "children", encoding="ascii") as file:
                children += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile
    return children


def usage(pids: Iterable[int]) -> Usage:
    """What these processes use; those that have ended count nothing."""
    count = memory = 0
    for pid in pids:
        fields = _numbers(f"/proc/{pid}/status")
        if "RssAnon" in fields:  # a zombie has none
            count += 1
            memory += fields["RssAnon"] + fields.get("RssShmem", 0)
    return Usage(count, memory)


def exact_memory(pids: Iterable[int]) -> int:
    """Like `Usage.memory_bytes` with every page counted once; costs milliseconds per process."""
    total = 0
    for pid in pids:
        rollup = _numbers(f"/proc/{pid}/smaps_rollup")
        if "Pss_Anon" in rollup:
            total += rollup["Pss_Anon"] + rollup.get("Pss_Shmem", 0)
        elif rollup:
            total += rollup.get("Pss", 0)
        else:
            total += usage([pid]).memory_bytes
    return total


def data_bytes() -> int:
    """This process's writable private memory, the quantity that `RLIMIT_DATA` bounds."""
    return _numbers("/proc/self/status")["VmData"]


def user_tasks(uid: int) -> int:
    """Threads that `uid` runs now: what `RLIMIT_NPROC` counts."""
    total = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if process.stat().st_uid == uid:
                    total += _count(process / "status", "Threads:")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return total


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since boot."""
    return _count(Path("/proc/vmstat"), "oom_kill ")


def folder_bytes(folder: Path) -> int:
    """Disk that a folder's files take. Files may come and go meanwhile; links are not followed."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # vanished, or the job took our rights away: what it hides is its own loss
    return total


def _count(path: Path, label: str) -> int:
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(label):
                return int(line[len(label) :].split()[0])
    return 0


def _numbers(path: str) -> dict[str, int]:
    """Fields in kB as bytes; empty if the process is gone or not ours to look at."""
    found: dict[str, int] = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                words = rest.split()
                if len(words) == 2 and words[1] == "kB":
                    found[name] = int(words[0]) * 1024
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return found
