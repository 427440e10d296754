"""What ships, and what importing the package costs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
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


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files alone: nothing else slips in, no build litters the checkout."""
    tracked()
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def packaged(name: str) -> str:
    return name.removeprefix("src/") if name.startswith("src/") else f"kopt/{name}"


def wheel_names(source: Path, to: Path) -> set[str]:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "-w", to, source),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = to.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_has_every_room_and_nothing_else(copy: Path, tmp_path: Path) -> None:
    names = wheel_names(copy, tmp_path)
    assert {packaged(name) for name in tracked()} - names == set()
    assert "kopt/py.typed" in names
    assert all(n.startswith(("kopt/", "kopt_gpu-")) for n in names)


def test_sdist_builds_the_same_wheel(copy: Path, tmp_path: Path) -> None:
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=copy, check=True, capture_output=True
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / sdist.name.removesuffix(".tar.gz")
    names = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert {f"src/{packaged(name)}" for name in tracked()} - names == set()
    assert not {"tests", "examples"} & names
    assert wheel_names(root, tmp_path) == wheel_names(copy, tmp_path / "direct")


def test_import_is_light() -> None:
    heavy = "{'torch', 'triton', 'langgraph', 'openai', 'numpy', 'libcst'} & set(sys.modules)"
    code = f"import sys, kopt, kopt.cli; found = {heavy}; assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
