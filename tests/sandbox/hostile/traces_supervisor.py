"""Tries to look into and change its supervisors' memory."""

import ctypes
import os

EXPECTED = "ok"
ANSWER = {"reached": []}


def entry(folder, request):
    reached = []
    libc = ctypes.CDLL(None, use_errno=True)
    for victim in {os.getppid(), *request["supervisors"]}:
        if libc.ptrace(16, victim, 0, 0) == 0:
            reached.append(f"ptrace {victim}")
        for name in ("mem", "environ", "maps"):
            try:
                with open(f"/proc/{victim}/{name}", "rb") as file:
                    if name != "mem" and not file.read(1):
                        continue
                reached.append(f"{name} {victim}")
            except OSError:
                continue
    return {"reached": reached}
