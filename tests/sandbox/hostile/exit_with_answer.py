"""Writes an answer of its own and ends the process with success."""

import json
import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    (folder / "answer.json").write_text(json.dumps({"nonce": "", "answer": {"forged": True}}))
    os._exit(0)
