"""Writes JSON that is nested a million deep."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    (folder / "answer.json").write_text("[" * 1_000_000)
    os._exit(0)
