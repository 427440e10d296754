"""What a job under bubblewrap sees."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kopt.gpu.errors import EnvironmentLacks
from kopt.sandbox import bubblewrap, select, view
from kopt.sandbox.protocol import Outcome
from kopt.sandbox.warm import Settings, WarmSandbox

RunFile = Callable[..., tuple[Outcome, Path]]

LOOKS = """
import os
from pathlib import Path

def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())

def entry(folder, request):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    with open("/tmp/mine", "x") as file, open("/dev/shm/mine", "x"):
        file.write("private")
    return {
        "root": names("/"),
        "processes": [name for name in names("/proc") if name.isdigit()],
        "devices": names("/dev"),
        "beside": names(Path(request["beside"])),
        "repository": names(request["repository"]),
        "network": names("/sys/class/net") if Path("/sys/class/net").exists() else [],
        "filter": status["Seccomp"].strip(),
        "privileges": status["NoNewPrivs"].strip(),
        "writable": [name for name in ("/", "/dev", "/usr/lib", "/etc", "/proc/sys/kernel")
                     if os.access(name, os.W_OK)],
    }
"""


@pytest.fixture(scope="module")
def bubble(tmp_path_factory: pytest.TempPathFactory, quick: Settings) -> Iterator[WarmSandbox]:
    try:
        found = select.get("bubblewrap", tmp_path_factory.mktemp("root"), quick)
    except EnvironmentLacks as error:
        pytest.skip(error.message)
    assert isinstance(found, WarmSandbox)
    with found:
        yield found


def test_a_job_sees_the_interpreter_and_its_own_paths(
    bubble: WarmSandbox, run_file: RunFile, tmp_path: Path
) -> None:
    repository = Path(view.__file__).resolve().parent.parent
    file = tmp_path / "looks.py"
    file.write_text(LOOKS)
    for _ in range(2):  # the second finds nothing of the first
        outcome, folder = run_file(
            bubble, file, beside=str(bubble.root), repository=str(repository)
        )
        seen = outcome.answer
        assert seen, outcome
        assert seen["beside"] == [folder.name]
        assert seen["processes"] == ["1", "2"]
        assert seen["network"] == []
        assert seen["writable"] == []
        assert (seen["filter"], seen["privileges"]) == ("2", "1")
        assert not {"home", "var", "run", "boot", "srv"} & set(seen["root"])  # type: ignore[arg-type]
        assert set(seen["devices"]) == {  # type: ignore[arg-type]
            *("fd", "full", "null", "random", "shm", "stderr", "stdout", "urandom", "zero")
        }
        assert not {".git", "agent", "tools", "docs"} & set(seen["repository"])  # type: ignore[arg-type]


def test_it_works_wherever_bubblewrap_makes_namespaces(tmp_path: Path, quick: Settings) -> None:
    namespaces = ["--unshare-user", "--unshare-pid", "--unshare-net", "--proc", "/proc"]
    try:
        subprocess.run(["bwrap", "--ro-bind", "/", "/", *namespaces, "true"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(str(error))
    for backend in bubblewrap.variants():
        assert WarmSandbox(backend, tmp_path, quick).probe() is None


def test_links_on_the_way_are_kept(bubble: WarmSandbox, run_file: RunFile, tmp_path: Path) -> None:
    """A target may be reached through links, of folders and of files."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "target.py").write_text("def entry(folder, request):\n    return {'file': __file__}\n")
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / "again").symlink_to(tmp_path / "linked" / "target.py")
    for path in (tmp_path / "linked" / "target.py", tmp_path / "again"):
        outcome, _ = run_file(bubble, path)
        assert outcome.answer == {"file": str(path)}, outcome


def test_it_says_what_it_contains(bubble: WarmSandbox) -> None:
    said = " ".join(bubble.isolation())
    assert "PID, mount and IPC namespace per job" in said
    assert not any("network" in lack for lack in bubble.lacks())
