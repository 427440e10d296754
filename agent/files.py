"""Writes that are whole or absent, and file errors that say what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kopt.gpu.errors import EnvironmentLacks
from kopt.tools.disk import disk_full

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS}


def write_atomically(path: Path, data: str | bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data`: after a crash at any moment the old file or the new one is there.

    Raises `EnvironmentLacks` where the folder cannot be written or the disk is full.
    """
    raw = data.encode() if isinstance(data, str) else data
    with explained(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, where the file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network and overlay file systems
            raise
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the environment's file errors below into `EnvironmentLacks`; others pass.

    `path` is named where the error itself names no file.
    """
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else path
        raise _lacks(error, named) or error from error
    except sqlite3.OperationalError as error:
        lacks = database_lacks(error, path)
        raise lacks or error from error


def _lacks(error: OSError, path: Path) -> EnvironmentLacks | None:
    if error.errno in _FULL:
        return disk_full(path)
    if error.errno in _FORBIDDEN:
        return EnvironmentLacks(
            f"cannot write {path}: {error.strerror}",
            "choose a writable folder for runs: KOPT_RUNS=DIR, or `runs` in [tool.kopt]",
        )
    return None


def database_lacks(error: sqlite3.OperationalError, path: Path) -> EnvironmentLacks | None:
    """SQLite's own words for the same troubles."""
    text = str(error)
    if "full" in text:
        return disk_full(path)
    if "readonly" in text or "unable to open" in text or "disk I/O" in text:
        return EnvironmentLacks(
            f"cannot write {path}: {text}",
            "choose a writable folder for runs: KOPT_RUNS=DIR, or `runs` in [tool.kopt]",
        )
    return None
