"""Forks without end."""

import contextlib
import os

EXPECTED = "crash"
DETAIL = "processes"


def entry(folder, request):
    while True:
        with contextlib.suppress(OSError):
            os.fork()
