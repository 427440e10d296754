"""Raises an exception whose text cannot be had."""

EXPECTED = "error"
ERROR_TYPE = "Nasty"


class Nasty(Exception):
    def __str__(self):
        raise SystemExit(0)

    __repr__ = __str__


def entry(folder, request):
    raise Nasty
