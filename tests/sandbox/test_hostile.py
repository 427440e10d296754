"""Every hostile fixture ends as it says it must, under every backend that works here."""

from __future__ import annotations

import ast
import fcntl
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kopt
from kopt.sandbox import landlock
from kopt.sandbox.protocol import Limits, Outcome
from kopt.sandbox.warm import WarmSandbox

HOSTILE = sorted((Path(__file__).parent / "hostile").glob("*.py"))
OUTSIDE = (
    *(Path(name) for name in ("/", "/usr/lib", "/etc", "/tmp", sys.prefix)),
    *(Path(kopt.__file__).parent, HOSTILE[0].parent, HOSTILE[0].parent.parent),
)
CANARY = "canary-5c1d"
LIMITS = Limits(
    wall_s=60.0,
    memory_bytes=512 << 20,
    output_bytes=10_000,
    file_bytes=64 << 20,
    folder_bytes=256 << 20,
    processes=32,
)
RunFile = Callable[..., tuple[Outcome, Path]]


def expectations(file: Path) -> dict[str, Any]:
    """The constants at the top of a fixture, read without running it."""
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(file.read_text()).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }


def skip_where_not_contained(sandbox: WarmSandbox, name: str) -> None:
    """What a backend says that it lacks is not expected of it."""
    means = sandbox.containment()
    own_files = means.namespaces or means.landlock > 0
    own_signals = means.namespaces or means.uid is not None
    bound_signals = own_signals or means.seccomp or means.landlock >= landlock.ABI_SIGNALS
    needs = {
        "kills_everybody": own_signals,
        "kills_supervisor": bound_signals,
        "traces_supervisor": own_signals or means.landlock > 0,
        "writes_outside": own_files,
        "reads_secrets": own_files,
        "replaces_folder": own_files,
        "connects": means.network or means.seccomp,
        "namespaces": means.seccomp,
    }
    if not needs.get(name, True):
        pytest.skip("; ".join(sandbox.lacks()) or "needs a user or a namespace of its own")


@pytest.fixture(scope="module", autouse=True)
def _canary() -> Iterator[None]:
    """A secret in our environment, there before any worker is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOPT_TEST_CANARY", CANARY)
        yield


@pytest.mark.parametrize("file", HOSTILE, ids=lambda file: file.stem)
def test_ends_as_expected(sandbox: WarmSandbox, run_file: RunFile, file: Path) -> None:
    skip_where_not_contained(sandbox, file.stem)
    expected = expectations(file)
    secret = sandbox.root / "secret"
    secret.write_text("the seeds")
    limits = LIMITS
    if "WALL_S" in expected:
        limits = Limits(**{**vars(LIMITS), "wall_s": expected["WALL_S"]})
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        path = sandbox.root / f"socket-{file.stem}-{sandbox.name}"
        path.unlink(missing_ok=True)
        named.bind(str(path))
        named.listen()
        abstract.bind(f"\0kopt-test-{os.getpid()}")
        abstract.listen()
        outcome, folder = run_file(
            sandbox,
            file,
            limits,
            secret=str(secret),
            places=[str(place) for place in (*OUTSIDE, sandbox.root)],
            supervisors=[os.getpid()],
            canary=CANARY,
            port=server.getsockname()[1],
            socket=str(path),
            abstract=f"kopt-test-{os.getpid()}",
        )
    assert outcome.status == expected["EXPECTED"], outcome
    assert expected.get("DETAIL", "") in outcome.detail
    assert outcome.answer == expected.get("ANSWER", {})
    assert outcome.error_type == expected.get("ERROR_TYPE", "")
    assert set(expected.get("REMOVED", ())) <= set(outcome.removed)
    assert secret.read_text() == "the seeds"
    for place in (*OUTSIDE, sandbox.root):
        assert not (place / "kopt-was-here").exists()
    assert_nothing_is_left(folder)
    if "LOCKED" in expected:
        with open(folder / expected["LOCKED"]) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the daemon lives


def assert_nothing_is_left(folder: Path) -> None:
    """Only plain files and folders that we own remain, and no private ones."""
    for path in folder.rglob("*"):
        assert path.is_file() or path.is_dir()
        assert not path.is_symlink()
        assert path.stat().st_uid == os.getuid()
    assert not (folder / ".private").exists()


def test_a_worker_outlives_them_all(sandbox: WarmSandbox, run_file: RunFile) -> None:
    outcome, _ = run_file(sandbox, Path(__file__).parent / "hostile" / "stray_thread.py", LIMITS)
    assert outcome.answer == {"done": True}
    assert sandbox.starts == 1


def test_output_is_capped_and_counted(sandbox: WarmSandbox, run_file: RunFile) -> None:
    file = Path(__file__).parent / "hostile" / "prints_gigabyte.py"
    outcome, folder = run_file(sandbox, file, LIMITS)
    assert len(outcome.output) == LIMITS.output_bytes
    assert outcome.output_dropped_bytes == (1 << 30) - LIMITS.output_bytes
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 10_000


def test_the_stage_and_the_users_frames_are_told(
    sandbox: WarmSandbox, run_file: RunFile, tmp_path: Path
) -> None:
    file = tmp_path / "raises.py"
    file.write_text("def entry(folder, request):\n    raise ValueError('seven')\n")
    outcome, _ = run_file(sandbox, file, LIMITS)
    assert (outcome.stage, outcome.error_type, outcome.error) == ("entry", "ValueError", "seven")
    assert "raises.py" in outcome.traceback
    assert "sandbox/host.py" not in outcome.traceback
    broken = tmp_path / "broken.py"
    broken.write_text("import nonexistent_module\n")
    outcome, _ = run_file(sandbox, broken, LIMITS)
    assert (outcome.stage, outcome.error_type) == ("import", "ModuleNotFoundError")
