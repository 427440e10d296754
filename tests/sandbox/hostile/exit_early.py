"""Ends the process with success before there is an answer."""

import os

EXPECTED = "crash"
DETAIL = "without an answer"


def entry(folder, request):
    os._exit(0)
