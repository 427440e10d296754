"""Device memory whose floats also have a wide value: what is stored, plus an fp64 shadow."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from kopt.gpu.errors import Unsupported
from kopt.gpu.tensor_io import ITEM_BYTES, Tensors
from kopt.gpu.trace import TensorRef
from kopt.gpu.virtual.values import view

LIMIT_BYTES = 1 << 32
"""Most memory that shadows may take; they are four times the size of what they shadow."""

_SHADOWED = ("float32", "float16", "bfloat16")


def is_wide(dtype: str) -> bool:
    """Whether elements of this type have a wide value."""
    return dtype in _SHADOWED or dtype == "float64"


@dataclass
class WideMemory:
    """Shadows by buffer number: one double for each two bytes."""

    shadows: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, number: int, nbytes: int) -> None:
        """A new buffer; its shadow is zero. Raises `Unsupported` if shadows outgrow the limit."""
        shadow = np.zeros(nbytes // 2 + 1)
        self._bytes += shadow.nbytes
        if self._bytes > LIMIT_BYTES:
            raise Unsupported("wide arithmetic of this call takes too much memory")
        self.shadows[number] = shadow

    def drop(self, number: int) -> None:
        """The buffer is gone."""
        self._bytes -= self.shadows.pop(number).nbytes

    def address(self, number: int) -> int:
        """Host address of a buffer's shadow."""
        return int(self.shadows[number].ctypes.data)

    def clear(self, number: int) -> None:
        """The buffer was overwritten with exact values."""
        self.shadows[number][:] = 0

    def read(self, ref: TensorRef, memory: NDArray[np.uint8]) -> torch.Tensor:
        """The wide values of a float tensor, a copy."""
        stored = view(ref, memory).double()
        if ref.dtype == "float64":
            return stored
        return torch.where(stored.isfinite(), stored + self._shadow(ref), stored)

    def write(self, ref: TensorRef, memory: NDArray[np.uint8], value: torch.Tensor) -> None:
        """Store wide values: rounded in memory, the rest in the shadow."""
        stored = view(ref, memory)
        stored.copy_(value)
        if ref.dtype != "float64":
            rest = value.double() - stored.double()
            self._shadow(ref).copy_(torch.where(rest.isfinite(), rest, 0.0))

    def result(self, refs: list[TensorRef], memory: dict[int, NDArray[np.uint8]]) -> Tensors:
        """Tensors as they are, floats as contiguous fp64 tensors. The tree is left empty."""
        tensors, storages = [], []
        for position, ref in enumerate(refs):
            wide = is_wide(ref.dtype)
            data = memory[ref.buffer]
            value = self.read(ref, data) if wide else view(ref, data)
            array = value.contiguous().numpy()
            storages.append(np.frombuffer(array.tobytes(), np.uint8))
            stride = tuple(value.contiguous().stride())
            dtype = "float64" if wide else ref.dtype
            tensors.append(TensorRef(position, dtype, ref.shape, stride, 0))
        return Tensors(None, tensors, storages)

    def _shadow(self, ref: TensorRef) -> torch.Tensor:
        step = ITEM_BYTES[ref.dtype] // 2
        return torch.from_numpy(self.shadows[ref.buffer]).as_strided(
            ref.shape, tuple(s * step for s in ref.stride), ref.offset * step
        )
