"""One process per run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kopt.agent.files import explained
from kopt.gpu.errors import UsageError


class RunLock:
    """Held as long as the process lives; the kernel releases it however the process ends."""

    def __init__(self, path: Path) -> None:
        with explained(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise UsageError(
                f"the run in {path.parent} is in use by process {owner}",
                "wait for it to end, or stop it (it saves by itself) and resume",
            ) from error
        os.ftruncate(self._handle, 0)
        with explained(path):
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in."""
        os.close(self._handle)
