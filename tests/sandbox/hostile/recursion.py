"""Recurses for ever."""

EXPECTED = "error"
ERROR_TYPE = "RecursionError"


def entry(folder, request):
    return entry(folder, request)
