"""Prints a gigabyte."""

import os

EXPECTED = "ok"
ANSWER = {"printed": 1073741824}


def entry(folder, request):
    block = b"x" * (1 << 20)
    printed = 0
    while printed < 1 << 30:
        printed += os.write(1, block)
    return {"printed": printed}
