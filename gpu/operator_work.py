"""Floating-point operations of PyTorch operators, from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]

_PER_OUTPUT = {
    "softmax": 5, "_softmax": 5, "_log_softmax": 5, "gelu": 10, "silu": 4, "tanh": 4, "sigmoid": 4,
    "exp": 2, "log": 2, "erf": 8, "native_layer_norm": 8, "native_batch_norm": 8, "pow": 4,
}  # fmt: skip
_COPIES = {"clone", "copy_", "cat", "stack", "fill_", "zero_", "zeros", "zeros_like", "ones_like",
           "full_like", "index", "index_select", "gather", "embedding", "_to_copy",
           "constant_pad_nd",
           "arange", "expand", "repeat", "full", "ones"}  # fmt: skip


def work(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Operations of one call: two for a multiply-add, else about one per element."""
    base = name.split(".")[1]
    made = sum(math.prod(s) for s in outputs)
    if base in {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm"}:
        left = inputs[-2] if len(inputs) >= 2 else (1, 1)
        return 2 * made * left[-1]
    if base in {"convolution", "_convolution", "conv2d"} and len(inputs) >= 2:
        return 2 * math.prod(outputs[0]) * math.prod(inputs[1][1:])
    if "scaled_dot_product" in base and len(inputs) >= 3:
        query, key = inputs[0], inputs[1]
        return 4 * math.prod(query) * key[-2]
    if base in _COPIES:
        return 0
    read = max((math.prod(s) for s in inputs), default=0)
    return max(made, read) * _PER_OUTPUT.get(base, 1)
