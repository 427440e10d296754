"""Tries to get rights in new namespaces and to mount."""

import ctypes

EXPECTED = "ok"
ANSWER = {"got": []}


def entry(folder, request):
    libc = ctypes.CDLL(None, use_errno=True)
    got = []
    for name, flag in (("user", 0x10000000), ("mount", 0x00020000), ("pid", 0x20000000)):
        if libc.unshare(flag) == 0:
            got.append(name)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, None) == 0:
        got.append("mounted")
    if libc.umount2(b"/proc", 2) == 0:
        got.append("unmounted")
    return {"got": got}
