"""Leaves everything but plain files in its folder, and takes rights away."""

import os
import socket
from pathlib import Path

EXPECTED = "ok"
ANSWER = {"left": True}
REMOVED = ("hardlink", "link", "pipe", "plain", "socket")


def entry(folder, request):
    (folder / "link").symlink_to("/")
    os.mkfifo(folder / "pipe")
    (folder / "plain").write_text("x")
    os.link(folder / "plain", folder / "hardlink")
    try:
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(folder)
            server.bind("socket")
    except OSError:
        (folder / "socket").symlink_to("nowhere")  # where no socket can be made
    os.chdir(folder)
    for _ in range(2000):
        Path("d" * 50).mkdir()
        os.chdir("d" * 50)
    locked = folder / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    (locked / "file").chmod(0)
    locked.chmod(0)
    return {"left": True}
