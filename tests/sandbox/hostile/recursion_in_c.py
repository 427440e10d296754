"""Recurses in native code until the stack ends."""

import ctypes

EXPECTED = "crash"
DETAIL = "SIGSEGV"


def entry(folder, request):
    import sys

    sys.setrecursionlimit(1 << 30)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc = ctypes.CDLL(None)
    array = (ctypes.c_int * 2)(2, 1)

    @compare
    def again(_a, _b):
        other = (ctypes.c_int * 2)(2, 1)
        libc.qsort(other, 2, 4, again)
        return 0

    libc.qsort(array, 2, 4, again)
