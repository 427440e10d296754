"""From a recorded trace and inputs to the answer that the device computes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from kopt.gpu import tensor_io, trace_io
from kopt.gpu.errors import UsageError
from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import Trace
from kopt.tools.device_client import Arithmetic, DeviceClient, Replay
from kopt.tools.disk import full_for
from kopt.tools.verify import Answer

MUTATED = "mutated"
"""Folder beside a replay's outputs with the inputs that it changed."""


@dataclass
class Replayer:
    """Replays on one GPU; results pass through a scratch folder."""

    device: DeviceClient
    gpu: str
    scratch: Path

    def answer(
        self,
        trace_folder: Path,
        inputs: Path,
        *,
        counted: bool = False,
        arithmetic: Arithmetic = "ieee",
        timeout_s: float | None = None,
    ) -> Answer | Replay:
        """The answer, or the replay that failed.

        Raises `EnvironmentLacks` when it failed because the disk is full.
        """
        trace = read_trace(trace_folder)
        if isinstance(trace, Replay):
            return trace
        shutil.rmtree(self.scratch, ignore_errors=True)
        replay = self.device.replay(
            trace_folder,
            inputs,
            self.gpu,
            self.scratch,
            counted=counted,
            arithmetic=arithmetic,
            timeout_s=timeout_s,
        )
        if replay.facts is None:
            if self.scratch.exists():
                lacks = full_for(self.scratch, replay.message)
                if lacks is not None:
                    raise lacks
            return replay
        outputs = tensor_io.load(self.scratch)
        mutated: Tensors | None = None
        if replay.facts.mutated_inputs and (self.scratch / MUTATED / "tree.json").exists():
            mutated = tensor_io.load(self.scratch / MUTATED)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return Answer(outputs, replay.facts, trace, mutated)


def read_trace(folder: Path) -> Trace | Replay:
    """The trace that a job left, or a failed replay that says why it is none."""
    try:
        return trace_io.load(folder)
    except UsageError as error:
        return Replay(None, "UsageError", error.message)
    except (OSError, ValueError, AssertionError, RecursionError) as error:
        return Replay(None, "UsageError", f"the job left no trace: {type(error).__name__}: {error}")
