"""A job's folder after the job: nothing in it may trick or stall whoever reads it next."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kopt.gpu.trace import Json

_MAX_DEPTH = 12
_MAX_ENTRIES = 100_000
_MAX_NAMED = 20
_MAX_ANSWER_BYTES = 16 << 20
_MAX_STAGE_BYTES = 64


def clean(folder: Path, owner: int | None = None) -> tuple[str, ...]:
    """Delete all but plain files and folders, and make those readable; says what was deleted.

    Links are deleted too, hard ones included: they can lead outside. So is what lies absurdly deep
    or is too much to look through. With `owner` everything is given to that user.
    """
    removed: list[str] = []
    folder.chmod(0o755)
    if owner is not None:
        os.chown(folder, owner, -1)
    waiting = [(folder, 0)]
    seen = 0
    while waiting:
        here, depth = waiting.pop()
        for path, info in _entries(here):
            seen += 1
            is_folder = stat.S_ISDIR(info.st_mode)
            plain = is_folder or (stat.S_ISREG(info.st_mode) and info.st_nlink == 1)
            if not plain or depth >= _MAX_DEPTH or seen > _MAX_ENTRIES:
                if len(removed) < _MAX_NAMED:
                    removed.append(ascii(str(path.relative_to(folder)))[1:-1])
                remove(path)
                continue
            needed = stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if is_folder else 0)
            if info.st_mode & 0o777 & needed != needed:
                path.chmod(stat.S_IMODE(info.st_mode) & 0o777 | needed)
            if owner is not None and info.st_uid != owner:
                os.chown(path, owner, -1, follow_symlinks=False)
            if is_folder:
                waiting.append((path, depth + 1))
    return tuple(removed)


def give_to(folder: Path, uid: int) -> None:
    """Make `uid` the owner of a folder and everything in it."""
    os.chown(folder, uid, -1)
    waiting = [folder]
    while waiting:
        for path, info in _entries(waiting.pop()):
            os.chown(path, uid, -1, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                waiting.append(path)


def remove(path: Path) -> None:
    """Delete a file or a whole tree, however deep and whatever its modes; missing is fine.

    Folders are moved up beside each other before they are emptied, so no path grows too long.
    """
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode):
        path.unlink()
        return
    path.chmod(0o700)
    number = 0
    waiting = [path]
    while waiting:
        here = waiting.pop()
        for entry, inner in _entries(here):
            if not stat.S_ISDIR(inner.st_mode):
                entry.unlink()
                continue
            entry.chmod(0o700)
            if here == path:
                waiting.append(entry)
                continue
            number += 1
            moved = path / f".{number}.{os.getpid()}"
            while os.path.lexists(moved):
                number += 1
                moved = path / f".{number}.{os.getpid()}"
            entry.rename(moved)
            waiting.append(moved)
        if here != path:
            here.rmdir()
    path.rmdir()


def read_answer(path: Path) -> dict[str, Json] | None:
    """The JSON object in a file that a job wrote; None if it is missing or no such thing."""
    data = read_bounded(path, _MAX_ANSWER_BYTES)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def read_stage(folder: Path) -> str:
    """The word in `folder/stage`, made printable; empty if there is none."""
    data = read_bounded(folder / "stage", _MAX_STAGE_BYTES) or b""
    return "".join(c for c in data.decode(errors="replace").strip() if c.isprintable())


def read_bounded(path: Path, most: int) -> bytes | None:
    """A plain file's content, never followed through a link, never waited for; else None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > most:
            return None
        data = bytearray()
        while chunk := os.read(descriptor, most + 1 - len(data)):
            data += chunk
        return bytes(data)
    finally:
        os.close(descriptor)


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        found = [(Path(entry.path), entry.stat(follow_symlinks=False)) for entry in entries]
    yield from found
