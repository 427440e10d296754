"""Closes every descriptor, and the streams."""

import os
import sys

EXPECTED = "ok"
ANSWER = {"done": True}


def entry(folder, request):
    sys.stdout.close()
    sys.stderr = None
    os.closerange(0, 4096)
    return {"done": True}
