"""Puts folders where the answer and the stage are expected."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    (folder / "stage").unlink()
    (folder / "stage").mkdir()
    (folder / "answer.json").mkdir()
    os._exit(0)
