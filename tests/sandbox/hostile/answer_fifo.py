"""Puts a pipe where the answer is expected: who opens it waits for ever."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"
REMOVED = ("answer.json", "stage")


def entry(folder, request):
    (folder / "stage").unlink()
    os.mkfifo(folder / "stage")
    os.mkfifo(folder / "answer.json")
    os._exit(0)
