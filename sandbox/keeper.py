"""The process between the warm worker and user code: it confines, starts, and sees the end.

In a PID namespace it is process 1, so that its end ends every other one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from kopt.gpu.trace import Json
from kopt.sandbox import cgroup, host, landlock, limits, linux, seccomp
from kopt.sandbox.request import PASSED_ON, TOKEN, Boot, Request
from kopt.sandbox.view import DEVICES, NEW_ROOT, View, mount, without

Function = Callable[[Path, dict[str, Json]], dict[str, Json]]

PRIVATE = ".private"
"""Folder in the job's folder for its home, temporary files and cache; deleted with the job."""
_STATUS = struct.Struct("=ci")
_MEMORY_FILES_BYTES = 256 << 20


def keep(
    boot: Boot,
    request: Request,
    functions: Mapping[str, Function],
    *,
    output: int,
    report: int,
    group: cgroup.Group | None,
) -> None:
    """Run one job in a child, tell `report` how it ended, and exit. Never returns.

    `output` becomes the job's stdout and stderr. What cannot be set up is reported as text.
    """
    try:
        linux.die_with_parent(signal.SIGKILL)
        _close_all_but(output, report)
        if group is not None:
            group.enter()
        supervisors = (*boot.protected, os.getppid(), -os.getpgrp(), os.getpid())
        if boot.containment.namespaces:
            linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
            mount(_view(boot, request), NEW_ROOT, memory_files_bytes=_MEMORY_FILES_BYTES)
        else:
            linux.adopt_orphans()
        linux.set_dumpable(False)
        child = os.fork()
        if child == 0:
            _become_the_job(boot, request, functions, output, report, supervisors)
        os.close(output)
        os.write(report, _STATUS.pack(b"S", _reap_until(child)))
    except BaseException as error:
        os.write(report, b"E" + f"{type(error).__name__}: {error}".encode()[:2000])
    finally:
        os._exit(0)


def parse_report(data: bytes) -> tuple[int | None, str]:
    """Wait status of user code, or what could not be set up, from what the keeper wrote.

    The last record counts: the child that becomes the job can fail after the keeper is set up.
    """
    if data.startswith(b"E"):
        text, _, _ = data[1:].partition(b"\0")
        return None, text.decode(errors="replace")
    if len(data) >= _STATUS.size:
        return int(_STATUS.unpack(data[: _STATUS.size])[1]), ""
    return None, ""


def _reap_until(child: int) -> int:
    """Wait for `child`, burying orphans meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _view(boot: Boot, request: Request) -> View:
    job = request.job
    return View(
        readable=(*(Path(path) for path in boot.readable), *job.readable),
        writable=(job.folder, *([job.cache] if job.cache else [])),
        hidden=tuple(Path(path) for path in boot.hidden),
    )


def _become_the_job(
    boot: Boot,
    request: Request,
    functions: Mapping[str, Function],
    output: int,
    report: int,
    supervisors: tuple[int, ...],
) -> None:
    """Confine this process for good, then run the function. Never returns."""
    job = request.job
    try:
        os.setsid()
        linux.set_dumpable(True)  # its own /proc/self belongs to it again
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # if memory runs out, the kernel takes this one
        _prepare_descriptors(output)
        variables = environment(request)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None
        os.chdir(job.folder)
        limits.apply(job.limits, request.tasks_before)
        _drop_rights(boot, request, supervisors)
        linux.die_with_parent(signal.SIGKILL)
        linux.set_dumpable(True)
        os.close(report)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(report, b"E" + f"{type(error).__name__}: {error}".encode()[:2000] + b"\0")
        os._exit(1)
    host.execute(functions, request)


def environment(request: Request) -> dict[str, str]:
    """The whole environment of a job: nothing of the caller's but what the job names."""
    private = request.job.folder / PRIVATE
    cache = request.job.cache or private / "cache"
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(private / "home"),
        "TMPDIR": str(private / "tmp"),
        "USER": "kopt",
        "LOGNAME": "kopt",
        "XDG_CACHE_HOME": str(cache),
        "KOPT_CACHE_DIR": str(cache / "kopt"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TRITON_HOME": str(private / "home"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        **{name: os.environ[name] for name in (*PASSED_ON, TOKEN) if name in os.environ},
        **request.job.env,
    }


def _prepare_descriptors(output: int) -> None:
    """stdin is empty, stdout and stderr are the capped pipe."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)


def _drop_rights(boot: Boot, request: Request, supervisors: tuple[int, ...]) -> None:
    means = boot.containment
    linux.no_new_privileges()
    linux.become(means.uid, linux.CAP_DAC_READ_SEARCH if means.reads_any_mode else None)
    if means.landlock and not means.namespaces:
        view = _view(boot, request)
        whole, listed = without(view.readable, view.hidden)
        landlock.confine([*whole, Path("/proc")], [*view.writable, *DEVICES], listed)
    if means.seccomp:
        # In a PID namespace the supervisors have no number; outside, sockets reach daemons.
        seccomp.install(() if means.namespaces else supervisors, unix_sockets=means.namespaces)


def _close_all_but(*keep_open: int) -> None:
    """Close every descriptor the worker had, its control socket first of all."""
    start = 3
    for descriptor in sorted(keep_open):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))
