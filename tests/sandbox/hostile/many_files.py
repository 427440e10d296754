"""Fills the disk with files that are each allowed."""

EXPECTED = "crash"
DETAIL = "to disk"


def entry(folder, request):
    block = bytes(8 << 20)
    number = 0
    while True:
        (folder / f"file{number % 64}").write_bytes(block)
        number += 1
