"""The device process: replays traces for the judge. JSON lines in, JSON lines out.

A request is `{"id", "op": "replay", "trace", "inputs", "gpu", "outputs", "counted", "arithmetic"}`;
the answer has the call's facts, and the outputs are in the named folder; inputs that the call
changed are in `mutated` below it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from kopt.gpu import facts_io, tensor_io, trace_io
from kopt.gpu.compiled import AssemblyError
from kopt.gpu.errors import KoptError
from kopt.gpu.spec import load_spec


def _replay(request: dict[str, Any]) -> dict[str, Any]:
    from kopt.gpu.virtual.replay import replay

    folder = Path(request["trace"])
    trace = trace_io.load(folder)
    inputs = tensor_io.load(Path(request["inputs"]), memory_map=True)
    done = replay(
        trace,
        folder,
        inputs,
        load_spec(request["gpu"]),
        counted=bool(request.get("counted", True)),
        arithmetic="wide" if request.get("arithmetic") == "wide" else "ieee",
    )
    tensor_io.save(done.outputs, Path(request["outputs"]))
    if done.facts.mutated_inputs:
        tensor_io.save(done.mutated, Path(request["outputs"]) / "mutated")
    return {"facts": facts_io.to_json(done.facts)}


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        operation = request["op"]
        if operation == "ping":
            return {"ok": True}
        if operation == "replay":
            return {"ok": True, **_replay(request)}
        return _failure("UsageError", f"no operation is called {operation!r}", "")
    except AssemblyError as error:
        return _failure("AssemblyError", error.message, error.hint)
    except KoptError as error:
        return _failure(type(error).__name__, error.message, error.hint)
    except MemoryError:
        return _failure("MemoryError", "the device process ran out of memory", "")
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return _failure(type(error).__name__, str(error), "")


def _failure(kind: str, message: str, hint: str) -> dict[str, Any]:
    return {"ok": False, "error_type": kind, "message": message, "hint": hint}


def main() -> None:
    """Answer requests until standard input closes."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import torch

    from kopt.gpu.virtual import replay as _warm

    torch.set_num_threads(os.cpu_count() or 1)
    del _warm
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # Whatever a library prints must not look like an answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        out.write(json.dumps({"id": request.get("id"), **_answer(request)}) + "\n")


if __name__ == "__main__":
    main()
