"""Stops itself."""

import os
import signal

EXPECTED = "timeout"
WALL_S = 0.5


def entry(folder, request):
    os.kill(os.getpid(), signal.SIGSTOP)
