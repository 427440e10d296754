"""Forks; the child returns an answer too, after the parent's."""

import os
import time

EXPECTED = "ok"
ANSWER = {"who": "parent"}


def entry(folder, request):
    if os.fork() == 0:
        return {"who": "child"}
    time.sleep(0.2)
    return {"who": "parent"}
