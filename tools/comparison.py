"""Numbers against numbers: is an output as close to the fp64 truth as the reference is?

An output passes when each of three error norms is at most a constant times that of the reference
computed in the task's own precision, and no row, column or tile stands out. No share of the
elements may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.tools.floats import FORMATS, Float64

RMS_FACTOR, PEAK_FACTOR, TAIL_FACTOR, CLUSTER_FACTOR = 4.0, 8.0, 6.0, 6.0
"""Allowed multiples of the reference's error. Reordered sums reach 1.0 to 3.7, split-K 2.4; a
dropped last element of K gives 8 to 36, TF32 in an fp32 task 1000 (measured on matrix products)."""

_CHUNK = 1 << 21
_BINS_PER_OCTAVE, _OCTAVES = 32, 110
_LOWEST_OCTAVE = -90
_SMALLEST_GROUP = 16
"""Groups with fewer elements are judged by the peak alone: their RMS scatters too much."""
_TILE = 32
_FLAT_ROW = 4096
"""How a one-dimensional output is cut into rows, to see where errors cluster."""

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Norms:
    """Three sizes of an error, all relative."""

    rms: float
    """RMS of the error over RMS of the truth."""
    peak: float
    """Largest |error| / (|truth| + s), s being the RMS of the truth's row."""
    tail: float
    """The 99.9th percentile of the same quotient."""


@dataclass(frozen=True)
class Judgement:
    """Whether one output passes, and the sentence that says why not."""

    ok: bool
    detail: str = ""
    candidate: Norms | None = None
    reference: Norms | None = None


@dataclass
class _Errors:
    """Sums over one pass of an output's error."""

    squares: float = 0.0
    peak: float = 0.0
    peak_at: int = 0
    count: int = 0
    histogram: NDArray[np.int64] | None = None
    rows: list[Float64] | None = None
    columns: Float64 | None = None
    tiles: list[Float64] | None = None

    def squares_of_quotient(self) -> float:
        """Sum of squared relative errors."""
        return float(sum(part.sum() for part in self.rows or []))


def compare(
    candidate: Array,
    truth: Array,
    reference: Array,
    dtype: str,
    *,
    exact_law: bool = False,
    floor: float = 0.0,
    rows: NDArray[np.int64] | None = None,
    slack: float = 1.0,
) -> Judgement:
    """Judge one output of torch dtype `dtype`; all three arrays have its shape.

    `truth` is the fp64 oracle, `reference` the task-dtype answer that sets the scale. `floor` adds
    to the format's own rounding what the task's arithmetic may lose (TF32 operands). `rows` limits
    the judgement to some rows of the flattened output, see `row_count`; `slack` multiplies every
    tolerance.
    """
    if candidate.size == 0:
        return Judgement(True)
    if np.iscomplexobj(candidate):
        part = "float32" if dtype == "complex64" else "float64"
        c, t, r = (_real_pairs(a) for a in (candidate, truth, reference))
        return compare(c, t, r, part, exact_law=exact_law, floor=floor, rows=rows, slack=slack)
    shape = candidate.shape
    layout = _Layout.of(shape)
    c, t, r = (layout.view(a, rows) for a in (candidate, truth, reference))
    if dtype not in FORMATS:
        return _compare_integers(c, t, r, shape)
    allowed = max(FORMATS[dtype].rounding, floor)
    return _compare_floats(c, t, r, layout, allowed, exact_law, slack)


def row_count(shape: tuple[int, ...]) -> int:
    """How many rows `compare` sees in an output of this shape."""
    return _Layout.of(shape).rows


@dataclass(frozen=True)
class _Layout:
    """An output as a matrix: leading axes by last axis; a vector is cut into rows."""

    rows: int
    columns: int
    flat: bool
    """A vector: the scale `s` is that of the whole, not of a row."""

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> _Layout:
        size = int(np.prod(shape, dtype=np.int64))
        if len(shape) >= 2 and 1 < shape[-1] < size:
            return cls(size // shape[-1], shape[-1], False)
        columns = min(size, _FLAT_ROW)
        return cls(-(-size // columns), columns, True)

    def view(self, values: Array, rows: NDArray[np.int64] | None) -> Array:
        """The values as a matrix; a short last row of a vector is filled with zeros."""
        flat = values.reshape(-1)
        missing = self.rows * self.columns - flat.size
        if missing and (rows is None or self.rows - 1 in rows):
            flat = np.concatenate([flat, np.zeros(missing, flat.dtype)])
        elif missing:
            flat = flat[: (self.rows - 1) * self.columns]
        matrix = flat.reshape(-1, self.columns)
        return matrix if rows is None else matrix[rows]


def _real_pairs(values: Array) -> Array:
    parts = np.stack([values.real, values.imag], axis=-1)
    return parts.reshape(*values.shape[:-1], -1) if values.ndim else parts


def _compare_integers(
    candidate: Array, truth: Array, reference: Array, shape: tuple[int, ...]
) -> Judgement:
    """Equal, element by element. Where the reference itself departs from the truth (a tie broken
    by rounding), either answer is accepted."""
    right = candidate == reference
    if not right.all():
        exact = truth if truth.dtype.kind in "iub" else np.rint(truth.astype(np.float64))
        right = right | (candidate == exact)
    wrong = int(np.size(right) - np.count_nonzero(right))
    if wrong == 0:
        return Judgement(True)
    first = int(np.argmin(right))
    return Judgement(
        False,
        f"{wrong} of {right.size} integers differ, the first at {_index(first, shape)}: "
        f"{candidate.reshape(-1)[first]} instead of {reference.reshape(-1)[first]}",
    )


def _compare_floats(
    candidate: Array,
    truth: Array,
    reference: Array,
    layout: _Layout,
    allowed: float,
    exact_law: bool,
    slack: float,
) -> Judgement:
    problem = _finite_pattern(candidate, truth, reference)
    if problem:
        return Judgement(False, problem)
    scale = _scale(truth, layout, allowed)
    theirs = _errors(candidate, truth, scale)
    ours = _errors(reference, truth, scale)
    total = _sum_of_squares(truth)
    c, r = _norms(theirs, total), _norms(ours, total)
    if exact_law and ours.squares == 0.0 and _all_integers(truth):
        if theirs.squares == 0.0:
            return Judgement(True, "", c, r)
        wrong = theirs.count - int(_histogram(theirs)[0])
        return Judgement(
            False,
            f"{wrong} of {theirs.count} values differ; this work is exact on integers, so every"
            " order of it gives the same",
            c,
            r,
        )
    for name, ratio, have, base in (
        ("relative RMS error", RMS_FACTOR, c.rms, r.rms),
        ("largest relative error", PEAK_FACTOR, c.peak, r.peak),
        ("99.9th percentile of the relative error", TAIL_FACTOR, c.tail, r.tail),
    ):
        limit = slack * ratio * max(base, allowed)
        if have > limit:
            row, column = divmod(theirs.peak_at, layout.columns)
            return Judgement(
                False,
                f"{name} {have:.3g} is over {limit:.3g} ({slack * ratio:g} times the reference's"
                f" own, at least the format's rounding); worst at row {row}, column {column}:"
                f" {_item(candidate, row, column):.7g} instead of {_item(truth, row, column):.7g}",
                c,
                r,
            )
    cluster = _cluster(theirs, ours, layout, allowed, slack)
    return Judgement(cluster == "", cluster, c, r)


def _item(values: Array, row: int, column: int) -> float:
    return float(np.asarray(values[row, column]).astype(np.float64))


def _finite_pattern(candidate: Array, truth: Array, reference: Array) -> str:
    """Where NaN and infinities must stand: as in the reference, or as in the truth."""
    for start, stop in _row_chunks(candidate):
        c, t, r = (a[start:stop] for a in (candidate, truth, reference))
        if np.isfinite(c).all() and np.isfinite(r).all():
            continue
        kinds = [_kind(a) for a in (c, t, r)]
        wrong = (kinds[0] != kinds[2]) & (kinds[0] != kinds[1])
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            return (
                f"{int(wrong.sum())} values have another finiteness than the reference, the first"
                f" at row {start + row}, column {column}: {c[row, column]} instead of"
                f" {r[row, column]}"
            )
    return ""


def _kind(values: Array) -> NDArray[np.int8]:
    """0 finite, 1 NaN, 2 +inf, 3 −inf."""
    floats = values.astype(np.float64)
    kind = np.isnan(floats).astype(np.int8)
    kind[np.isposinf(floats)] = 2
    kind[np.isneginf(floats)] = 3
    return kind


def _scale(truth: Array, layout: _Layout, allowed: float) -> Float64:
    """RMS of each row; a row of (nearly) zeros gets one rounding of the whole output's RMS."""
    sums = np.concatenate([np.sum(_finite64(part) ** 2, axis=1) for part in _parts(truth)])
    whole = float(np.sqrt(np.sum(sums) / max(truth.size, 1)))
    if layout.flat:
        return np.full(len(sums), whole if whole > 0 else 1.0)
    rms: Float64 = np.sqrt(sums / layout.columns)
    return np.maximum(rms, max(whole * allowed, np.finfo(np.float64).tiny))


def _sum_of_squares(truth: Array) -> float:
    return float(sum(np.sum(_finite64(part) ** 2) for part in _parts(truth)))


def _errors(values: Array, truth: Array, scale: Float64) -> _Errors:
    result = _Errors(histogram=np.zeros(_BINS_PER_OCTAVE * _OCTAVES + 1, np.int64))
    result.rows, result.tiles = [], []
    columns = values.shape[1]
    result.columns = np.zeros(columns)
    cuts = np.arange(0, columns, _TILE)
    for start, stop in _row_chunks(values):
        t = truth[start:stop].astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.abs(values[start:stop].astype(np.float64) - t)
        usable = np.isfinite(error)
        if not usable.all():
            error = np.where(usable, error, 0.0)
            t = np.where(np.isfinite(t), t, 0.0)
        result.squares += float(np.sum(error * error))
        error /= np.abs(t) + scale[start:stop, None]
        worst = int(np.argmax(error))
        peak = float(error.reshape(-1)[worst])
        if peak > result.peak:
            result.peak, result.peak_at = peak, start * columns + worst
        result.count += error.size
        _add_to_histogram(result, error)
        np.square(error, out=error)
        result.rows.append(error.sum(axis=1))
        result.columns += error.sum(axis=0)
        across = np.add.reduceat(error, cuts, axis=1)
        result.tiles.append(np.add.reduceat(across, np.arange(0, len(across), _TILE), axis=0))
    return result


def _histogram(errors: _Errors) -> NDArray[np.int64]:
    assert errors.histogram is not None
    return errors.histogram


def _add_to_histogram(errors: _Errors, quotient: Float64) -> None:
    """Bin 0 is exactly zero; the others are 32 to the octave, which is 2 % wide."""
    histogram = _histogram(errors)
    positive = quotient[quotient > 0].astype(np.float32)
    histogram[0] += quotient.size - positive.size
    if positive.size:
        positive = np.maximum(positive, np.float32(1e-37))
        place = ((np.log2(positive) - _LOWEST_OCTAVE) * _BINS_PER_OCTAVE).astype(np.int64) + 1
        np.clip(place, 1, len(histogram) - 1, out=place)
        histogram += np.bincount(place, minlength=len(histogram))


def _norms(errors: _Errors, total: float) -> Norms:
    rms = float(np.sqrt(errors.squares / total)) if total > 0 else float(np.sqrt(errors.squares))
    histogram = _histogram(errors)
    beyond = np.cumsum(histogram[::-1])[::-1]
    above = np.flatnonzero(beyond > max(errors.count, 1) * 1e-3)
    place = int(above[-1]) if len(above) else 0
    octave = (place - 0.5) / _BINS_PER_OCTAVE + _LOWEST_OCTAVE
    tail = min(float(2.0**octave), errors.peak) if place else 0.0
    return Norms(rms, errors.peak, tail)


def _cluster(theirs: _Errors, ours: _Errors, layout: _Layout, allowed: float, slack: float) -> str:
    """A row, column or tile whose error stands out though the whole passes: skipped work."""
    rows = len(np.concatenate(theirs.rows or []))
    everywhere = float(np.sqrt(ours.squares_of_quotient() / max(ours.count, 1)))
    base = max(everywhere, allowed)
    for name, have, reference, members in _groups(theirs, ours, rows, layout.columns):
        usable = members >= _SMALLEST_GROUP
        size = np.maximum(members, 1)
        mine = np.sqrt(have / size)
        limit = slack * CLUSTER_FACTOR * np.maximum(np.sqrt(reference / size), base)
        bad = usable & (mine > limit)
        if bad.any():
            worst = int(np.argmax(np.where(bad, mine / limit, 0)))
            return (
                f"errors cluster in {int(bad.sum())} of {bad.size} {name}s: {name} {worst} has"
                f" relative RMS error {mine.flat[worst]:.3g}, over {limit.flat[worst]:.3g}"
            )
    return ""


def _groups(
    theirs: _Errors, ours: _Errors, rows: int, columns: int
) -> Iterator[tuple[str, Float64, Float64, NDArray[np.int64]]]:
    def joined(parts: list[Float64] | None) -> Float64:
        return np.concatenate(parts or [])

    yield "row", joined(theirs.rows), joined(ours.rows), np.full(rows, columns)
    if theirs.columns is not None and ours.columns is not None:
        yield "column", theirs.columns, ours.columns, np.full(columns, rows)
    tiles = joined(theirs.tiles)
    heights = np.concatenate([_extents(stop - start) for start, stop in _chunks(rows, columns)])
    members = heights[:, None] * _extents(columns)[None, :]
    yield "tile", tiles.ravel(), joined(ours.tiles).ravel(), members.ravel()


def _extents(length: int) -> NDArray[np.int64]:
    starts = np.arange(0, length, _TILE)
    return np.minimum(length - starts, _TILE)


def _chunks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(_TILE, _CHUNK // max(columns, 1) // _TILE * _TILE)
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def _row_chunks(values: Array) -> Iterator[tuple[int, int]]:
    yield from _chunks(*values.shape)


def _parts(values: Array) -> Iterator[Array]:
    for start, stop in _row_chunks(values):
        yield values[start:stop]


def _finite64(values: Array) -> Float64:
    floats = values.astype(np.float64)
    return np.where(np.isfinite(floats), floats, 0.0)


def _all_integers(truth: Array) -> bool:
    return all(bool(np.all(part == np.rint(part.astype(np.float64)))) for part in _parts(truth))


def _index(flat: int, shape: tuple[int, ...]) -> str:
    size = int(np.prod(shape, dtype=np.int64))
    if flat >= size:
        return str(flat)
    return str(tuple(int(i) for i in np.unravel_index(flat, shape)))
