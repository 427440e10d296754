"""Resource limits that a job sets on itself before user code runs; nothing raises them again."""

from __future__ import annotations

import math
import os
import resource

from kopt.sandbox import watch
from kopt.sandbox.protocol import Limits

_OPEN_FILES = 1024
_TASKS_PER_CPU = 4


def tasks(limits: Limits) -> int:
    """Processes and threads together: thread pools grow with the machine, process counts do not."""
    return limits.processes + _TASKS_PER_CPU * (os.cpu_count() or 1)


def apply(limits: Limits, tasks_before: int) -> None:
    """Limit this process and every one it starts.

    `tasks_before` are tasks that already count against this user. Memory is bounded by
    `RLIMIT_DATA`, not by the address space: thread stacks and allocator arenas reserve far more
    addresses than they use. The processor limit only backs up the wall clock.
    """
    cpu_s = math.ceil(limits.wall_s * (os.cpu_count() or 1)) + 5
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_CPU, cpu_s)
    _set(resource.RLIMIT_FSIZE, limits.file_bytes)
    _set(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _set(resource.RLIMIT_NPROC, tasks_before + tasks(limits))
    _set(resource.RLIMIT_DATA, watch.data_bytes() + limits.memory_bytes)
    _set(resource.RLIMIT_MSGQUEUE, 0)


def _set(which: int, value: int) -> None:
    """Set soft and hard limit, never above the hard limit that is there."""
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))
