"""What `local` uses, and that it says what it does not contain."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kopt.sandbox import containment, landlock, seccomp, view, watch
from kopt.sandbox.containment import Containment
from kopt.sandbox.local import Local
from kopt.sandbox.protocol import Outcome
from kopt.sandbox.warm import Settings, WarmSandbox

RunFile = Callable[..., tuple[Outcome, Path]]

IDENTITY = """
import os
from pathlib import Path

def entry(folder, request):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "uid": os.getuid(),
        "capabilities": int(status["CapEff"], 16) & ~4 | int(status["CapBnd"], 16) & ~4 &
            (-1 if os.getuid() == 0 else 0),
        "privileges": status["NoNewPrivs"].strip(),
        "session": os.getsid(0) == os.getpid(),
        "cwd": os.getcwd(),
        "environment": sorted(os.environ),
        "stdin": os.read(0, 10).decode(),
    }
"""


def test_a_job_has_no_rights_and_a_clean_environment(
    sandbox: WarmSandbox, run_file: RunFile, tmp_path: Path
) -> None:
    file = tmp_path / "identity.py"
    file.write_text(IDENTITY)
    outcome, folder = run_file(sandbox, file)
    seen = outcome.answer
    means = sandbox.containment()
    assert seen["uid"] == (os.getuid() if means.uid is None else means.uid)
    assert seen["capabilities"] == 0
    assert seen["privileges"] == "1"
    assert seen["session"] is True
    assert seen["cwd"] == str(folder)
    assert seen["stdin"] == ""
    environment = set(seen["environment"])  # type: ignore[arg-type]
    assert environment <= {
        *("HOME", "TMPDIR", "PATH", "LANG", "LC_CTYPE", "USER", "LOGNAME", "XDG_CACHE_HOME"),
        *("KOPT_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"),
        *("KOPT_WORKER", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    }


def test_it_works_wherever_linux_runs(tmp_path: Path, quick: Settings) -> None:
    assert WarmSandbox(Local(), tmp_path, quick).probe() is None


def test_root_uses_an_unused_user(tmp_path: Path, quick: Settings) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    means = containment.for_local((tmp_path,))
    assert means.uid is not None or means.cgroup
    if means.reads_any_mode:  # only where the kernel bounds what it may read
        assert means.landlock
        assert means.seccomp


def test_an_unused_user_id_is_nobodys() -> None:
    found = containment.unused_uid()
    assert found is not None
    assert watch.user_tasks(found) == 0


def test_reachable_means_every_folder_on_the_way(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "file").write_text("")
    assert not containment.reachable_by_others(tmp_path / "file")
    assert not containment.reachable_by_others(tmp_path / "missing")
    assert containment.reachable_by_others(Path("/usr/lib"))


def test_what_is_not_contained_is_said() -> None:
    bare = " / ".join(Containment().lacks())
    for word in ("read any file", "write any file", "network", "signal", "kill its supervisor"):
        assert word in bare
    full = Containment(uid=60600, landlock=landlock.ABI_SIGNALS, seccomp=True)
    assert full.lacks() == ()
    assert any("network" in lack for lack in replace(full, seccomp=False).lacks())
    assert any("world-readable" in lack for lack in replace(full, landlock=0).lacks())
    without_user = replace(full, uid=None, landlock=5, seccomp=False).lacks()
    assert any("signal other processes" in lack for lack in without_user)


def test_hidden_folders_split_what_is_readable(tmp_path: Path) -> None:
    for name in ("a", "b/.kopt/run", "b/c"):
        (tmp_path / name).mkdir(parents=True)
    whole, listed = view.without([tmp_path], [tmp_path / "b" / ".kopt"])
    assert sorted(whole) == [tmp_path / "a", tmp_path / "b" / "c"]
    assert sorted(listed) == [tmp_path, tmp_path / "b"]
    assert view.without([tmp_path / "a"], [tmp_path / "b"]) == ([tmp_path / "a"], [])


def test_filter_and_landlock_are_used_where_the_kernel_has_them(tmp_path: Path) -> None:
    means = Local().containment((tmp_path,))
    assert means.seccomp is seccomp.available()
    assert means.landlock == landlock.abi()
