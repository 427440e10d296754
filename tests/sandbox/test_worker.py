"""The warm worker: what it costs to lose it, and what is left when its owner goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kopt.gpu.errors import EnvironmentLacks
from kopt.sandbox import watch
from kopt.sandbox.protocol import Job, Limits, Outcome, OutcomeStatus
from kopt.sandbox.warm import Settings, WarmSandbox

HOSTILE = Path(__file__).parent / "hostile"
RunFile = Callable[..., tuple[Outcome, Path]]

OWNER = """
import json, sys, time
from pathlib import Path
from kopt.sandbox import select
from kopt.sandbox.protocol import Job, Limits
from kopt.sandbox.warm import Settings

if __name__ == "__main__":
    name, root, here = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    settings = Settings("hostile_functions:FUNCTIONS", (), (here,))
    folder = root / "job"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"file": str(here / "hostile" / "hang_deaf.py")}))
    with select.get(name, root, settings) as sandbox:
        print("running", flush=True)
        try:
            sandbox.run(Job(folder, "call", Limits(wall_s=600)))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for something that happens soon, for as long as a loaded machine may take."""
    deadline = time.monotonic() + 30
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def owner(sandbox: WarmSandbox, tmp_path: Path) -> subprocess.Popen[str]:
    """A process like the command line, in the middle of a job that hangs."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    root = tmp_path / "root"
    root.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), sandbox.name, str(root), str(HOSTILE.parent)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    # The worker, the keeper, the job and its child; bubblewrap adds two of its own.
    assert eventually(lambda: len(watch.descendants(process.pid)) >= 4)
    return process


def alive(pids: list[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    return [pid for pid in pids if watch.usage([pid]).processes]


def test_killing_the_owner_leaves_nothing(owner: subprocess.Popen[str]) -> None:
    below = watch.descendants(owner.pid)
    owner.kill()
    owner.wait()
    assert eventually(lambda: not alive(below))


def test_an_interrupt_reaches_the_owner_alone_and_ends_the_job(
    owner: subprocess.Popen[str],
) -> None:
    below = watch.descendants(owner.pid)
    os.killpg(owner.pid, signal.SIGINT)
    output, _ = owner.communicate(timeout=60)
    assert output == "interrupted\n"
    assert owner.returncode == 0
    assert not alive(below)


def test_a_worker_that_dies_idle_is_replaced(sandbox: WarmSandbox, run_file: RunFile) -> None:
    before = sandbox.starts
    for pid in sandbox.processes():
        os.kill(pid, signal.SIGKILL)
    outcome, _ = run_file(sandbox, HOSTILE / "stray_thread.py", Limits())
    assert outcome.status is OutcomeStatus.OK
    assert sandbox.starts == before + 1


def test_a_worker_that_dies_in_a_job_makes_it_a_crash(
    sandbox: WarmSandbox, run_file: RunFile
) -> None:
    def kill_all_soon() -> None:
        eventually(lambda: len(sandbox.processes()) >= idle + 3)
        for pid in sandbox.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    sandbox.start()
    idle = len(sandbox.processes())
    killer = threading.Thread(target=kill_all_soon)
    killer.start()
    outcome, _ = run_file(sandbox, HOSTILE / "hang_deaf.py", Limits(wall_s=60))
    killer.join()
    assert outcome.status is OutcomeStatus.CRASH
    outcome, _ = run_file(sandbox, HOSTILE / "stray_thread.py", Limits())
    assert outcome.status is OutcomeStatus.OK


def test_closing_ends_every_process(sandbox: WarmSandbox, tmp_path: Path, quick: Settings) -> None:
    with WarmSandbox(sandbox.backend, tmp_path, quick) as other:
        started = other.processes()
        assert started
    assert not alive(started)
    assert other.processes() == []


def test_a_fork_of_the_owner_leaves_the_worker_alone(
    sandbox: WarmSandbox, run_file: RunFile
) -> None:
    sandbox.start()
    before = sandbox.starts
    child = os.fork()
    if child == 0:
        sandbox.close()
        os._exit(0)
    os.waitpid(child, 0)
    outcome, _ = run_file(sandbox, HOSTILE / "stray_thread.py", Limits())
    assert outcome.status is OutcomeStatus.OK
    assert sandbox.starts == before


def test_it_can_be_started_from_a_thread_that_ends(
    sandbox: WarmSandbox, tmp_path: Path, quick: Settings, run_file: RunFile
) -> None:
    other = WarmSandbox(sandbox.backend, tmp_path, quick)
    starter = threading.Thread(target=other.start)
    starter.start()
    starter.join()
    outcome, _ = run_file(other, HOSTILE / "stray_thread.py")
    other.close()
    assert outcome.status is OutcomeStatus.OK
    assert other.starts == 1


def test_a_job_outside_the_root_is_refused(sandbox: WarmSandbox, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not below"):
        sandbox.run(Job(tmp_path, "call"))


def test_what_cannot_be_imported_is_named(sandbox: WarmSandbox, tmp_path: Path) -> None:
    broken = WarmSandbox(sandbox.backend, tmp_path, Settings(preload=("no_such_module",)))
    with pytest.raises(EnvironmentLacks, match="no_such_module"):
        broken.start()


def test_packages_are_found_where_this_process_has_them(
    sandbox: WarmSandbox, tmp_path: Path, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `pip install --user`, which the worker's own interpreter does not look at."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "installed_elsewhere.py").write_text("VALUE = 5\n")
    monkeypatch.syspath_prepend(str(site))
    file = tmp_path / "imports.py"
    file.write_text(
        "import importlib, sys\n"
        "module = importlib.reload(sys.modules['installed_elsewhere'])\n"
        "def entry(folder, request):\n"
        "    return {'value': module.VALUE}\n"
    )
    root = tmp_path / "root"
    (root / "job").mkdir(parents=True)
    (root / "job" / "job.json").write_text(f'{{"file": "{file}"}}')
    settings = replace(quick, preload=("installed_elsewhere",))
    with WarmSandbox(sandbox.backend, root, settings) as other:
        outcome = other.run(Job(root / "job", "call", readable=(file,)))
    assert outcome.answer == {"value": 5}


def test_a_folder_that_cannot_be_written_is_the_environments_fault(
    sandbox: WarmSandbox, tmp_path: Path, quick: Settings
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "cache").write_text("a file where a folder must be made")
    with (
        WarmSandbox(sandbox.backend, tmp_path, quick) as other,
        pytest.raises(EnvironmentLacks, match="cannot be prepared"),
    ):
        other.run(Job(tmp_path / "job", "call", cache=tmp_path / "cache" / "deep"))


def test_a_cache_is_kept_for_the_next_job(
    sandbox: WarmSandbox, tmp_path: Path, quick: Settings
) -> None:
    file = tmp_path / "remembers.py"
    file.write_text(
        "import os\n"
        "from pathlib import Path\n"
        "def entry(folder, request):\n"
        "    place = Path(os.environ['TRITON_CACHE_DIR'])\n"
        "    place.mkdir(parents=True, exist_ok=True)\n"
        "    (place / request['word']).write_text('')\n"
        "    return {'seen': sorted(path.name for path in place.iterdir())}\n"
    )
    root = tmp_path / "root"
    root.mkdir()
    seen = []
    with WarmSandbox(sandbox.backend, root, quick) as other:
        for word, cache in (("a", "x"), ("b", "x"), ("c", "y"), ("d", None), ("e", None)):
            folder = root / word
            folder.mkdir()
            (folder / "job.json").write_text(f'{{"file": "{file}", "word": "{word}"}}')
            place = root / cache if cache else None
            outcome = other.run(Job(folder, "call", readable=(file,), cache=place))
            seen.append(outcome.answer["seen"])
    assert seen == [["a"], ["a", "b"], ["c"], ["d"], ["e"]]


def test_readable_paths_are_readable_and_no_more(
    sandbox: WarmSandbox, run_file: RunFile, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o700)
    (project / "helper.py").write_text("VALUE = 7\n")
    (project / "target.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "here = Path(__file__).parent\n"
        "sys.path.insert(0, str(here))\n"
        "import helper\n"
        "def entry(folder, request):\n"
        "    try:\n"
        "        (here / 'new').write_text('')\n"
        "        wrote = True\n"
        "    except OSError:\n"
        "        wrote = False\n"
        "    return {'value': helper.VALUE, 'wrote': wrote}\n"
    )
    folder = sandbox.root / "reads"
    folder.mkdir()
    (folder / "job.json").write_text(f'{{"file": "{project}/target.py"}}')
    outcome = sandbox.run(Job(folder, "call", readable=(project,)))
    if sandbox.containment().namespaces or sandbox.containment().landlock:
        assert outcome.answer == {"value": 7, "wrote": False}
    else:
        assert outcome.answer["value"] == 7


def test_the_root_stays_hidden_inside_a_readable_folder(
    sandbox: WarmSandbox, tmp_path: Path, quick: Settings
) -> None:
    """As `.kopt`, with the seeds in it, lies in the project that a target may import from."""
    if not (sandbox.containment().namespaces or sandbox.containment().landlock):
        pytest.skip("; ".join(sandbox.lacks()))
    root = tmp_path / ".kopt"
    folder = root / "run" / "job"
    folder.mkdir(parents=True)
    (root / "seeds").write_text("secret")
    (root / "run" / "inputs").write_text("public")
    file = tmp_path / "target.py"
    file.write_text(
        "from pathlib import Path\n"
        "def entry(folder, request):\n"
        "    seen = []\n"
        "    for name in ('.kopt/seeds', '.kopt/run/inputs', 'target.py'):\n"
        "        try:\n"
        "            (Path(__file__).parent / name).read_text()\n"
        "            seen.append(name)\n"
        "        except OSError:\n"
        "            pass\n"
        "    return {'seen': seen}\n"
    )
    (folder / "job.json").write_text(f'{{"file": "{file}"}}')
    with WarmSandbox(sandbox.backend, root, quick) as other:
        outcome = other.run(Job(folder, "call", readable=(tmp_path, root / "run" / "inputs")))
    assert outcome.answer == {"seen": [".kopt/run/inputs", "target.py"]}
