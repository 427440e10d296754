"""Traces in a folder: `trace.json`, one JSON file for each kernel, one raw file for each blob."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kopt.gpu.errors import UsageError
from kopt.gpu.tensor_io import reference
from kopt.gpu.trace import (
    Alloc,
    DeviceRead,
    Event,
    HostCopy,
    Kernel,
    Launch,
    Operator,
    PointerArg,
    ScalarArg,
    Sync,
    Trace,
)

FORMAT = 1
_KINDS: dict[str, type[Alloc | HostCopy | DeviceRead | Sync]] = {
    "Alloc": Alloc,
    "HostCopy": HostCopy,
    "DeviceRead": DeviceRead,
    "Sync": Sync,
}


def save(trace: Trace, folder: Path, blobs: Mapping[str, bytes]) -> None:
    """Write a trace and its blobs; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in blobs.items():
        (folder / f"{name}.bin").write_bytes(data)
    for key, kernel in trace.kernels.items():
        (folder / f"{key}.json").write_text(json.dumps(asdict(kernel)), encoding="utf-8")
    document = {
        "format": FORMAT,
        "inputs": [asdict(t) for t in trace.inputs],
        "outputs": [asdict(t) for t in trace.outputs],
        "output_tree": trace.output_tree,
        "events": [{"event": type(e).__name__, **asdict(e)} for e in trace.events],
        "kernels": list(trace.kernels),
        "peak_bytes": trace.peak_bytes,
    }
    (folder / "trace.json").write_text(json.dumps(document), encoding="utf-8")


def load(folder: Path) -> Trace:
    """Read a trace. Raises `UsageError` if it is not one: it may come from a hostile process."""
    try:
        document = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise UsageError(f"trace format {document['format']} is not {FORMAT}")
        kernels = {str(key): _kernel(folder, str(key)) for key in document["kernels"]}
        return Trace(
            tuple(reference(t) for t in document["inputs"]),
            tuple(reference(t) for t in document["outputs"]),
            document["output_tree"],
            tuple(_event(e) for e in document["events"]),
            kernels,
            int(document["peak_bytes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"this is not a trace: {type(error).__name__}: {error}") from error


def blob(folder: Path, name: str) -> bytes:
    """The bytes of a blob. Raises `UsageError` for a name that is not one."""
    if not name.isalnum():
        raise UsageError(f"no blob is called {name!r}")
    return (folder / f"{name}.bin").read_bytes()


def _kernel(folder: Path, key: str) -> Kernel:
    if not key.isalnum():
        raise UsageError(f"no kernel is called {key!r}")
    return Kernel(**json.loads((folder / f"{key}.json").read_text(encoding="utf-8")))


def _event(raw: dict[str, object]) -> Event:
    data = dict(raw)
    name = str(data.pop("event"))
    if name in _KINDS:
        return _KINDS[name](**data)  # type: ignore[arg-type]
    if name == "Operator":
        outputs = data.pop("outputs")
        assert isinstance(outputs, list)
        return Operator(**data, outputs=tuple(reference(t) for t in outputs))  # type: ignore[arg-type]
    if name == "Launch":
        args = data.pop("args")
        grid = data.pop("grid")
        assert isinstance(args, list)
        assert isinstance(grid, list)
        return Launch(
            **data,  # type: ignore[arg-type]
            grid=(int(grid[0]), int(grid[1]), int(grid[2])),
            args=tuple(PointerArg(**a) if "buffer" in a else ScalarArg(**a) for a in args),
        )
    raise UsageError(f"a trace has no event {name!r}")
