"""Tries to write wherever it should not."""

import os
import sys
from pathlib import Path

EXPECTED = "ok"
ANSWER = {"opened": []}


def entry(folder, request):
    places = [*request["places"], sys.prefix, "/", "/usr/lib", "/etc", "/sys/fs/cgroup"]
    for place in places:
        try:
            (Path(place) / "kopt-was-here").write_text("x")  # it may land in a private copy
        except OSError:
            continue
    opened = []
    for path in (
        request["secret"],
        request["file"],
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
    ):
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened.append(path)
        except OSError:
            continue
    return {"opened": opened}
