"""How far a result moves when its inputs are off by one rounding: no order of sums does better."""

from __future__ import annotations

import numpy as np

from kopt.gpu.tensor_io import ITEM_BYTES, Tensors
from kopt.gpu.trace import TensorRef
from kopt.tools.floats import is_float, values_of

DRAWS = 3
"""The largest of three draws is far below its typical size once in a thousand times."""
FEW_ELEMENTS = 4096
"""Outputs with more elements show their typical error by themselves."""


def has_few_elements(outputs: Tensors) -> bool:
    """Whether some float output is too small for its error to be typical."""
    return any(
        is_float(t.dtype) and 0 < int(np.prod(t.shape, dtype=np.int64)) < FEW_ELEMENTS
        for t in outputs.tensors
    )


def perturbed(inputs: Tensors, seed: int, *, as_float64: bool) -> Tensors:
    """The inputs with each float off by up to one rounding of fp32, in which kernels accumulate.

    With `as_float64` they become contiguous fp64 tensors, so that 16-bit inputs change too;
    otherwise only fp32 tensors change, by one unit in the last place.
    """
    rng = np.random.default_rng(seed)
    if not as_float64:
        storages = [np.array(s) for s in inputs.storages]
        for number in {t.buffer for t in inputs.tensors if t.dtype == "float32"}:
            usable = len(storages[number]) // 4 * 4
            bits = storages[number][:usable].view(np.int32)
            exponent = (bits >> 23) & 0xFF
            ordinary = (exponent > 0) & (exponent < 254)
            bits += np.where(ordinary, rng.integers(-1, 2, bits.shape), 0).astype(np.int32)
        return Tensors(inputs.tree, list(inputs.tensors), storages)
    tensors, storages = [], list(inputs.storages)
    for position, tensor in enumerate(inputs.tensors):
        if not is_float(tensor.dtype):
            tensors.append(tensor)
            continue
        values = values_of(inputs, position).astype(np.float64)
        values = values * (1 + 2.0**-24 * rng.uniform(-1, 1, values.shape))
        stride = tuple(s // ITEM_BYTES["float64"] for s in np.ascontiguousarray(values).strides)
        tensors.append(TensorRef(len(storages), "float64", tensor.shape, stride, 0))
        storages.append(np.frombuffer(values.tobytes(), np.uint8))
    return Tensors(inputs.tree, tensors, storages)


def relative_change(truth: Tensors, other: Tensors) -> tuple[float, ...]:
    """RMS of the change over RMS of the truth, by output; 0 for what is no float."""
    found = []
    for position, tensor in enumerate(truth.tensors):
        change = 0.0
        if is_float(tensor.dtype) and 0 not in tensor.shape:
            before = values_of(truth, position).astype(np.float64)
            after = values_of(other, position).astype(np.float64)
            usable = np.isfinite(before) & np.isfinite(after)
            scale = float(np.sqrt(np.sum(before[usable] ** 2)))
            if scale > 0:
                change = float(np.sqrt(np.sum((after - before)[usable] ** 2))) / scale
        found.append(change)
    return tuple(found)
