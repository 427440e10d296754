"""Wrong answers fail and honest ones pass: mutants of a matrix product and of a normalisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kopt.tools.comparison import compare
from kopt.tools.floats import rounded

Array = NDArray[np.float64]
M, N, K = 96, 80, 512
EPS = 1e-3


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


class MatrixProduct:
    """y = a @ b + bias in one task format, accumulated in fp32."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.a = rounded(draw(1, M, K), dtype)
        self.b = rounded(draw(2, K, N), dtype)
        self.bias = rounded(draw(3, N), dtype)
        self.truth = self.a @ self.b + self.bias
        self.reference = self.out(self.summed(self.a, self.b, 8) + np.float32(self.bias))

    def out(self, values: Array | NDArray[np.float32]) -> Array:
        return rounded(values.astype(np.float64), self.dtype)

    @staticmethod
    def summed(a: Array, b: Array, parts: int) -> NDArray[np.float32]:
        """Partial sums over K, added one after the other in fp32."""
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for piece in np.array_split(np.arange(a.shape[1]), parts):
            total = total + a[:, piece].astype(np.float32) @ b[piece].astype(np.float32)
        return total

    def passes(self, answer: Array) -> bool:
        return compare(answer, self.truth, self.reference, self.dtype).ok


LOWER = {"float32": "float16", "float16": "float8_e4m3fn", "bfloat16": "float8_e5m2"}


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def task(request: pytest.FixtureRequest) -> MatrixProduct:
    return MatrixProduct(request.param)


def swapped_rows(t: MatrixProduct) -> Array:
    answer = t.reference.copy()
    answer[[3, 4]] = answer[[4, 3]]
    return answer


def last_row_skipped(t: MatrixProduct) -> Array:
    answer = t.reference.copy()
    answer[-1] = 0
    return answer


def tail_tile_stale(t: MatrixProduct) -> Array:
    answer = t.reference.copy()
    answer[-16:, -16:] = answer[:16, :16]
    return answer


def lower_precision(t: MatrixProduct) -> Array:
    low = LOWER[t.dtype]
    return t.out(t.summed(rounded(t.a, low), rounded(t.b, low), 8) + np.float32(t.bias))


def last_k_dropped(t: MatrixProduct) -> Array:
    return t.out(t.summed(t.a[:, :-1], t.b[:-1], 8) + np.float32(t.bias))


MUTANTS: dict[str, Callable[[MatrixProduct], Array]] = {
    "zeros": lambda t: np.zeros_like(t.reference),
    "other_input": lambda t: t.out(draw(9, M, K) @ t.b + t.bias),
    "input_itself": lambda t: t.out(t.a[:, :N]),
    "last_row_skipped": last_row_skipped,
    "tail_tile_stale": tail_tile_stale,
    "last_k_dropped": last_k_dropped,
    "lower_precision": lower_precision,
    "bias_skipped": lambda t: t.out(t.summed(t.a, t.b, 8)),
    "rows_swapped": swapped_rows,
    "negated": lambda t: -t.reference,
    "one_nan": lambda t: np.where(np.arange(N) == 5, np.nan, t.reference),
    "one_infinity": lambda t: np.where(np.arange(N) == 5, np.inf, t.reference),
}

HONEST: dict[str, Callable[[MatrixProduct], Array]] = {
    "itself": lambda t: t.reference,
    "one_sum": lambda t: t.out(t.summed(t.a, t.b, 1) + np.float32(t.bias)),
    "split_k": lambda t: t.out(
        t.summed(t.a[:, : K // 2], t.b[: K // 2], 4)
        + t.summed(t.a[:, K // 2 :], t.b[K // 2 :], 4)
        + np.float32(t.bias)
    ),
    "reordered": lambda t: t.out(t.summed(t.a[:, ::-1], t.b[::-1], 64) + np.float32(t.bias)),
    "bias_first": lambda t: t.out(np.float32(t.bias) + t.summed(t.a, t.b, 16)),
    "exact_products": lambda t: t.out(t.truth),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_product_fails(task: MatrixProduct, name: str) -> None:
    assert not task.passes(MUTANTS[name](task))


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_variant_of_the_product_passes(task: MatrixProduct, name: str) -> None:
    assert task.passes(HONEST[name](task))


def test_tf32_operands_fail_in_an_fp32_task_and_pass_where_the_task_uses_them() -> None:
    task = MatrixProduct("float32")

    def tf32(values: Array) -> Array:
        return values.astype(np.float32).view(np.uint32).__and__(
            np.uint32(0xFFFFE000)
        ).view(np.float32).astype(np.float64)  # fmt: skip

    answer = task.out(task.summed(tf32(task.a), tf32(task.b), 8) + np.float32(task.bias))
    assert not task.passes(answer)
    assert compare(answer, task.truth, task.reference, "float32", floor=2.0**-11).ok


def normalised(x: Array, eps: float, order: int = 1) -> Array:
    """Layer norm in fp32, with sums forwards or backwards."""
    values = x.astype(np.float32)[:, ::order]
    mean = values.mean(axis=1, keepdims=True, dtype=np.float32)
    var = np.square(values - mean).mean(axis=1, keepdims=True, dtype=np.float32)
    result = ((values - mean) / np.sqrt(var + np.float32(eps)))[:, ::order]
    return result.astype(np.float64)


def test_dropped_epsilon_fails_and_another_order_passes() -> None:
    x = draw(5, 64, 1000)
    truth = x.astype(np.float32).astype(np.float64)
    truth = (truth - truth.mean(1, keepdims=True)) / np.sqrt(truth.var(1, keepdims=True) + EPS)
    reference = normalised(x, EPS)
    assert compare(normalised(x, EPS, -1), truth, reference, "float32").ok
    assert not compare(normalised(x, 0.0), truth, reference, "float32").ok


def test_a_transposed_answer_fails() -> None:
    x = rounded(draw(6, 64, 64), "float32")
    assert compare(x.T, x.T, x.T, "float32").ok
    assert not compare(np.ascontiguousarray(x), x.T, x.T, "float32").ok


def test_a_row_whose_error_stands_out_fails_though_the_peak_does_not() -> None:
    truth = draw(7, 256, 256)
    rng = np.random.default_rng(8)
    noise = 1e-7 * rng.standard_normal(truth.shape)
    scale = np.abs(truth) + np.sqrt(np.mean(truth**2, axis=1, keepdims=True))
    reference = truth + noise * scale
    worst = np.abs(noise).max()
    clustered = reference.copy()
    clustered[17] = truth[17] + 7.9 * worst * scale[17] * np.where(np.arange(256) % 2, 1, -1)
    judged = compare(clustered, truth, reference, "float32")
    assert not judged.ok
    scattered = reference.copy()
    scattered[17, 3] = truth[17, 3] + 7.5 * worst * scale[17, 3]
    assert compare(scattered, truth, reference, "float32").ok


def test_integer_work_must_be_exact() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-1, 2, s).astype(np.float64) for s in ((M, K), (K, N)))
    truth = a @ b
    off = truth.copy()
    off[0, 0] += 2.0**-18
    assert compare(truth.copy(), truth, truth, "float32", exact_law=True).ok
    judged = compare(off, truth, truth, "float32", exact_law=True)
    assert not judged.ok
    assert "1 of 7680" in judged.detail
    assert compare(off, truth, truth, "float32", exact_law=False).ok


def test_inexact_references_are_not_held_to_exactness() -> None:
    truth = draw(4, 32, 32)
    reference = truth.astype(np.float32).astype(np.float64)
    other = np.nextafter(reference.astype(np.float32), np.float32(9)).astype(np.float64)
    assert compare(other, truth, reference, "float32", exact_law=True).ok


def test_integers_are_compared_one_by_one() -> None:
    truth = np.arange(1000).reshape(10, 100)
    wrong = truth.copy()
    wrong[9, 99] += 1
    assert compare(truth.copy(), truth, truth, "int64").ok
    judged = compare(wrong, truth, truth, "int64")
    assert not judged.ok
    assert "(9, 99)" in judged.detail


def test_infinities_must_stand_where_the_reference_has_them() -> None:
    truth = draw(10, 8, 64)
    truth[:, 40:] = -np.inf
    assert compare(truth.copy(), truth, truth, "float32").ok
    clipped = np.maximum(truth, -1e30)
    assert not compare(clipped, truth, truth, "float32").ok
    assert not compare(np.where(np.isinf(truth), np.nan, truth), truth, truth, "float32").ok


@pytest.mark.parametrize("shape", [(), (1,), (7,), (4096,), (10000,), (3, 1), (2, 3, 5), (5, 0)])
def test_every_shape_is_judged(shape: tuple[int, ...]) -> None:
    truth = np.asarray(draw(11, *shape))
    reference = truth.astype(np.float32)
    assert compare(reference, truth, reference, "float32").ok
    if truth.size:
        wrong = np.array(reference)
        wrong.reshape(-1)[-1] += 1
        assert not compare(wrong, truth, reference, "float32").ok


def test_chosen_rows_are_enough_to_see_an_error_in_them() -> None:
    truth = draw(12, 100, 50)
    wrong = truth.copy()
    wrong[40] += 1
    for rows, expected in (([40, 41], False), ([1, 2], True)):
        judged = compare(wrong, truth, truth, "float32", rows=np.array(rows))
        assert judged.ok is expected


def test_complex_parts_are_judged_apart() -> None:
    truth = draw(13, 8, 32) + 1j * draw(14, 8, 32)
    wrong = truth.copy()
    wrong[0, 0] = np.conj(wrong[0, 0])
    assert compare(truth.astype(np.complex64), truth, truth.astype(np.complex64), "complex64").ok
    assert not compare(wrong, truth, truth, "complex64").ok
