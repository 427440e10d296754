"""kopt: make a GPU kernel faster and prove what is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kopt.gpu.virtual.device import VirtualGPU

__version__ = "0.1.0"


def virtual_gpu(name: str = "a100", *, counted: bool = True) -> AbstractContextManager[VirtualGPU]:
    """A virtual GPU for the `with` block: unmodified PyTorch and Triton code runs on it.

        with kopt.virtual_gpu("a100") as gpu:
            y = softmax(torch.randn(4096, 4096, device="cuda"))
            print(gpu.launches[0].counters.instructions)

    `counted` keeps counters of every launch. Raises `UsageError` for an unknown name.
    """
    from kopt.gpu.virtual.active import virtual_gpu as start

    return start(name, counted=counted)
