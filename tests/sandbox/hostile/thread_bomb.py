"""Starts threads without end."""

import threading

EXPECTED = "error"
ERROR_TYPE = "RuntimeError"


def entry(folder, request):
    forever = threading.Event()
    for _ in range(100_000):
        threading.Thread(target=forever.wait, daemon=True).start()
