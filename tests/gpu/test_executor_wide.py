"""`wide` arithmetic: the float64 meaning of a kernel, to nearly float64's precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kopt.gpu.virtual.arrays import Array, bfloat16, compile_triton, values

DTYPES = {"float32": 1e-7, "float16": 5e-4, "bfloat16": 4e-3}
"""What one rounding to each type costs: the wide value must be far better."""


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape)
    return bfloat16(x) if dtype == "bfloat16" else x.astype(dtype)


def error(got: Array, expected: Array) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@triton.jit
def layer_norm(x, w, b, y, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, BLOCK)
    v = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    centred = tl.where(at < n, v - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    value = centred * rstd * tl.load(w + at, mask=at < n) + tl.load(b + at, mask=at < n)
    tl.store(y + row + at, value.to(y.dtype.element_ty), mask=at < n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: str) -> None:
    x, w, b = normal(6, 1000, dtype=dtype), normal(1000, seed=1), normal(1000, seed=2)
    y = np.zeros_like(x)
    eps = 0.0009765625
    arguments = [x, w, b, y, 1000, eps]
    wide = compile_triton(layer_norm, arguments, {"BLOCK": 1024}).wide((6,), *arguments)[3]
    t = [torch.tensor(values(a)) for a in (x, w, b)]
    expected = torch.nn.functional.layer_norm(t[0], (1000,), t[1], t[2], eps).numpy()
    assert error(wide, expected) < 1e-13
    assert DTYPES[dtype] / 50 < error(values(y), expected) < 3 * DTYPES[dtype]


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, BLOCK)
    v = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    power = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + at, (power / tl.sum(power, 0)).to(y.dtype.element_ty), mask=at < n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype: str) -> None:
    x = normal(4, 777, dtype=dtype)
    y = np.zeros_like(x)
    program = compile_triton(softmax, [x, y, 777], {"BLOCK": 1024})
    expected = torch.softmax(torch.tensor(values(x)), 1).numpy()
    assert error(program.wide((4,), x, y, 777)[1], expected) < 1e-13
    assert error(values(y), expected) > DTYPES[dtype] / 50


@triton.jit
def matmul(
    a, b, c, M, N, K, PRECISION: tl.constexpr, TOTAL: tl.constexpr, B: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * B + tl.arange(0, B)
    columns = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), TOTAL)
    for start in range(0, K, 32):
        k = start + tl.arange(0, 32)
        left = tl.load(a + rows[:, None] * K + k[None, :])
        if TRANSPOSED:
            right = tl.load(b + columns[None, :] * K + k[:, None])
        else:
            right = tl.load(b + k[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=TOTAL)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "precision", "total"),
    [
        ("float16", "tf32", tl.float32), ("bfloat16", "tf32", tl.float32),
        ("float32", "tf32", tl.float32), ("float32", "ieee", tl.float32),
        ("float16", "tf32", tl.float16),
    ],
)  # fmt: skip
def test_matmul(dtype: str, precision: str, total: object, transposed: bool) -> None:
    """Neither the rounding of tensor cores' inputs nor of their sums is in the wide value."""
    M, N, K = 64, 96, 128
    a, b = normal(M, K, dtype=dtype), normal(K, N, dtype=dtype, seed=1)
    c = np.zeros((M, N), a.dtype)
    right = np.ascontiguousarray(b.T) if transposed else b
    arguments = [a, right, c, M, N, K]
    constants = {"PRECISION": precision, "TOTAL": total, "B": 32, "TRANSPOSED": transposed}
    wide = compile_triton(matmul, arguments, constants).wide((2, 3), *arguments)[2]
    expected = values(a) @ values(b)
    assert error(wide, expected) < 1e-14
    assert error(values(c), expected) > 1e-8


@triton.jit
def first_half(x, h, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(h + at, tl.load(x + at, mask=at < n) / 3, mask=at < n)


def test_wide_values_travel_through_memory_between_launches() -> None:
    x, h, y = normal(256), np.zeros(256, np.float16), np.zeros(256, np.float32)
    shadows = [np.zeros(a.nbytes // 2) for a in (x, h, y)]
    one = compile_triton(first_half, [x, h, 256], {"BLOCK": 256})
    two = compile_triton(first_half, [h, y, 256], {"BLOCK": 256})
    one.run((1,), x, h, 256, arithmetic="wide", shadows=shadows[:2])
    two.run((1,), h, y, 256, arithmetic="wide", shadows=shadows[1:])
    expected = values(x) / 9
    assert error(values(y) + shadows[2][::2], expected) < 1e-15
    assert error(values(y), expected) > 1e-5


@triton.jit
def column_sums(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tile = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside, other=0.0)
    tl.atomic_add(y + columns, tl.sum(tile, 0).to(y.dtype.element_ty), mask=columns < N)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_atomic_sums(dtype: str) -> None:
    x = normal(300, 100)
    y = np.zeros(100, dtype)
    arguments = [x, y, 300, 100]
    program = compile_triton(column_sums, arguments, {"BM": 32, "BN": 32})
    wide = program.wide((10, 4), *arguments)[1]
    assert error(wide, values(x).sum(0)) < 1e-14


@triton.jit
def choices(x, y, largest, where, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0) / 3
    relu = tl.where(v > 0, v, 0.1 * v)
    clipped = tl.minimum(tl.maximum(relu, -0.02), 0.5)
    tl.store(y + at, tl.abs(clipped) - clipped, mask=at < n)
    tl.store(largest, tl.max(v, 0))
    tl.store(where, tl.argmax(v, 0))


def test_selections_minima_and_signs() -> None:
    x, y = normal(500), np.zeros(500, np.float32)
    largest, where = np.zeros(1, np.float32), np.zeros(1, np.int32)
    arguments = [x, y, largest, where, 500]
    wide = compile_triton(choices, arguments, {"BLOCK": 512}).wide((1,), *arguments)
    v = values(x) / 3
    tenth, low = float(np.float32(0.1)), float(np.float32(-0.02))
    clipped = np.minimum(np.maximum(np.where(v > 0, v, tenth * v), low), 0.5)
    assert np.abs(wide[1] - (np.abs(clipped) - clipped)).max() < 1e-15
    assert abs(wide[2][0] - v.max()) < 1e-15
    assert where[0] == v.argmax()


@triton.jit
def hidden_difference(x, y, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), tl.where(v + 1e-9 > v, v, -v))


def test_a_select_follows_the_wide_comparison() -> None:
    x, y = np.full(128, 1.5, np.float32), np.zeros(128, np.float32)
    wide = compile_triton(hidden_difference, [x, y], {"BLOCK": 128}).wide((1,), x, y)[1]
    assert (y == -1.5).all(), "in float32 the small number is lost"
    assert (wide == 1.5).all()


@triton.jit
def functions(x, y, n, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.5)
    if WHICH == 0:
        r = tl.exp(v)
    elif WHICH == 1:
        r = tl.log(tl.abs(v) + 1)
    elif WHICH == 2:
        r = tl.sigmoid(v)
    elif WHICH == 3:
        r = tl.sqrt(tl.abs(v)) + tl.rsqrt(tl.abs(v) + 1)
    elif WHICH == 4:
        r = tl.exp2(v) + tl.log2(tl.abs(v) + 1)
    elif WHICH == 5:
        r = libdevice.fast_sinf(v) + libdevice.fast_cosf(v)
    elif WHICH == 6:
        r = tl.floor(v) + v * 0.25
    elif WHICH == 7:
        r = libdevice.exp(v)
    elif WHICH == 8:
        r = libdevice.tanh(v)
    else:
        r = tl.erf(v)
    tl.store(y + at, r, mask=at < n)


FUNCTIONS: list[tuple[Callable[[torch.Tensor], torch.Tensor], float]] = [
    (torch.exp, 1e-14),
    # The library's own polynomials are only as good as float32.
    (lambda t: (t.abs() + 1).log(), 1e-8),
    (torch.sigmoid, 1e-14),
    (lambda t: t.abs().sqrt() + (t.abs() + 1).rsqrt(), 1e-14),
    (lambda t: t.exp2() + (t.abs() + 1).log2(), 1e-9),
    (lambda t: t.sin() + t.cos(), 1e-14),
    (lambda t: t.floor() + t * 0.25, 1e-14),
    (torch.exp, 3e-7),
    (torch.tanh, 3e-7),
    (torch.erf, 3e-7),
]


@pytest.mark.parametrize("which", range(len(FUNCTIONS)))
def test_functions(which: int) -> None:
    x, y = 2 * normal(512), np.zeros(512, np.float32)
    arguments = [x, y, 512]
    program = compile_triton(functions, arguments, {"BLOCK": 256, "WHICH": which})
    wide = program.wide((2,), *arguments)[1]
    function, limit = FUNCTIONS[which]
    assert error(wide, function(torch.tensor(values(x))).numpy()) < limit


@triton.jit
def cancellation(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, (v + 10000.0) - 10000.0, mask=at < n)


def test_lost_digits_are_kept() -> None:
    x, y = normal(256), np.zeros(256, np.float32)
    program = compile_triton(cancellation, [x, y, 256], {"BLOCK": 256})
    wide = program.wide((1,), x, y, 256)[1]
    assert error(values(y), values(x)) > 1e-5
    assert error(wide, values(x)) < 1e-12


def test_a_non_finite_value_has_no_shadow() -> None:
    x, h = np.full(256, 1e6, np.float32), np.zeros(256, np.float16)
    program = compile_triton(first_half, [x, h, 256], {"BLOCK": 256})
    wide = program.wide((1,), x, h, 256)[1]
    assert np.isinf(wide).all()


@triton.jit
def steps(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.load(x + at)
    while tl.max(total, 0) < 10:
        total = total * 1.1 + 0.3
    tl.store(y + at, total)


def test_branches_follow_the_actual_values() -> None:
    x, y = normal(256), np.zeros(256, np.float32)
    wide = compile_triton(steps, [x, y], {"BLOCK": 256}).wide((1,), x, y)[1]
    expected = values(x)
    while expected.max() < 10:
        expected = expected * float(np.float32(1.1)) + float(np.float32(0.3))
    assert error(wide, expected) < 1e-14
    assert error(values(y), expected) > 1e-9
