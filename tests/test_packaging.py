"""What ships, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("gpu", "sandbox", "prompts", "tools", "agent", "evals", "bot")


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", *ROOMS, "src/kopt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return [
        name for name in done.stdout.split() if name.endswith((".py", ".md", ".toml", ".typed"))
    ]


def test_wheel_has_every_room_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in tracked():
        inside = name.removeprefix("src/") if name.startswith("src/") else f"kopt/{name}"
        assert inside in names
    assert all(n.startswith(("kopt/", "kopt_gpu-")) for n in names)


def test_import_is_light() -> None:
    heavy = "{'torch', 'triton', 'langgraph', 'openai', 'numpy', 'libcst'} & set(sys.modules)"
    code = f"import sys, kopt, kopt.cli; found = {heavy}; assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
