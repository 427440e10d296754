"""Aborts, as a C++ exception that nobody catches does."""

import os

EXPECTED = "crash"
DETAIL = "SIGABRT"


def entry(folder, request):
    os.abort()
