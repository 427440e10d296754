"""Recurses in native code until the stack ends: the C library's parser of regular expressions."""

import ctypes

EXPECTED = "crash"
DETAIL = "SIGSEGV"


def entry(folder, request):
    compiled = ctypes.create_string_buffer(1024)
    extended = 1
    return ctypes.CDLL(None).regcomp(compiled, b"(" * 1_000_000, extended)
