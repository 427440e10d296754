"""Backend without namespaces: works on every Linux, contains what the kernel offers for free."""

from __future__ import annotations

import sys
from pathlib import Path

from kopt.sandbox import containment


class Local:
    """Jobs in their own session under rlimits, Landlock and a system-call filter.

    As root they run as an unused user, or in a pids control group. What the kernel at hand does
    not give is named by `lacks`.
    """

    name = "local"

    def unavailable(self) -> str | None:
        """Only Linux has what it needs, and processes are found in /proc."""
        if sys.platform != "linux":
            return f"needs Linux, this is {sys.platform}"
        if not Path("/proc/self/status").exists():
            return "/proc is not mounted; mount it: mount -t proc proc /proc"
        return None

    def containment(self, needed: tuple[Path, ...]) -> containment.Containment:
        """The strongest that works here."""
        return containment.for_local(needed)

    def command(self, python: list[str], root: Path) -> list[str]:
        """The worker is a plain child process."""
        return python
