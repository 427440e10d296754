"""Real Triton kernels against numpy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kopt.gpu.virtual.arrays import Array, bfloat16, compile_triton, values


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Normal numbers; `bfloat16` comes as uint16."""
    x = np.random.default_rng(seed).standard_normal(shape)
    return bfloat16(x) if dtype == "bfloat16" else x.astype(dtype)


def close(result: Array, expected: Array, tolerance: float) -> None:
    """Largest error over the largest expected magnitude."""
    got, wanted = values(result), np.asarray(expected, np.float64)
    assert np.isfinite(got).all()
    scale = np.abs(wanted).max() or 1.0
    assert np.abs(got - wanted).max() / scale < tolerance


EPSILON = {"float32": 2e-7, "float16": 6e-4, "bfloat16": 5e-3}


# Elementwise


@triton.jit
def axpy(x, y, out, n, a, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, a * tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("n", [1, 31, 1000, 4096])
@pytest.mark.parametrize("warps", [1, 4])
def test_elementwise(dtype: str, n: int, warps: int) -> None:
    x, y = normal(n, dtype=dtype), normal(n, dtype=dtype, seed=1)
    out = np.zeros_like(x)
    program = compile_triton(axpy, [x, y, out, n + 0, 1.5], {"BLOCK": 256}, num_warps=warps)
    result = program.run((triton.cdiv(n, 256),), x, y, out, n, 1.5)
    assert not result.findings
    close(out, 1.5 * values(x) + values(y), 2 * EPSILON[dtype])


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n, other=1), tl.load(y + at, mask=at < n, other=1)
    value = (a * b + a // b - a % b) ^ (a << 1) ^ (b >> 2) ^ tl.maximum(a, b) ^ (~a & b)
    tl.store(out + at, value, mask=at < n)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers(dtype: str) -> None:
    rng = np.random.default_rng(0)
    limit = np.iinfo(dtype).max
    x = rng.integers(1, limit, 700).astype(dtype)
    y = rng.integers(1, min(limit, 50), 700).astype(dtype)
    out = np.zeros_like(x)
    program = compile_triton(integers, [x, y, out, 700], {"BLOCK": 256})
    program.run((3,), x, y, out, 700)
    with np.errstate(over="ignore"):
        expected = (x * y + x // y - x % y) ^ (x << 1) ^ (y >> 2) ^ np.maximum(x, y) ^ (~x & y)
    assert (out == expected).all()


@triton.jit
def special(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    a = tl.abs(v)
    total = tl.sin(v) + tl.cos(v) + tl.log(a + 1) + tl.exp2(v) + tl.sqrt_rn(a) + tl.rsqrt(a + 1)
    total += tl.erf(v) + tl.floor(v) + tl.ceil(v) + tl.sigmoid(v) + tl.div_rn(v, a + 1)
    tl.store(out + at, total, mask=at < n)


def test_special_functions() -> None:
    x = 4 * normal(2000)
    x[:4] = [3e5, -7e7, 1e-30, 0.0]
    x[4:] = np.clip(x[4:], -20, 20)
    x[0], x[1] = 90.0, -100.0
    out = np.zeros_like(x)
    program = compile_triton(special, [x, out, 2000], {"BLOCK": 1024})
    program.run((2,), x, out, 2000)
    t = torch.tensor(x).double()
    a = t.abs()
    expected = t.sin() + t.cos() + (a + 1).log() + t.exp2() + a.sqrt() + (a + 1).rsqrt()
    expected += t.erf() + t.floor() + t.ceil() + t.sigmoid() + t / (a + 1)
    error = np.abs(values(out) - expected.numpy()) / (1 + np.abs(expected.numpy()))
    assert error.max() < 1e-6


@triton.jit
def library(x, out, n, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.5)
    if WHICH == 0:
        r = libdevice.pow(tl.abs(v), 1.7)
    elif WHICH == 1:
        r = libdevice.tanh(v)
    elif WHICH == 2:
        r = libdevice.exp(v)
    elif WHICH == 3:
        r = libdevice.log1p(tl.abs(v))
    elif WHICH == 4:
        r = libdevice.atan2(v, 2.0)
    elif WHICH == 5:
        r = libdevice.sin(v * 1000.0)
    elif WHICH == 6:
        r = libdevice.rint(v) + libdevice.trunc(v)
    else:
        r = libdevice.lgamma(tl.abs(v) + 1)
    tl.store(out + at, r, mask=at < n)


LIBRARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.abs() ** float(np.float32(1.7)),
    torch.tanh,
    torch.exp,
    lambda t: t.abs().log1p(),
    lambda t: torch.atan2(t, torch.full_like(t, 2.0)),
    lambda t: (t.float() * 1000.0).double().sin(),
    lambda t: t.round() + t.trunc(),
    lambda t: torch.lgamma((t.float().abs() + 1).double()),
]


@pytest.mark.parametrize("which", range(len(LIBRARY)))
def test_libdevice(which: int) -> None:
    x = 3 * normal(512)
    out = np.zeros_like(x)
    program = compile_triton(library, [x, out, 512], {"BLOCK": 512, "WHICH": which})
    program.run((1,), x, out, 512)
    expected = LIBRARY[which](torch.tensor(x).double()).numpy()
    error = np.abs(values(out) - expected) / (1e-3 + np.abs(expected))
    assert error.max() < 3e-6


@triton.jit
def noise(out, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.rand(seed, at))


def test_random_numbers_are_philox() -> None:
    out = np.zeros(1024, np.float32)
    compile_triton(noise, [out, 17], {"BLOCK": 256}).run((4,), out, 17)
    mask = (1 << 32) - 1
    for index in (0, 1, 1023):
        counter, key = [index, 0, 0, 0], [17, 0]
        for _ in range(10):
            a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
            counter = [
                (b >> 32) ^ counter[1] ^ key[0],
                b & mask,
                (a >> 32) ^ counter[3] ^ key[1],
                a & mask,
            ]
            key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
        value = counter[0] - (1 << 32) if counter[0] >> 31 else counter[0]
        value = -value - 1 if value < 0 else value
        assert abs(out[index] - value * 4.6566127342e-10) < 1e-7


# Reductions, scans, sorting


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, BLOCK)
    v = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    power = tl.exp(v - tl.max(v, 0))
    tl.store(out + row + at, (power / tl.sum(power, 0)).to(out.dtype.element_ty), mask=at < n)


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize(("n", "warps"), [(77, 1), (1000, 4), (4096, 8)])
def test_softmax(dtype: str, n: int, warps: int) -> None:
    x = normal(5, n, dtype=dtype)
    out = np.zeros_like(x)
    block = triton.next_power_of_2(n)
    program = compile_triton(softmax, [x, out, n], {"BLOCK": block}, num_warps=warps)
    assert not program.run((5,), x, out, n).findings
    close(out, torch.softmax(torch.tensor(values(x)), 1).numpy(), 3 * EPSILON[dtype])


@triton.jit
def reductions(x, sums, tops, places, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    at = tl.arange(0, M if AXIS == 1 else N)
    tl.store(sums + at, tl.sum(v, AXIS))
    tl.store(tops + at, tl.max(v, AXIS))
    tl.store(places + at, tl.argmin(v, AXIS))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (128, 32), (4, 256)])
def test_reductions(axis: int, shape: tuple[int, int]) -> None:
    x = normal(*shape)
    count = shape[1 - axis]
    sums, tops = np.zeros(count, np.float32), np.zeros(count, np.float32)
    places = np.zeros(count, np.int32)
    constants = {"M": shape[0], "N": shape[1], "AXIS": axis}
    program = compile_triton(reductions, [x, sums, tops, places], constants)
    program.run((1,), x, sums, tops, places)
    close(sums, values(x).sum(axis), 1e-6)
    assert (tops == x.max(axis)).all()
    assert (places == x.argmin(axis)).all()


@triton.jit
def scans(x, sums, products, backward, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(v, 0))
    tl.store(products + at, tl.cumprod(1 + v / 1000, 0))
    tl.store(backward + at, tl.cumsum(v, 0, reverse=True))


def test_scans() -> None:
    x = normal(1024)
    sums, products, backward = (np.zeros_like(x) for _ in range(3))
    compile_triton(scans, [x, sums, products, backward], {"BLOCK": 1024}).run(
        (1,), x, sums, products, backward
    )
    close(sums, np.cumsum(values(x)), 1e-6)
    close(products, np.cumprod(1 + values(x) / 1000), 1e-5)
    close(backward, np.cumsum(values(x)[::-1])[::-1], 1e-6)


@triton.jit
def ordering(x, up, down, counts, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(up + at, tl.sort(v))
    tl.store(down + at, tl.sort(v, descending=True))
    tl.store(counts + tl.arange(0, 64), tl.histogram(v & 63, 64))


@pytest.mark.parametrize("warps", [1, 4])
def test_sort_and_histogram(warps: int) -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, 512).astype(np.int32)
    up, down, counts = np.zeros_like(x), np.zeros_like(x), np.zeros(64, np.int32)
    program = compile_triton(ordering, [x, up, down, counts], {"BLOCK": 512}, num_warps=warps)
    program.run((1,), x, up, down, counts)
    assert (up == np.sort(x)).all()
    assert (down == np.sort(x)[::-1]).all()
    assert (counts == np.bincount(x & 63, minlength=64)).all()


@triton.jit
def shapes(x, out, M: tl.constexpr, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    a, b = tl.split(tl.reshape(v, (M, N // 2, 2)))
    mixed = tl.permute(tl.join(b, a * 2), (2, 1, 0))
    flat = tl.reshape(mixed, (M * N,))
    gathered = tl.gather(flat, (tl.arange(0, M * N) * 7) % (M * N), 0)
    tl.store(out + tl.arange(0, M * N), gathered)


def test_shape_manipulation() -> None:
    x = normal(32, 64)
    out = np.zeros(32 * 64, np.float32)
    compile_triton(shapes, [x, out], {"M": 32, "N": 64}).run((1,), x, out)
    pairs = x.reshape(32, 32, 2)
    mixed = np.stack([pairs[..., 1], pairs[..., 0] * 2], -1).transpose(2, 1, 0).reshape(-1)
    assert (out == mixed[(np.arange(2048) * 7) % 2048]).all()


# Matrices


@triton.jit
def matmul(
    a, b, c, M, N, K, sam, sak, sbk, sbn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
    TOTAL: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), TOTAL)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        inside = k < K
        left = tl.load(
            a + rows[:, None] * sam + k[None, :] * sak,
            mask=(rows[:, None] < M) & inside[None, :], other=0,
        )  # fmt: skip
        right = tl.load(
            b + k[:, None] * sbk + columns[None, :] * sbn,
            mask=inside[:, None] & (columns[None, :] < N), other=0,
        )  # fmt: skip
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=TOTAL)
    where = c + rows[:, None] * N + columns[None, :]
    value = total.to(c.dtype.element_ty)
    tl.store(where, value, mask=(rows[:, None] < M) & (columns[None, :] < N))


@pytest.mark.parametrize(
    ("dtype", "precision", "total", "tolerance"),
    [
        ("float16", "tf32", tl.float32, 1e-3), ("bfloat16", "tf32", tl.float32, 8e-3),
        ("float32", "tf32", tl.float32, 2e-3), ("float32", "ieee", tl.float32, 1e-6),
        ("float32", "tf32x3", tl.float32, 1e-5), ("float16", "tf32", tl.float16, 1e-2),
        ("int8", "tf32", tl.int32, 1e-9), ("float64", "ieee", tl.float64, 1e-12),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("size", [(128, 64, 96), (100, 72, 80)])
def test_matmul(
    dtype: str,
    precision: str,
    total: Any,
    tolerance: float,
    layout: str,
    size: tuple[int, int, int],
) -> None:
    M, N, K = size
    if dtype == "int8":
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-128, 127, s).astype(np.int8) for s in ((M, K), (K, N)))
        c: Array = np.zeros((M, N), np.int32)
    else:
        a, b = normal(M, K, dtype=dtype), normal(K, N, dtype=dtype, seed=1)
        c = np.zeros((M, N), a.dtype)
    expected = values(a) @ values(b)
    left = np.ascontiguousarray(a.T) if layout == "tn" else a
    right = np.ascontiguousarray(b.T) if layout == "nt" else b
    constants: dict[str, object] = {
        "BM": 64, "BN": 32, "BK": 32, "PRECISION": precision, "TOTAL": total,
    }  # fmt: skip
    arguments: list[Array | int] = [left, right, c, M, N, K]
    unit = {"sak" if layout != "tn" else "sam": 1, "sbn" if layout != "nt" else "sbk": 1}
    constants.update(unit)
    arguments += [M if layout == "tn" else K, K if layout == "nt" else N]
    program = compile_triton(matmul, arguments, constants)
    result = program.run((triton.cdiv(M, 64), triton.cdiv(N, 32)), *arguments)
    assert not result.findings
    close(c, expected, tolerance)


@triton.jit
def attention(q, k, v, out, scale, S, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    block, base = tl.program_id(0), tl.program_id(1) * S * D
    rows, depth = block * BM + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + base + rows[:, None] * D + depth[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    result = tl.zeros((BM, D), tl.float32)
    for start in range(0, (block + 1) * BM, BN):
        keys = start + tl.arange(0, BN)
        score = tl.dot(query, tl.load(k + base + keys[None, :] * D + depth[:, None])) * scale
        score = tl.where(rows[:, None] >= keys[None, :], score, -float("inf"))
        new = tl.maximum(top, tl.max(score, 1))
        power = tl.exp(score - new[:, None])
        shrink = tl.exp(top - new)
        total = total * shrink + tl.sum(power, 1)
        value = tl.load(v + base + keys[:, None] * D + depth[None, :])
        result = tl.dot(power.to(value.dtype), value, result * shrink[:, None])
        top = new
    tl.store(
        out + base + rows[:, None] * D + depth[None, :],
        (result / total[:, None]).to(out.dtype.element_ty),
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("warps", [2, 4])
def test_causal_attention(dtype: str, warps: int) -> None:
    q, k, v = (normal(2, 128, 64, dtype=dtype, seed=n) for n in range(3))
    out = np.zeros_like(q)
    arguments: list[Array | int | float] = [q, k, v, out, 0.125, 128]
    program = compile_triton(attention, arguments, {"D": 64, "BM": 64, "BN": 32}, num_warps=warps)
    assert not program.run((2, 2), *arguments).findings
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(values(t)) for t in (q, k, v)), is_causal=True
    )
    close(out, expected.numpy(), 4 * EPSILON[dtype])


# Control flow


@triton.jit
def collatz(x, out, n):
    at = tl.program_id(0)
    value = tl.load(x + at)
    steps = 0
    while value != 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    tl.store(out + at, steps)


def test_loops_over_loaded_values() -> None:
    x = np.arange(1, 200).astype(np.int64)
    out = np.zeros(199, np.int32)
    compile_triton(collatz, [x, out, 199], {}, num_warps=1).run((199,), x, out, 199)
    for start, steps in zip(x.tolist(), out.tolist(), strict=True):
        value, count = start, 0
        while value != 1:
            value, count = (value // 2 if value % 2 == 0 else 3 * value + 1), count + 1
        assert steps == count


@triton.jit
def bit_lengths(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    count = value * 0
    top = tl.max(value, 0)
    while top > 0:
        count += tl.where(value > 0, 1, 0)
        value = value // 2
        top = tl.max(value, 0)
    tl.store(out + at, count, mask=at < n)


def test_loops_on_a_reduction() -> None:
    x = np.random.default_rng(0).integers(0, 1 << 20, 1000).astype(np.int32)
    out = np.zeros_like(x)
    compile_triton(bit_lengths, [x, out, 1000], {"BLOCK": 256}).run((4,), x, out, 1000)
    assert (out == [int(v).bit_length() for v in x]).all()


@triton.jit
def early_exit(x, out, n, BLOCK: tl.constexpr):
    if tl.program_id(0) * BLOCK >= n:
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def test_early_return() -> None:
    x = normal(300)
    out = np.zeros(1024, np.float32)
    compile_triton(early_exit, [x, out, 300], {"BLOCK": 128}).run((8,), x, out, 300)
    assert (out[:300] == x + 1).all()
    assert not out[300:].any()


# Threads and results


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = normal(64, 1000)
    program = compile_triton(softmax, [x, x, 1000], {"BLOCK": 1024})
    results = []
    for threads in (1, 2, 5):
        out = np.zeros_like(x)
        program.run((64,), x, out, 1000, threads=threads)
        results.append(out)
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_only_the_chosen_ctas_run() -> None:
    x = normal(64, 1000)
    out = np.zeros_like(x)
    program = compile_triton(softmax, [x, out, 1000], {"BLOCK": 1024})
    program.run((64,), x, out, 1000, ctas=[3, 60])
    ran = np.flatnonzero(out.any(axis=1))
    assert ran.tolist() == [3, 60]
