"""Leaves a daemon behind that detached itself completely; it holds a lock while it lives."""

import fcntl
import os
import time

EXPECTED = "ok"
ANSWER = {"daemon": True}
LOCKED = "lock"


def entry(folder, request):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            file = (folder / "lock").open("w")
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(writer, b"1")
            os.close(writer)
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            time.sleep(600)
        os._exit(0)
    return {"daemon": os.read(reader, 1) == b"1"}
