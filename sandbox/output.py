"""The capped end of a job's stdout and stderr."""

from __future__ import annotations

import contextlib
import fcntl
import os

_CHUNK = 1 << 20


class OutputDrain:
    """Reads all that comes, keeps the first bytes and counts the rest, so no writer waits long."""

    def __init__(self, keep: int) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        with contextlib.suppress(OSError):  # a bigger pipe only saves switches
            fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, _CHUNK)
        self._keep = keep
        self._kept = bytearray()
        self.dropped = 0

    def read_available(self) -> bool:
        """Take one helping of what is there; False once nothing is, or nobody can write more."""
        try:
            data = os.read(self.reader, _CHUNK)
        except BlockingIOError:
            return False
        room = max(0, self._keep - len(self._kept))
        self._kept += data[:room]
        self.dropped += max(0, len(data) - room)
        return bool(data)

    def finish(self) -> None:
        """Take what is left once the writers are dead."""
        while self.read_available():
            pass

    def text(self) -> str:
        """What was kept."""
        return self._kept.decode(errors="replace")

    def close_writer(self) -> None:
        """Let go of our copy of the writing end, so that the job's end is seen."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Let go of both ends."""
        self.close_writer()
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1
