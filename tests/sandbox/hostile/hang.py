"""Never returns."""

import time

EXPECTED = "timeout"
WALL_S = 0.5


def entry(folder, request):
    while True:
        time.sleep(1)
