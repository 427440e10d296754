"""Which part of the file system a job sees, and how that view is mounted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import kopt
from kopt.sandbox import linux

_LIBRARIES = ("lib", "lib32", "lib64", "libx32")
_SYSTEM = (
    *(f"/{name}" for name in _LIBRARIES),
    *(f"/usr/{name}" for name in _LIBRARIES),
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)
_SHARED_PREFIXES = (Path("/usr"), Path("/usr/local"), Path("/"))
DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom"))
NEW_ROOT = Path("/dev/job")
"""Where a job's root is put together; a folder that nobody else uses."""
_ROOMS = ("gpu", "sandbox")
"""The rooms that run inside a job."""


@dataclass(frozen=True)
class View:
    """What a job may see. Everything else does not exist for it, or cannot be opened."""

    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    """Folders that stay hidden although they lie below a readable one, but for what is listed."""


def interpreter_paths(search_path: Iterable[Path] = ()) -> tuple[Path, ...]:
    """What a Python process needs: system libraries, this interpreter, its prefixes, kopt.

    Of a prefix only the parts that an environment owns are taken: a virtual environment made in
    a project's own folder would otherwise show the project.
    """
    found = [Path(name) for name in _SYSTEM]
    executable = Path(sys.executable)
    found.append(executable)
    for prefix in {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)}:
        found += [prefix / name for name in (*_LIBRARIES, "pyvenv.cfg")]
        if prefix not in _SHARED_PREFIXES:
            found.append(prefix / "bin")
    found += search_path
    found += site_folders()
    found += kopt_paths()
    return tuple(dict.fromkeys(path for path in found if os.path.lexists(path)))


def kopt_paths() -> list[Path]:
    """kopt's own code as far as jobs use it."""
    package = Path(next(iter(kopt.__path__))).absolute()
    return [package, *(package / room for room in _ROOMS)]  # the rooms may be links


def site_folders() -> list[Path]:
    """Where packages are installed for this process; the user's own place is one of them."""
    places = [Path(entry).absolute() for entry in sys.path if entry]
    return [place for place in places if place.name in ("site-packages", "dist-packages")]


def follow(path: Path) -> tuple[dict[Path, str], Path]:
    """The symbolic links on the way to `path`, with their text, and the real path at the end."""
    links: dict[Path, str] = {}
    rest = list(path.absolute().parts[1:])
    here = Path("/")
    while rest:
        part = rest.pop(0)
        if part == "..":
            here = here.parent
            continue
        there = here / part
        if not there.is_symlink():
            here = there
            continue
        if there in links:
            raise OSError(f"{path}: symbolic links in a circle")
        links[there] = str(there.readlink())
        target = Path(links[there])
        if target.is_absolute():
            here = Path("/")
        rest = [p for p in target.parts if p != "/"] + rest
    return links, here


def mount(view: View, root: Path, *, memory_files_bytes: int) -> None:
    """Mount `view` below the empty folder `root` and make it this process's root.

    /tmp and /dev/shm are private and in memory, each of at most `memory_files_bytes`. Needs an
    own mount namespace, and to be in the PID namespace whose /proc is to be shown.
    Raises `LinuxError` or `OSError`.
    """
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", str(root), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
    _mount_memory(root / "tmp", memory_files_bytes)
    links: dict[Path, str] = {}
    kinds: dict[Path, str] = {}
    for kind, paths in (("hidden", view.hidden), ("read", view.readable), ("write", view.writable)):
        for path in paths:
            if os.path.lexists(path):
                more, real = follow(path)
                links |= more
                kinds[real] = kind
    hidden: list[Path] = []
    for path in sorted(kinds, key=lambda p: len(p.parts)):
        above = next((kinds[parent] for parent in path.parents if parent in kinds), None)
        target = root / path.relative_to("/")
        if kinds[path] == "hidden":
            if above == "read":
                linux.mount("tmpfs", str(target), "tmpfs", linux.MS_NOSUID, "mode=755")
                hidden.append(target)
        elif kinds[path] != above:
            _make_mount_point(path, target)
            linux.bind(path, target, writable=kinds[path] == "write")
    for link, text in links.items():
        place = root / link.relative_to("/")
        if not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(text)
    _mount_kernel(root)
    _mount_memory(root / "dev" / "shm", memory_files_bytes)
    flags = linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    for target in [*hidden, root]:
        linux.mount("", str(target), flags=flags | linux.MS_BIND)
    os.chdir(root)
    linux.pivot_root_here()


def _make_mount_point(path: Path, target: Path) -> None:
    if path.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def _mount_memory(target: Path, most_bytes: int) -> None:
    """A private folder in memory that anybody may write."""
    target.mkdir(parents=True)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", str(target), "tmpfs", flags, f"mode=1777,size={most_bytes}")


def _mount_kernel(root: Path) -> None:
    """/proc of the job's own processes, and the harmless devices."""
    proc = root / "proc"
    proc.mkdir()
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", str(proc), "proc", flags)
    for name in ("sys", "sysrq-trigger", "irq", "bus", "acpi"):
        if (proc / name).exists():  # user id 0 without any capability may still write these
            linux.bind(proc / name, proc / name, writable=False)
    (root / "dev").mkdir()
    for device in DEVICES:
        target = root / device.relative_to("/")
        target.touch()
        linux.mount(str(device), str(target), flags=linux.MS_BIND)
    for name, text in (("fd", "/proc/self/fd"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / name).symlink_to(text)


def without(readable: Iterable[Path], hidden: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Split `readable` around `hidden`: what may be read whole, and what may only be listed.

    For Landlock, whose rules only ever add.
    """
    whole: list[Path] = []
    listed: list[Path] = []
    barred = [Path(os.path.realpath(path)) for path in hidden]
    waiting = [Path(os.path.realpath(path)) for path in readable]
    while waiting:
        path = waiting.pop()
        if path in barred:
            continue
        if any(inner.is_relative_to(path) for inner in barred) and path.is_dir():
            listed.append(path)
            waiting += [entry for entry in path.iterdir() if not entry.is_symlink()]
        else:
            whole.append(path)
    return whole, listed
