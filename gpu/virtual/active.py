"""Switching the virtual GPU on for a block of code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from kopt.gpu.errors import UsageError
from kopt.gpu.spec import DeviceSpec, list_specs, load_spec
from kopt.gpu.virtual.device import VirtualGPU
from kopt.gpu.virtual.torch_front import torch_on
from kopt.gpu.virtual.triton_driver import triton_on

_ACTIVE = threading.Lock()


def executable(name: str) -> DeviceSpec:
    """The spec, if the virtual GPU executes its code. Raises `UsageError` if not."""
    spec = load_spec(name)
    if not spec.executes:
        able = ", ".join(s.name for s in list_specs() if s.executes)
        raise UsageError(
            f"the virtual GPU does not execute code for {spec.marketing_name} yet",
            f"choose one of: {able}",
        )
    return spec


@contextlib.contextmanager
def virtual_gpu(name: str, *, counted: bool) -> Iterator[VirtualGPU]:
    """PyTorch and Triton run on the named virtual GPU inside the block."""
    gpu = VirtualGPU(executable(name), counted=counted)
    if not _ACTIVE.acquire(blocking=False):
        raise UsageError(
            "a virtual GPU is active in this process already",
            "leave its `with` block first; one process has one virtual GPU",
        )
    try:
        with triton_on(gpu), torch_on(gpu):
            yield gpu
    finally:
        _ACTIVE.release()
