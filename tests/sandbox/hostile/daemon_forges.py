"""Ends without an answer; a daemon goes on writing one."""

import json
import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    if os.fork() == 0:
        os.setsid()
        while True:
            (folder / "forged").write_text(json.dumps({"nonce": "", "answer": {"forged": True}}))
            (folder / "forged").replace(folder / "answer.json")
    os._exit(0)
