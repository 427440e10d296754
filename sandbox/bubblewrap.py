"""Backend with namespaces, made by bubblewrap: https://github.com/containers/bubblewrap

bubblewrap starts the worker without network and with a read-only root; the worker keeps the right
to make namespaces, and gives every job a PID, a mount and an IPC namespace of its own, in which
only the interpreter, its prefixes and the job's own paths exist.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kopt.sandbox import containment
from kopt.sandbox.view import DEVICES, NEW_ROOT

INSTALL = "install it: apt-get install bubblewrap"

_ALWAYS = ("CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_KILL", "CAP_SYS_PTRACE")
_AS_ROOT = ("CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_CHOWN")


class Bubblewrap:
    """Namespaces per job. `user_namespace` is how an ordinary user gets them.

    Root needs none where it has CAP_SYS_ADMIN, and then runs jobs as an unused user id.
    """

    name = "bubblewrap"

    def __init__(self, *, user_namespace: bool) -> None:
        self._user_namespace = user_namespace

    def unavailable(self) -> str | None:
        """bubblewrap must be there; whether it works is found by running it."""
        return None if shutil.which("bwrap") else f"bwrap is not installed; {INSTALL}"

    def containment(self, needed: tuple[Path, ...]) -> containment.Containment:
        """Namespaces, no network, the filter, and as root an unused user id."""
        return containment.for_namespaces(privileged=not self._user_namespace)

    def command(self, python: list[str], root: Path) -> list[str]:
        """bwrap's command line."""
        capabilities = _ALWAYS if self._user_namespace else _ALWAYS + _AS_ROOT
        return [
            shutil.which("bwrap") or "bwrap",
            *(["--unshare-user"] if self._user_namespace else []),
            *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--hostname", "kopt"),
            *("--ro-bind", "/", "/"),
            # Not `--dev`: for its terminals bwrap would end in a second user namespace, whose
            # processes have no say over the first one's.
            *("--tmpfs", "/dev", "--dir", str(NEW_ROOT), "--proc", "/proc"),
            *(word for device in DEVICES for word in ("--dev-bind", str(device), str(device))),
            *("--dir", "/dev/shm", "--setenv", "TMPDIR", "/dev/shm"),
            *("--bind", str(root), str(root)),
            *(word for name in capabilities for word in ("--cap-add", name)),
            *("--chdir", "/", "--"),
            *python,
        ]


def variants() -> tuple[Bubblewrap, ...]:
    """The ways to try here, strongest first."""
    by_user = Bubblewrap(user_namespace=True)
    return (Bubblewrap(user_namespace=False), by_user) if os.geteuid() == 0 else (by_user,)
