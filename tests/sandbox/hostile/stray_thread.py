"""Returns while threads go on, and hooks the interpreter's end."""

import atexit
import threading
import time

EXPECTED = "ok"
ANSWER = {"done": True}


def entry(folder, request):
    atexit.register(time.sleep, 600)
    threading.Thread(target=time.sleep, args=(600,)).start()
    return {"done": True}
