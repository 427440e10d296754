"""The judge's line to the device process, which replays traces in a place no candidate touched."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from kopt.gpu import facts_io
from kopt.gpu.errors import EnvironmentLacks
from kopt.gpu.facts import CallFacts

Arithmetic = Literal["ieee", "wide"]

_START_S = 180.0
_MAX_LINE = 1 << 30


@dataclass(frozen=True)
class Replay:
    """A replay's facts, or why there are none: a failure of the trace, not of the machine."""

    facts: CallFacts | None
    error_type: str = ""
    """Type of the device's error; `TimeoutError` and `DeviceDied` are found from outside."""
    message: str = ""


class DeviceClient:
    """Starts the device process when it is first needed, and again when it died."""

    def __init__(self, timeout_s: float = 300.0) -> None:
        self.timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._ready = False
        self._rest = b""
        self._number = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process now, so that its imports run beside other work."""
        with self._lock:
            self._running()

    def replay(
        self,
        trace: Path,
        inputs: Path,
        gpu: str,
        outputs: Path,
        *,
        counted: bool,
        arithmetic: Arithmetic = "ieee",
        timeout_s: float | None = None,
    ) -> Replay:
        """Replay a trace on inputs; its results are in the folder `outputs` then.

        Raises `EnvironmentLacks` if the device process does not start.
        """
        request = {
            "op": "replay",
            "trace": str(trace),
            "inputs": str(inputs),
            "gpu": gpu,
            "outputs": str(outputs),
            "counted": counted,
            "arithmetic": arithmetic,
        }
        answer = self._ask(request, timeout_s or self.timeout_s)
        if answer.get("ok"):
            return Replay(facts_io.from_json(answer["facts"]))
        return Replay(None, str(answer.get("error_type")), str(answer.get("message")))

    def close(self) -> None:
        """Stop the process."""
        with self._lock:
            self._stop()

    def _ask(self, request: dict[str, object], timeout_s: float) -> dict[str, object]:
        """The answer; a process that dies over one request twice gives `DeviceDied`."""
        last = ""
        with self._lock:
            for _ in range(2):
                self._await_ready()
                try:
                    return self._exchange(request, timeout_s)
                except _Silent as silent:
                    self._stop()
                    return _failed("TimeoutError", str(silent))
                except _Died as died:
                    last = str(died)
                    self._stop()
        return _failed("DeviceDied", f"the device process ends over this work: {last}")

    def _await_ready(self) -> None:
        self._running()
        if self._ready:
            return
        try:
            self._exchange({"op": "ping"}, _START_S)
        except (_Died, _Silent) as error:
            self._stop()
            raise EnvironmentLacks(
                f"the device process does not start: {error}",
                "reinstall kopt in this environment: pip install --force-reinstall kopt-gpu",
            ) from error
        self._ready = True

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._process is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_stop`
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kopt.gpu.virtual.device_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C at the terminal is for us alone
                env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"},
            )
        return self._process

    def _exchange(self, request: dict[str, object], timeout_s: float) -> dict[str, object]:
        process = self._running()
        assert process.stdin is not None
        self._number += 1
        try:
            process.stdin.write(json.dumps({"id": self._number, **request}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise _Died(self._last_words()) from error
        answer: dict[str, object] = json.loads(self._line(process, timeout_s))
        if answer.get("id") != self._number:
            raise _Died("it answered another question")
        return answer

    def _line(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([process.stdout], [], [], max(left, 0))
            if not ready:
                raise _Silent(f"no result within {timeout_s:.0f} s")
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part or sum(map(len, parts)) > _MAX_LINE:
                raise _Died(self._last_words())
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def _last_words(self) -> str:
        if self._process is not None:
            try:
                code = self._process.wait(5)
            except subprocess.TimeoutExpired:
                code = None
            if code == -9:
                return "it was killed, probably for want of memory"
        if self._log is None:
            return "no output"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # a request never arrived
                        pipe.close()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        self._ready = False
        self._rest = b""


def _failed(error_type: str, message: str) -> dict[str, object]:
    return {"ok": False, "error_type": error_type, "message": message}


class _Died(Exception):
    pass


class _Silent(Exception):
    pass
