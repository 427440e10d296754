"""Signals every process it may signal."""

import contextlib
import os
import signal
import time

EXPECTED = "ok"
ANSWER = {"still": "here"}


def entry(folder, request):
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    time.sleep(0.1)
    return {"still": "here"}
