"""Returns what JSON cannot say."""

EXPECTED = "error"
ERROR_TYPE = "TypeError"


def entry(folder, request):
    return {"answer": object()}
