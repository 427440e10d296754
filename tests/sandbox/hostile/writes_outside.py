"""Tries to write wherever it should not."""

import os
import sys
from pathlib import Path

EXPECTED = "ok"
ANSWER = {"written": []}


def entry(folder, request):
    import kopt

    package = Path(next(iter(kopt.__path__)))
    places = [
        Path(request["secret"]).parent,
        folder.parent,
        Path(request["file"]).parent,
        package,
        Path(sys.prefix),
        Path("/"),
        Path("/usr/lib"),
        Path("/etc"),
        Path("/proc/sys/kernel"),
        Path("/sys/fs/cgroup"),
    ]
    written = []
    for place in places:
        try:
            (place / "kopt-was-here").write_text("x")
            written.append(str(place))
        except OSError:
            pass
    for path in (request["secret"], "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            written.append(str(path))
        except OSError:
            pass
    return {"written": written}
