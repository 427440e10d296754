"""Returns a list where a table is expected."""

EXPECTED = "crash"
DETAIL = "wrong form"


def entry(folder, request):
    return [1, 2, 3]
