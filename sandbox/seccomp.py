"""A system-call filter for jobs: no network, no tracing of others, no new namespaces.

The filter is classic BPF, written out by hand so that no library is needed. It works without
privileges and under every backend. Numbers are from the kernel's syscall tables for x86-64 and
for the generic table that aarch64 uses.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence

from kopt.sandbox import linux

# name: (x86-64, aarch64)
_FORBIDDEN = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "quotactl": (179, 60),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_KILL = (62, 129)
_TGKILL = (234, 131)
_PRLIMIT = (302, 261)
_SECCOMP = (317, 277)

_CLONE_NEW_ANY = 0x7E020000 | 0x00000080  # every CLONE_NEW* flag
_AF_UNIX = 1
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_AT_NUMBER, _AT_ARCH, _AT_ARG0 = 0, 4, 16

_Instruction = tuple[int, int, int, int]


def available() -> bool:
    """Whether this architecture and kernel take our filter."""
    number = linux.syscall_number(*_SECCOMP)
    if number is None:
        return False
    action = struct.pack("I", _ERRNO)
    try:  # SECCOMP_GET_ACTION_AVAIL
        linux.raw_syscall("seccomp", number, 2, 0, action)
    except linux.LinuxError:
        return False
    return True


def _deny(code: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _when(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """`body`, which must return, runs only for system call `number`."""
    return [(_JEQ, 0, len(body), number), *body]


def program(protected: Sequence[int], unix_sockets: bool) -> list[_Instruction]:
    """The filter. `protected` are process ids (negative: groups) that must not get signals."""
    column = 0 if platform.machine() == "x86_64" else 1
    load_number: _Instruction = (_LOAD, 0, 0, _AT_NUMBER)
    load_arg0: _Instruction = (_LOAD, 0, 0, _AT_ARG0)
    allow: _Instruction = (_RETURN, 0, 0, _ALLOW)
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _AT_ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH[platform.machine()]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        load_number,
    ]
    if column == 0:
        code += [(_JGE, 0, 1, _X32_BIT), _deny(errno.ENOSYS)]
    for numbers in _FORBIDDEN.values():
        code += _when(numbers[column], [_deny(errno.EPERM)])
    # The C library falls back to clone, whose flags a filter can see.
    code += _when(_CLONE3[column], [_deny(errno.ENOSYS)])
    code += _when(
        _CLONE[column], [load_arg0, (_JSET, 0, 1, _CLONE_NEW_ANY), _deny(errno.EPERM), allow]
    )
    family = [(_JEQ, 0, 1, _AF_UNIX), allow] if unix_sockets else []
    code += _when(_SOCKET[column], [load_arg0, *family, _deny(errno.EACCES)])
    victims: list[_Instruction] = []
    for pid in protected:
        victims += [(_JEQ, 0, 1, pid & 0xFFFFFFFF), _deny(errno.EPERM)]
    for numbers in (_KILL, _TGKILL):
        code += _when(numbers[column], [load_arg0, *victims, allow])
    # Lowering another process's limits kills it as surely as a signal.
    code += _when(_PRLIMIT[column], [load_arg0, (_JEQ, 0, 1, 0), allow, _deny(errno.EPERM)])
    return [*code, allow]


def install(protected: Sequence[int] = (), *, unix_sockets: bool = True) -> None:
    """Filter this process and all its descendants, for good. Needs `no_new_privileges` first.

    Raises `LinuxError` when the kernel refuses.
    """
    instructions = program(protected, unix_sockets)
    code = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", op, yes, no, value) for op, yes, no, value in instructions)
    )
    header = struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code))
    number = linux.syscall_number(*_SECCOMP)
    if number is None:
        raise linux.LinuxError(f"seccomp: unknown on {platform.machine()}")
    # SECCOMP_SET_MODE_FILTER; SPEC_ALLOW keeps older kernels from slowing down memory accesses.
    linux.raw_syscall("seccomp", number, 1, 4, header)
