"""Job functions for the tests: the worker under test is pointed at this table."""

from __future__ import annotations

import runpy
from pathlib import Path

from kopt.gpu.trace import Json


def call(folder: Path, request: dict[str, Json]) -> dict[str, Json]:
    """Run `entry(folder, request)` of a Python file."""
    (folder / "stage").write_text("import")
    entry = runpy.run_path(str(request["file"]))["entry"]
    (folder / "stage").write_text("entry")
    answer: dict[str, Json] = entry(folder, request)
    return answer


FUNCTIONS = {"call": call}
