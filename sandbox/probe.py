"""Finds out whether a sandbox contains what it says, by running a job that tries."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

from kopt.gpu.trace import Json
from kopt.sandbox.containment import Containment
from kopt.sandbox.protocol import Job, Limits, OutcomeStatus, Sandbox


def look(folder: Path, request: dict[str, Json]) -> dict[str, Json]:
    """Runs inside the job: what it can do to the world outside."""
    secret, address = Path(str(request["secret"])), ("127.0.0.1", int(str(request["port"])))
    (folder / "mine").write_text("written")
    _can((secret.parent / "new").touch)
    return {
        "reads": _can(secret.read_bytes),
        "connects": _can(lambda: socket.create_connection(address, timeout=2)),
        "pids": _visible_processes(),
        "uid": os.getuid(),
    }


FUNCTIONS = {"look": look}


def _can(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _visible_processes() -> list[Json]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def examine(sandbox: Sandbox, scratch: Path, means: Containment) -> str | None:
    """Run `look` in a folder below `scratch`; what is not as `means` promise, None if all is."""
    folder = scratch / "job"
    folder.mkdir(parents=True)
    secret = scratch / "secret"
    secret.write_text("not for the job")
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server:
        request = {"secret": str(secret), "port": server.getsockname()[1]}
        (folder / "job.json").write_text(json.dumps(request))
        outcome = sandbox.run(Job(folder, "look", Limits(wall_s=20.0)))
    if outcome.status is not OutcomeStatus.OK:
        return f"a trial job failed: {outcome.detail}"
    seen = outcome.answer
    if not (folder / "mine").exists():
        return "a trial job's files do not arrive"
    if (means.namespaces or means.landlock) and (seen["reads"] or (scratch / "new").exists()):
        return "a trial job reached files outside its folder"
    if (means.network or means.seccomp) and seen["connects"]:
        return "a trial job reached the network"
    if means.namespaces and seen["pids"] != [1, 2]:
        return f"a trial job saw processes outside its own: {seen['pids']}"
    if means.uid is not None and seen["uid"] != means.uid:
        return "a trial job kept its user id"
    return None
