"""A running sandbox for each backend, shared by a module's tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kopt.gpu.trace import Json
from kopt.sandbox import bubblewrap, cgroup, seccomp
from kopt.sandbox.containment import Containment
from kopt.sandbox.local import Local
from kopt.sandbox.protocol import Job, Limits, Outcome
from kopt.sandbox.warm import Backend, Settings, WarmSandbox

HERE = Path(__file__).parent
RunFile = Callable[..., tuple[Outcome, Path]]


class BareLocal(Local):
    """`local` as on a kernel without Landlock, where root cannot give jobs a user of their own."""

    def unavailable(self) -> str | None:
        """Only root can make control groups; what is left of it elsewhere is not worth a run."""
        return None if cgroup.available() else "no control group can be made here"

    def containment(self, needed: tuple[Path, ...]) -> Containment:
        """A control group and the system-call filter."""
        return Containment(cgroup=True, seccomp=seccomp.available())


def _backends() -> dict[str, Backend]:
    """Every way to run jobs on this machine, by a name for test ids."""
    names = ("bubblewrap", "bubblewrap-user-namespace")
    namespaces = dict(zip(names, bubblewrap.variants(), strict=False))
    return {"local": Local(), "local-bare": BareLocal(), **namespaces}


@pytest.fixture(scope="session")
def quick() -> Settings:
    """A worker that imports nothing, so that it starts at once, and runs the tests' functions."""
    return Settings(functions="hostile_functions:FUNCTIONS", preload=(), search_path=(HERE,))


@pytest.fixture(scope="module", params=list(_backends()))
def sandbox(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, quick: Settings
) -> Iterator[WarmSandbox]:
    """A started sandbox; its tests are skipped, with the reason, where it does not work."""
    backend = _backends()[request.param]
    found = WarmSandbox(backend, tmp_path_factory.mktemp("root"), quick)
    problem = found.probe()
    if problem is not None:
        pytest.skip(problem)
    with found:
        yield found


_number = itertools.count()


@pytest.fixture(scope="session")
def run_file() -> RunFile:
    """Runs `entry` of a file in a fresh folder; gives the outcome and the folder."""

    def run(
        sandbox: WarmSandbox, file: Path, limits: Limits | None = None, **request: Json
    ) -> tuple[Outcome, Path]:
        folder = sandbox.root / f"job{next(_number)}"
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps({"file": str(file), **request}))
        job = Job(folder, "call", limits or Limits(), readable=(file,))
        return sandbox.run(job), folder

    return run
