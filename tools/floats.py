"""Floating-point formats by torch's names: their size, their resolution, exact conversion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.tensor_io import ITEM_BYTES, Tensors, raw_view, to_numpy

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format."""

    precision: int
    """Bits of the significand, the hidden one included."""
    minimum_exponent: int
    """Exponent of the smallest normal number."""
    largest: float

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number."""
        return float(2.0 ** (1 - self.precision))

    @property
    def rounding(self) -> float:
        """Largest relative error of one rounding: half of `epsilon`."""
        return self.epsilon / 2


FORMATS = {
    "float64": FloatFormat(53, -1022, float(np.finfo(np.float64).max)),
    "float32": FloatFormat(24, -126, float(np.finfo(np.float32).max)),
    "float16": FloatFormat(11, -14, 65504.0),
    "bfloat16": FloatFormat(8, -126, float(np.float32(3.3895313892515355e38))),
    "float8_e4m3fn": FloatFormat(4, -6, 448.0),
    "float8_e5m2": FloatFormat(3, -14, 57344.0),
}
TF32 = FloatFormat(11, -126, FORMATS["float32"].largest)
"""What a tensor core keeps of an fp32 operand in TF32 mode."""

COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}


def is_float(dtype: str) -> bool:
    """Whether elements have a real floating-point format."""
    return dtype in FORMATS


def values_of(value: Tensors, position: int) -> NDArray[np.generic]:
    """Tensor `position` with torch's values: floats as the smallest exact numpy float."""
    tensor = value.tensors[position]
    storage = value.storages[tensor.buffer]
    if tensor.dtype.startswith("float8"):
        codes = np.ascontiguousarray(raw_view(tensor, storage)).view(np.uint8)
        return _float8_values(tensor.dtype)[codes].reshape(tensor.shape)
    return to_numpy(tensor, storage)


def rounded(values: Float64, dtype: str) -> Float64:
    """Each value rounded to the nearest of the format, ties to even; overflow gives infinity
    (`float8_e4m3fn`, which has none, saturates, as torch does)."""
    if dtype == "float64":
        return values
    if dtype in ("float32", "float16"):
        with np.errstate(over="ignore"):
            return values.astype(dtype).astype(np.float64)
    form = FORMATS[dtype]
    _, exponent = np.frexp(values)
    quantum = np.maximum(exponent - form.precision, form.minimum_exponent - form.precision + 1)
    with np.errstate(invalid="ignore"):
        result: Float64 = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
    over = np.isfinite(result) & (np.abs(result) > form.largest)
    ceiling = form.largest if dtype == "float8_e4m3fn" else np.inf
    result[over] = np.copysign(ceiling, result[over])
    if dtype == "float8_e4m3fn":
        result[np.isinf(result)] = np.nan
    return result


def encode(values: Float64, dtype: str) -> NDArray[np.void]:
    """The bytes of `values` rounded to `dtype`, as opaque items of its size."""
    item = np.dtype((np.void, ITEM_BYTES[dtype]))
    exact = np.ascontiguousarray(rounded(values, dtype))
    if dtype == "bfloat16":
        bits = exact.astype(np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16).view(item)
    if dtype.startswith("float8"):
        return _float8_codes(exact, dtype).view(item)
    return exact.astype(dtype).view(item)


@cache
def _float8_values(dtype: str) -> NDArray[np.float32]:
    codes = np.arange(256)
    form = FORMATS[dtype]
    mantissa_bits = form.precision - 1
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << (7 - mantissa_bits)) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    magnitude = np.where(
        exponent == 0,
        np.ldexp(fraction, form.minimum_exponent),
        np.ldexp(1 + fraction, exponent - 1 + form.minimum_exponent),
    )
    if dtype == "float8_e4m3fn":
        magnitude[(codes & 0x7F) == 0x7F] = np.nan
    else:
        magnitude[(codes & 0x7F) == 0x7C] = np.inf
        magnitude[(codes & 0x7F) > 0x7C] = np.nan
    return np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)


def _float8_codes(exact: Float64, dtype: str) -> NDArray[np.uint8]:
    table = _float8_values(dtype)[:128].astype(np.float64)
    finite = int(np.sum(np.isfinite(table)))
    codes = np.searchsorted(table[:finite], np.abs(exact)).astype(np.uint8)
    codes[np.isinf(exact)] = 0x7C
    codes[np.isnan(exact)] = 0x7F
    return codes | (np.signbit(exact).astype(np.uint8) << np.uint8(7))
