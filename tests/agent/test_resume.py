"""Killed at any moment, a run continues to the same answer and repeats no finished evaluation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "softmax.py"
COMMAND = [sys.executable, "-c", "from kopt.cli import main; main()", "optimize"]


def start(folder: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *args, "--json", "--budget-s", "120"] if "--resume" not in args else
        [*COMMAND, *args, "--json"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.slow
def test_killed_between_evaluations(tmp_path: Path) -> None:
    source = EXAMPLE.read_text().replace('"cols": 50304', '"cols": 32768')
    (tmp_path / "target.py").write_text(source)
    expected = finish(start(tmp_path, "target.py", "--seed", "1"))
    assert expected["best"] is not None

    process = start(tmp_path, "target.py", "--seed", "1")
    runs = tmp_path / ".kopt" / "runs"
    deadline = time.monotonic() + 200
    done: list[Path] = []
    while time.monotonic() < deadline and not done:
        time.sleep(0.05)
        new = [r for r in runs.iterdir() if r.name != expected["run_id"]]
        done = [p for r in new for p in r.glob("candidates/[0-9a-f]*/evaluation.json")]
    assert done, "no evaluation was finished in time"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = {path: path.stat().st_mtime_ns for path in done}

    run = done[0].parent.parent.parent.name
    resumed = finish(start(tmp_path, "--resume", run))
    assert resumed["status"] == expected["status"]
    assert resumed["best"]["id"] == expected["best"]["id"]
    assert {path: path.stat().st_mtime_ns for path in done} == before
