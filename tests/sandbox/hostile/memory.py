"""Takes all the memory it can get."""

EXPECTED = "memory"


def entry(folder, request):
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))
