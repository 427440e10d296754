"""The device process comes back when it dies, and forged traces are refused, not obeyed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kopt.gpu import tensor_io, trace_io
from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import Alloc, Event, Launch, Operator, PointerArg, TensorRef, Trace
from kopt.tools.device_client import DeviceClient, Replay

REF = TensorRef(0, "float32", (4,), (1,), 0)
OUT = TensorRef(1, "float32", (4,), (1,), 0)
DOUBLE = Operator(
    "aten.mul.Tensor",
    [{"tensor": {"buffer": 0, "dtype": "float32", "shape": [4], "stride": [1], "offset": 0}}, 2],
    {},
    (OUT,),
)


@pytest.fixture(scope="module")
def device() -> Iterator[DeviceClient]:
    client = DeviceClient()
    yield client
    client.close()


def replay(device: DeviceClient, folder: Path, *events: Event, timeout_s: float = 60.0) -> Replay:
    inputs = Tensors({"tensor": 0}, [REF], [np.arange(4, dtype=np.float32).view(np.uint8)])
    tensor_io.save(inputs, folder / "inputs")
    shutil.rmtree(folder / "trace", ignore_errors=True)
    trace_io.save(Trace((REF,), (OUT,), {"tensor": 0}, events, {}), folder / "trace", {})
    return device.replay(folder / "trace", folder / "inputs", "a100", folder / "out",
                         counted=False, timeout_s=timeout_s)  # fmt: skip


def test_a_replay_leaves_its_outputs(device: DeviceClient, tmp_path: Path) -> None:
    assert replay(device, tmp_path, Alloc(1, 16), DOUBLE).facts is not None
    out = tensor_io.load(tmp_path / "out")
    assert tensor_io.to_numpy(out.tensors[0], out.storages[0]).tolist() == [0, 2, 4, 6]


def test_the_process_comes_back_after_it_was_killed(device: DeviceClient, tmp_path: Path) -> None:
    assert replay(device, tmp_path, Alloc(1, 16), DOUBLE).facts is not None
    process = device._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert replay(device, tmp_path, Alloc(1, 16), DOUBLE).facts is not None


def test_a_replay_that_takes_too_long_is_a_timeout(device: DeviceClient, tmp_path: Path) -> None:
    assert replay(device, tmp_path, Alloc(1, 16), DOUBLE).facts is not None
    slow = [Alloc(b, 1 << 28) for b in range(1, 20)]
    found = replay(device, tmp_path, *slow, timeout_s=0.05)
    assert found.error_type == "TimeoutError"
    assert replay(device, tmp_path, Alloc(1, 16), DOUBLE).facts is not None


@pytest.mark.parametrize(
    "events",
    [
        (),
        (Alloc(1, 8), DOUBLE),
        (Alloc(1, 16), Alloc(1, 16)),
        (Alloc(1, 1 << 60),),
        (Alloc(1, 16), Launch("missing", (1, 1, 1), (PointerArg(1, 0, "x"),))),
        (Alloc(1, 16), Operator("os.system", ["true"], {}, ())),
        (Alloc(1, 16), Operator("aten.from_file", ["/etc/passwd", False, 4], {}, (OUT,))),
    ],
)
def test_forged_traces_are_refused(
    device: DeviceClient, tmp_path: Path, events: tuple[Event, ...]
) -> None:
    found = replay(device, tmp_path, *events)
    assert found.facts is None
    assert found.error_type
    assert found.message


def test_a_folder_that_is_no_trace_is_refused(device: DeviceClient, tmp_path: Path) -> None:
    replay(device, tmp_path, Alloc(1, 16), DOUBLE)
    (tmp_path / "trace" / "trace.json").write_text(json.dumps({"format": 1}))
    found = device.replay(
        tmp_path / "trace", tmp_path / "inputs", "a100", tmp_path / "out", counted=False
    )
    assert found.facts is None
