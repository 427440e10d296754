"""Never returns and ignores every signal it can, in it and in a child."""

import os
import signal

EXPECTED = "timeout"
WALL_S = 0.5


def entry(folder, request):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    os.fork()
    while True:
        pass
