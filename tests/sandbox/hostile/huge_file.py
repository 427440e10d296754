"""Writes one file larger than allowed."""

EXPECTED = "error"
ERROR_TYPE = "OSError"


def entry(folder, request):
    block = bytes(1 << 20)
    with open(folder / "huge", "wb") as file:
        while True:
            file.write(block)
