"""Chooses the backend."""

from __future__ import annotations

from pathlib import Path

from kopt.gpu.errors import EnvironmentLacks, UsageError
from kopt.sandbox import bubblewrap
from kopt.sandbox.local import Local
from kopt.sandbox.protocol import Sandbox
from kopt.sandbox.warm import Backend, Settings, WarmSandbox

NAMES = ("auto", "bubblewrap", "local")


def backends(name: str) -> tuple[Backend, ...]:
    """The ways to get the named isolation, strongest first."""
    match name:
        case "bubblewrap":
            return bubblewrap.variants()
        case "local":
            return (Local(),)
    raise UsageError(f"no sandbox is called {name!r}", f"choose one of: {', '.join(NAMES)}")


def get(name: str, root: Path, settings: Settings | None = None) -> Sandbox:
    """The named sandbox, or with `auto` the strongest that works, each tried by running it.

    `root` is an existing folder below which all jobs' folders will lie. Raises `UsageError` for an
    unknown name and `EnvironmentLacks` for a sandbox that does not work here.
    """
    if name == "auto":
        return auto(root, settings)
    found, problems = _first_working(name, root, settings or Settings())
    if found is None:
        hint = bubblewrap.INSTALL if name == "bubblewrap" else "choose another: --sandbox auto"
        raise EnvironmentLacks(f"the {name} sandbox does not work here: {problems[-1]}", hint)
    return found


def auto(root: Path, settings: Settings | None = None) -> Sandbox:
    """The strongest sandbox that works here. Raises `EnvironmentLacks` if none does."""
    problems: list[str] = []
    for name in NAMES[1:]:
        found, why = _first_working(name, root, settings or Settings())
        if found is not None:
            return found
        problems += [f"{name}: {problem}" for problem in why]
    raise EnvironmentLacks("no sandbox works here", "; ".join(problems))


def _first_working(name: str, root: Path, settings: Settings) -> tuple[Sandbox | None, list[str]]:
    problems = []
    for backend in backends(name):
        sandbox = WarmSandbox(backend, root, settings)
        problem = sandbox.probe()
        if problem is None:
            return sandbox, []
        problems.append(problem)
    return None, problems
