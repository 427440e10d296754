"""Tries to kill, stop and starve the processes that supervise it."""

import contextlib
import os
import resource
import signal
import time

EXPECTED = "ok"
ANSWER = {"still": "here"}


def entry(folder, request):
    for victim in {os.getppid(), *request["supervisors"]}:
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT):
            _try(os.kill, victim, number)
            _try(os.killpg, victim, number)
        _try(resource.prlimit, victim, resource.RLIMIT_CPU, (0, 0))
    time.sleep(0.1)
    return {"still": "here"}


def _try(call, *args):
    with contextlib.suppress(OSError, ValueError):
        call(*args)
