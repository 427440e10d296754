"""The judge's line to the device process, which replays traces."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kopt.gpu import facts_io
from kopt.gpu.errors import EnvironmentLacks
from kopt.gpu.facts import CallFacts


@dataclass(frozen=True)
class Replay:
    """A replay's facts, or why there are none: a failure of the trace, not of the machine."""

    facts: CallFacts | None
    error_type: str = ""
    message: str = ""


class DeviceClient:
    """Starts the device process when it is first needed, and again if it dies."""

    def __init__(self, timeout_s: float = 300.0) -> None:
        self.timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._number = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process now, so that its imports run beside other work."""
        with self._lock:
            self._started()

    def replay(
        self,
        trace: Path,
        inputs: Path,
        gpu: str,
        outputs: Path,
        *,
        counted: bool,
        arithmetic: str = "ieee",
    ) -> Replay:
        """Replay a trace. Raises `EnvironmentLacks` if the device process dies twice in a row."""
        request = {
            "op": "replay",
            "trace": str(trace),
            "inputs": str(inputs),
            "gpu": gpu,
            "outputs": str(outputs),
            "counted": counted,
            "arithmetic": arithmetic,
        }
        answer = self._ask(request)
        if answer.get("ok"):
            return Replay(facts_io.from_json(answer["facts"]))
        return Replay(None, str(answer.get("error_type")), str(answer.get("message")))

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        with self._lock:
            try:
                return self._exchange(request)
            except _Died as first:
                self._stop()
                if first.timeout:
                    return {"ok": False, "error_type": "TimeoutError", "message": str(first)}
            try:
                return self._exchange(request)
            except _Died as again:
                self._stop()
                if again.timeout:
                    return {"ok": False, "error_type": "TimeoutError", "message": str(again)}
                raise EnvironmentLacks(
                    f"the device process died twice: {again}",
                    "is there enough memory? use smaller workloads",
                ) from again

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._log = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kopt.gpu.virtual.device_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,
                env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"},
            )
        return self._process

    def _exchange(self, request: dict[str, object]) -> dict[str, object]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        self._number += 1
        try:
            process.stdin.write(json.dumps({"id": self._number, **request}) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self.timeout_s)
            if not ready:
                raise _Died(f"no answer within {self.timeout_s:.0f} s", timeout=True)
            line = process.stdout.readline()
        except (BrokenPipeError, ValueError) as error:
            raise _Died(self._last_words()) from error
        if not line:
            raise _Died(self._last_words())
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def _last_words(self) -> str:
        if self._log is None:
            return "no output"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def close(self) -> None:
        """Stop the process."""
        self._stop()


class _Died(Exception):
    def __init__(self, message: str, *, timeout: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout
