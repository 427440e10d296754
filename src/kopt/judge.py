"""What the commands share: a target, a GPU, a sandbox and a session. Imports are lazy."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.gpu.errors import UsageError
from kopt.gpu.spec import DeviceSpec, list_specs, load_spec

if TYPE_CHECKING:
    from kopt.tools.models import Candidate, Target
    from kopt.tools.session import Session


def device(name: str) -> DeviceSpec:
    """The GPU to judge on. Raises `UsageError` for one whose code the virtual GPU does not run."""
    spec = load_spec("a100" if name == "auto" else name)
    if not spec.executes:
        able = ", ".join(s.name for s in list_specs() if s.executes)
        raise UsageError(
            f"the virtual GPU does not execute code for {spec.marketing_name} yet",
            f"choose one of: {able}",
        )
    return spec


def chosen_target(path: Path, entry: str | None, workloads: list[str] | None) -> Target:
    """The target with all its workloads, or the named ones in its own order.

    Raises `UsageError` for what is no target and for a workload that it does not have.
    """
    from kopt.tools.target import load_target

    target = load_target(path, entry)
    if not workloads:
        return target
    known = [w.name for w in target.workloads]
    unknown = [name for name in workloads if name not in known]
    if unknown:
        raise UsageError(
            f"{path} has no workload called {', '.join(unknown)}",
            f"its workloads are: {', '.join(known)}",
        )
    kept = tuple(w for w in target.workloads if w.name in workloads)
    return target.model_copy(update={"workloads": kept})


def given_candidate(source: str) -> Candidate:
    """A candidate that a person wrote."""
    from kopt.tools.models import Candidate

    return Candidate(
        id=hashlib.sha256(source.encode()).hexdigest()[:12],
        source=source,
        technique="given",
        rationale="given on the command line",
    )


def open_session(
    target: Target, spec: DeviceSpec, sandbox: str, secret: bytes, work: Path
) -> Session:
    """A session whose jobs live in `work`, an existing folder; close it."""
    from kopt.sandbox import select
    from kopt.tools.session import Session

    chosen = select.get(sandbox, work)
    opened = Session(target, spec, chosen, work, secret)
    opened.start()
    return opened


@contextlib.contextmanager
def session(target: Target, gpu: str, sandbox: str, secret: bytes) -> Iterator[Session]:
    """A session in a temporary folder, closed at the end."""
    spec = device(gpu)
    with tempfile.TemporaryDirectory(prefix="kopt-") as folder:
        opened = open_session(target, spec, sandbox, secret, Path(folder))
        try:
            yield opened
        finally:
            opened.close()
