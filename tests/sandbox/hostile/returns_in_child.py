"""Forks; only the child returns, and it is not the job."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    child = os.fork()
    if child == 0:
        return {"who": "child"}
    os.waitpid(child, 0)
    os._exit(0)
