"""Running a target on the virtual GPU and handing what is known about it to a rewrite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kopt.agent.playbook.base import CallEvidence, call_evidence
from kopt.gpu import trace_io
from kopt.gpu.spec import load_spec
from kopt.gpu.tensor_io import Tensors, to_numpy
from kopt.gpu.timing import predict
from kopt.gpu.virtual.active import virtual_gpu
from kopt.gpu.virtual.record import function, load_module, record
from kopt.gpu.virtual.replay import replay
from kopt.gpu.virtual.values import flatten
from kopt.tools.models import Diagnosis, Headroom

# The tests share `variants.py`; pytest's importlib mode does not put their folder on the path.
sys.path.insert(0, str(Path(__file__).parent))
EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True)
class Ran:
    """One call of a target's entry."""

    evidence: CallEvidence
    outputs: list[NDArray[np.float64]]

    @property
    def time_us(self) -> float:
        """As predicted."""
        return predict(self.evidence.spec, self.evidence.facts).time_us


Runner = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """`run(text, entry, gpu=…, **params)` runs a file's entry on the inputs that it makes."""
    count = 0

    def once(text: str, entry: str, gpu: str = "a100", **params: int) -> Ran:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        file = folder / "target.py"
        file.write_text(text, encoding="utf-8")
        torch.manual_seed(0)
        with virtual_gpu(gpu, counted=False) as device:
            module = load_module(file, None)
            inputs, _ = flatten(function(module, "make_inputs", file)(**params), device, "inputs")
        with virtual_gpu(gpu, counted=False) as device:
            done = record(device, function(module, entry, file), inputs)
        trace_io.save(done.trace, folder / "trace", done.blobs)
        spec = load_spec(gpu)
        again = replay(done.trace, folder / "trace", inputs, spec, counted=True)
        assert not again.facts.findings, again.facts.findings[0].sentence()
        evidence = call_evidence(
            source=text,
            file=str(file),
            entry=entry,
            spec=spec,
            facts=again.facts,
            trace=done.trace,
            diagnosis=_diagnosis(),
        )
        return Ran(evidence, _arrays(again.outputs))

    return once


@pytest.fixture
def example() -> Callable[[str], str]:
    """`example(name)` is the text of a shipped example."""
    return lambda name: (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")


def _arrays(outputs: Tensors) -> list[NDArray[np.float64]]:
    return [to_numpy(t, outputs.storages[t.buffer]).astype(np.float64) for t in outputs.tensors]


def _diagnosis() -> Diagnosis:
    headroom = Headroom(speed_of_light_us=1.0, ratio=2.0, exceeds_interval=True)
    return Diagnosis(
        workload="test",
        bottleneck="dram_bandwidth",
        kernel=None,
        evidence=(),
        metrics=(),
        headroom=headroom,
    )
