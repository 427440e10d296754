"""Writes an answer too large to be read (a file with a hole, so that it costs nothing)."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    with open(folder / "answer.json", "wb") as file:
        file.write(b'{"nonce":')
        file.truncate(32 << 20)
    os._exit(0)
