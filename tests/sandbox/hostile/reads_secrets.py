"""Tries to read what is none of its business."""

import os
from pathlib import Path

EXPECTED = "ok"
ANSWER = {"read": []}


def entry(folder, request):
    read = []
    for path in [request["secret"], "/etc/shadow", "/root/.bash_history", "/etc/hostname"]:
        try:
            Path(path).read_bytes()
            read.append(path)
        except OSError:
            pass
    canary = request["canary"].encode()
    environments = [os.environb.get(b"KOPT_TEST_CANARY", b"")]
    for process in Path("/proc").iterdir():
        try:
            environments.append((process / "environ").read_bytes())
        except OSError:
            continue
    read += ["canary" for environment in environments if canary in environment]
    return {"read": read}
