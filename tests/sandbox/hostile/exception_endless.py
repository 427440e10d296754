"""Raises an exception with a gigantic text and an unusual base."""

EXPECTED = "error"
ERROR_TYPE = "Endless"


class Endless(BaseException):
    def __str__(self):
        return "x" * 50_000_000


def entry(folder, request):
    raise Endless
