"""Landlock: file access, signals and TCP confined to what a job needs, without any privilege.

Kernel 5.13 has files, 6.2 truncation, 6.7 TCP, 6.12 signals and abstract sockets; what a kernel
does not know is left out. https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from kopt.sandbox import linux

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every architecture

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_IOCTL_DEVICE = 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_RIGHTS = (1 << 16) - 1  # ABI 5 on
_TCP_BIND_CONNECT = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3

ABI_SIGNALS = 6
"""From this version on jobs cannot signal processes outside."""


def abi() -> int:
    """The kernel's Landlock version; 0 if there is none or it is switched off."""
    try:
        return linux.raw_syscall("landlock", _CREATE, 0, 0, 1)
    except linux.LinuxError:
        return 0


def confine(readable: Iterable[Path], writable: Iterable[Path], listable: Iterable[Path]) -> None:
    """Confine this process and its descendants. Needs `no_new_privileges` first.

    Below `readable` files may be read and executed, below `writable` anything may be done, in
    `listable` names may be seen. Paths that do not exist are skipped. Raises `LinuxError`.
    """
    version = abi()
    rights = _RIGHTS_BY_ABI.get(version, _ALL_RIGHTS)
    attributes = struct.pack("Q", rights)
    if version >= 4:
        attributes += struct.pack("Q", _TCP_BIND_CONNECT)
    if version >= ABI_SIGNALS:
        attributes += struct.pack("Q", _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = linux.raw_syscall("landlock", _CREATE, attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in listable:
            _allow(ruleset, path, _READ_DIR)
        for path in writable:
            _allow(ruleset, path, rights)
        linux.raw_syscall("landlock", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FILE_RIGHTS
        if rights:
            rule = struct.pack("=Qi", rights, descriptor)
            linux.raw_syscall("landlock", _ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(descriptor)
