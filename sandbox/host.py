"""What runs inside a job: one function of the table, its answer or its error written down.

Whatever this process claims is a claim: user code shares it and may have changed anything here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from kopt.gpu.trace import Json
from kopt.sandbox.request import Request

Function = Callable[[Path, dict[str, Json]], dict[str, Json]]

ANSWER = "answer.json"
STAGE = "stage"
EXIT_OUT_OF_MEMORY = 97
EXIT_CALLED = 98
"""User code raised `SystemExit`."""
_MAX_TEXT = 20_000
_OWN_FRAMES = str(Path(__file__).absolute().parent.parent) + os.sep


def execute(functions: Mapping[str, Function], request: Request) -> None:
    """Run the job's function, leave `answer.json`, and end the process. Never returns."""
    code = 1
    try:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = _text_output(1)
        sys.stderr = _text_output(2)
        code = _answer(functions, request)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    except BaseException:
        traceback.print_exc()  # no answer could be written; the job's output says why
    finally:
        os._exit(code)


def _text_output(descriptor: int) -> io.TextIOWrapper:
    return open(
        descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )


def _answer(functions: Mapping[str, Function], request: Request) -> int:
    """The exit code; the answer or the error is in `answer.json` then."""
    folder = request.job.folder
    job_process = os.getpid()
    try:
        argument = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        answer = functions[request.job.function](folder, argument)
        if os.getpid() != job_process:
            return 0  # a forked child came back here; only the job itself answers
        _write(folder, {"nonce": request.nonce, "answer": answer})
    except MemoryError:
        return EXIT_OUT_OF_MEMORY
    except SystemExit:
        return EXIT_CALLED
    except BaseException as error:
        if _is_out_of_memory(error):
            return EXIT_OUT_OF_MEMORY
        _write(folder, {"nonce": request.nonce, "error": _describe(error)})
    return 0


def _write(folder: Path, document: dict[str, Json]) -> None:
    temporary = folder / (ANSWER + ".part")
    temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.replace(folder / ANSWER)


def _is_out_of_memory(error: BaseException) -> bool:
    """torch reports a failed allocation of host memory as a `RuntimeError`."""
    return isinstance(error, RuntimeError) and "can't allocate memory" in _safe_text(error)


def _describe(error: BaseException) -> dict[str, Json]:
    return {
        "type": type(error).__name__[:200],
        "module": str(type(error).__module__)[:200],
        "message": _safe_text(error)[:_MAX_TEXT],
        "traceback": _user_frames(error)[-_MAX_TEXT:],
    }


def _safe_text(error: BaseException) -> str:
    """`str(error)`, which is user code too and may fail or lie about its type."""
    try:
        text = str(error)
    except BaseException as second:
        return f"<the exception's __str__ raised {type(second).__name__}>"
    return str.__str__(text)


def _user_frames(error: BaseException) -> str:
    """The traceback from the first frame that is not kopt's own."""
    try:
        frames = list(traceback.extract_tb(error.__traceback__))
        first = next(
            (i for i, frame in enumerate(frames) if not _is_own(frame.filename)), len(frames)
        )
        return "".join(traceback.format_list(frames[first:]))
    except BaseException as second:
        return f"<no traceback: {type(second).__name__}>\n"


def _is_own(filename: str) -> bool:
    return filename.startswith(_OWN_FRAMES) or filename.startswith("<frozen importlib")
