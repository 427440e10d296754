"""Puts a link to somebody else's file where the answer is expected."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"
REMOVED = ("answer.json",)


def entry(folder, request):
    (folder / "answer.json").symlink_to(request["secret"])
    os._exit(0)
