"""Is a failure the disk's fault? Asked before anybody is blamed for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kopt.gpu.errors import EnvironmentLacks

PLENTY_BYTES = 256 << 20
"""With so much room left once its own files are gone, whoever filled the disk did it alone."""

_NOTHING_BYTES = 1 << 20
_WORDS = ("No space left on device", "Disk quota exceeded", "database or disk is full")


def disk_full(path: Path) -> EnvironmentLacks:
    """The error of a full disk; what was finished before is on disk and stays."""
    return EnvironmentLacks(
        f"no space left on the disk while writing {path}",
        "free some space (kopt runs lists old runs), then continue: kopt optimize --resume RUN",
    )


def is_full(folder: Path, text: str) -> bool:
    """Whether work in `folder` that failed with `text` met a full disk.

    On a full disk a process may not even be able to leave a text.
    """
    said = any(words in text for words in _WORDS)
    return said or shutil.disk_usage(folder).free < _NOTHING_BYTES


def full_for(folder: Path, text: str) -> EnvironmentLacks | None:
    """The error to raise when work in `folder` failed with `text` for want of space.

    None where there would be room without what the failed work itself left in `folder`: then it is
    a failure like any other, since a hostile file can fill any disk.
    """
    if is_full(folder, text) and shutil.disk_usage(folder).free + _size(folder) < PLENTY_BYTES:
        return disk_full(folder)
    return None


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            status = (Path(place) / name).lstat()
            total += min(status.st_blocks * 512, status.st_size)
    return total
