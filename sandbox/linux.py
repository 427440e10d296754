"""The Linux system calls that Python 3.11 does not wrap, through ctypes. No compiler needed."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_FOWNER = 3
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2

_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63


class LinuxError(OSError):
    """A system call failed; the message names it."""


def syscall_number(x86_64: int, aarch64: int) -> int | None:
    """This machine's number of a system call, None on an architecture we have no table for."""
    return {"x86_64": x86_64, "aarch64": aarch64}.get(platform.machine())


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise LinuxError(code, f"{what}: {os.strerror(code)}")
    return result


def raw_syscall(what: str, number: int, *args: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Call the kernel directly. Raises `LinuxError`."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    _libc.syscall.restype = ctypes.c_long
    return _checked(int(_libc.syscall(ctypes.c_long(number), *converted)), what)


def _prctl(what: str, option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), what)


def die_with_parent(signal_number: int) -> None:
    """Get `signal_number` when the parent dies. Changing the user id forgets it."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(yes: bool) -> None:
    """Allow or forbid processes of the same user to trace this one."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(yes))


def no_new_privileges() -> None:
    """From here on no program gains rights by being executed."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def become(uid: int | None, keep_capability: int | None) -> None:
    """Become `uid`, unless it is None, with no capability but `keep_capability`, for good.

    Programs that are executed get no others either.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        if capability == keep_capability:
            continue
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the kernel's last one, or not privileged: then there is nothing to drop
    if uid is not None:
        _prctl("PR_SET_KEEPCAPS", _PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kept = 0 if keep_capability is None else 1 << keep_capability
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, struct.pack("6I", low, low, low, high, high, high)), "capset")
    if keep_capability is not None:
        raise_ambient, number = (
            ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE),
            ctypes.c_ulong(keep_capability),
        )
        _checked(_libc.prctl(_PR_CAP_AMBIENT, raise_ambient, number, 0, 0), "PR_CAP_AMBIENT")


def has_capabilities(*numbers: int) -> bool:
    """Whether this process may use all of these."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, data), "capget")
    words = struct.unpack("6I", data.raw)
    effective = words[0] | words[3] << 32
    return all(effective >> number & 1 for number in numbers)


def unshare(flags: int) -> None:
    """Leave namespaces. Raises `LinuxError`."""
    _checked(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Join a namespace. Raises `LinuxError`."""
    _checked(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises `LinuxError`."""
    result = _libc.mount(
        source.encode() or None,
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _checked(result, f"mount {source or kind} on {target}")


def bind(source: Path, target: Path, *, writable: bool) -> None:
    """Show `source` at `target`, which exists; without set-user-id programs or device files."""
    mount(str(source), str(target), flags=MS_BIND | MS_REC)
    flags = MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | (0 if writable else MS_RDONLY)
    mount("", str(target), flags=flags | _kept_flags(target))


def _kept_flags(target: Path) -> int:
    """Flags a mount already has; an unprivileged remount may not take them away."""
    have = os.statvfs(target).f_flag
    # st_flags NOEXEC, NOATIME, NODIRATIME, RELATIME and their MS_ equivalents.
    pairs = ((os.ST_NOEXEC, MS_NOEXEC), (os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048))
    kept = sum(ms for st, ms in pairs if have & st)
    return kept | (MS_RDONLY if have & os.ST_RDONLY else 0)


def pivot_root_here() -> None:
    """Make the working folder, a mount, the root, and let go of the old one."""
    number = syscall_number(155, 41)
    if number is None:
        raise LinuxError(f"pivot_root: unknown on {platform.machine()}")
    raw_syscall("pivot_root", number, b".", b".")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount the old root")
    os.chdir("/")
