"""The difference between the target and the best, as a patch."""

from __future__ import annotations

import difflib
from pathlib import Path


def unified(file: str, before: str, after: str) -> str:
    """A unified diff that `patch FILE < best.patch` applies."""
    name = Path(file).name
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{name}",
        f"b/{name}",
    )
    marked = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return "".join(marked)
