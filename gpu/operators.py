"""What a PyTorch operator that launches no kernel of ours costs: a roofline.

The library's kernel moves each operand once at a share of the DRAM's ceiling, and computes at a
share of the peak. A share that was measured makes an estimate; without one the operator is taken at
the ceiling, and its time is a bound and named one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kopt.gpu.facts import OperatorFacts
from kopt.gpu.spec import DeviceSpec


@dataclass(frozen=True)
class Efficiency:
    """What a library reaches of a ceiling, as somebody measured it."""

    share: float
    source: str


_MATRIX = {
    "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "convolution",
    "_convolution", "conv2d",
}  # fmt: skip
_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention")
_ELEMENTWISE = {
    "add", "sub", "mul", "div", "pow", "rsqrt", "sqrt", "exp", "log", "neg", "abs", "mean", "sum",
    "_to_copy", "copy_", "clone", "silu", "gelu", "relu", "tanh", "sigmoid", "maximum", "minimum",
    "where", "add_", "mul_", "sub_", "div_", "square", "reciprocal", "clamp", "eq", "ne", "lt",
    "gt", "le", "ge", "to",
}  # fmt: skip

MEMORY: dict[str, Efficiency] = {
    "elementwise": Efficiency(
        0.70,
        "A100 80 GB: the eager RMS norm of Hugging Face, bf16 2048 x 32768, 36 bytes an element in"
        " 1.919 ms (Liger-Kernel 0.2.1 benchmark data)",
    ),
    "native_layer_norm": Efficiency(
        0.59,
        "A100 80 GB: fp32 4096 x 16384 in 0.507 ms (Liger-Kernel 0.2.1 benchmark data)",
    ),
    "embedding": Efficiency(
        0.35,
        "A100 80 GB: fp32, 16384 rows of 4096 in 0.863 ms (Liger-Kernel 0.2.1 benchmark data)",
    ),
}
"""Shares of the DRAM's measured ceiling."""

MATRIX: dict[tuple[int, str], Efficiency] = {
    (90, "half"): Efficiency(
        0.79, "H200: bf16 8192 cubed at 769 to 798 of 989 TFLOP/s, random data, November 2026"
    ),
    (86, "float32"): Efficiency(
        0.60, "RTX A6000: cuBLAS fp32 4096 cubed at 23.2 of 38.7 TFLOP/s (S. Boehm, SGEMM_CUDA)"
    ),
}
"""Shares of the peak of large matrix products, by compute capability and dtype."""


@dataclass(frozen=True)
class OperatorWork:
    """What one operator asks of the device, before perturbation."""

    dram_us: float
    compute_us: float
    bound: bool
    """True: no efficiency is known; the times are the least there can be."""
    source: str


def base_name(name: str) -> str:
    """`aten.add.Tensor` → `add`."""
    return name.split(".")[1] if name.startswith("aten.") else name.split(".")[0]


def is_matrix(name: str) -> bool:
    """Whether tensor cores do the operator's work."""
    base = base_name(name)
    return base in _MATRIX or any(part in base for part in _ATTENTION)


def peak_flops(spec: DeviceSpec, dtype: str, matrix: bool) -> float:
    """Operations per second of the pipe that computes this dtype, dense."""
    lanes = {"float64": spec.fp64_lanes, "float16": spec.fp16_lanes, "bfloat16": spec.fp16_lanes}
    tensor = {
        "float16": spec.mma_fp16_fma, "bfloat16": spec.mma_fp16_fma, "int8": spec.mma_int8_fma,
        "tf32": spec.mma_tf32_fma,
    }  # fmt: skip
    chosen = (tensor if matrix else lanes).get(dtype, lanes.get(dtype, spec.fp32_lanes))
    return 2 * chosen * spec.sms * spec.clock_hz


def work(spec: DeviceSpec, op: OperatorFacts) -> OperatorWork:
    """Time at the DRAM and at the pipes."""
    base, matrix = base_name(op.name), is_matrix(op.name)
    moved = op.read_bytes + op.write_bytes
    memory = MEMORY.get("elementwise" if base in _ELEMENTWISE else base)
    kind = "half" if op.dtype in {"float16", "bfloat16"} else op.dtype
    compute = MATRIX.get((spec.compute_capability, kind)) if matrix else None
    known = compute if matrix else memory
    dram_us = 1e6 * moved / spec.dram_ceiling_bytes_per_s / (memory.share if memory else 1.0)
    compute_us = 1e6 * op.flops / peak_flops(spec, op.dtype, matrix)
    return OperatorWork(
        dram_us,
        compute_us / (compute.share if compute else 1.0),
        known is None,
        known.source if known else "at the ceiling: no measured efficiency",
    )
