"""Reads address 0."""

import ctypes

EXPECTED = "crash"
DETAIL = "SIGSEGV"


def entry(folder, request):
    ctypes.string_at(0)
