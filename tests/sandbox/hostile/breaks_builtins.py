"""Breaks what the code around it uses; it only hurts itself."""

import builtins
import json
import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    def no(*args, **kwargs):
        raise RuntimeError("broken")

    json.dumps = no
    builtins.open = no
    os.replace = no
    return {"done": True}
