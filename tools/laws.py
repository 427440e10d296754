"""Value laws: how the judge refills the float tensors that `make_inputs` gave.

Integers and booleans are kept (they index, mask and count), and so is everything that ties two
tensors together: shapes, strides and shared storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.tensor_io import ITEM_BYTES, Tensors
from kopt.gpu.trace import TensorRef
from kopt.tools.floats import COMPLEX_PARTS, Float64, encode, is_float

AS_GIVEN = "as_given"
"""The values of `make_inputs` themselves."""

EXACT = "exact_integers"
"""Values −1, 0 and 1: linear work on them is exact, so its answer must be equal bit for bit."""

Shape = tuple[int, ...]
Law = Callable[[np.random.Generator, Shape], Float64]


def _normal(rng: np.random.Generator, shape: Shape) -> Float64:
    return rng.standard_normal(shape)


def _uniform(rng: np.random.Generator, shape: Shape) -> Float64:
    """In [0, 1): the only law for functions that need positive values."""
    return rng.random(shape)


def _heavy_tail(rng: np.random.Generator, shape: Shape) -> Float64:
    """A few values a hundred times the others; clipped so that fp16 sums stay finite."""
    return np.clip(rng.standard_normal(shape) * np.exp(1.5 * rng.standard_normal(shape)), -100, 100)


def _structured(rng: np.random.Generator, shape: Shape) -> Float64:
    """Ramps along the last axis whose slope and start change from row to row.

    No row is constant: a normalisation of one divides rounding errors by nearly nothing, and there
    honest kernels differ.
    """
    columns = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1], dtype=np.int64)) if shape else 1
    slope = rng.uniform(0.5, 2.0, (rows, 1)) * rng.choice([-1.0, 1.0], (rows, 1))
    start = rng.uniform(-1.0, 1.0, (rows, 1))
    ramps: Float64 = start + slope * np.linspace(0.0, 1.0, columns)
    return ramps.reshape(shape)


def _exact_integers(rng: np.random.Generator, shape: Shape) -> Float64:
    return rng.integers(-1, 2, shape).astype(np.float64)


def _large_offset(rng: np.random.Generator, shape: Shape) -> Float64:
    """A mean many times the spread: cancellation shows unstable sums of squares."""
    return rng.uniform(16.0, 128.0) + rng.uniform(0.5, 2.0) * rng.standard_normal(shape)


def _zeros(rng: np.random.Generator, shape: Shape) -> Float64:
    return np.zeros(shape)


def _ties(rng: np.random.Generator, shape: Shape) -> Float64:
    """Few distinct values: every maximum is reached many times."""
    return rng.choice(np.array([-2.0, -0.5, 0.0, 0.5, 1.0]), shape)


def _sorted(rng: np.random.Generator, shape: Shape) -> Float64:
    """Ascending along the last axis: a running maximum changes at every step."""
    return np.sort(rng.standard_normal(shape), axis=-1) if shape else rng.standard_normal(shape)


LAWS: dict[str, Law] = {
    "normal": _normal,
    "heavy_tail": _heavy_tail,
    "structured": _structured,
    EXACT: _exact_integers,
    "large_offset": _large_offset,
    "sorted": _sorted,
    "ties": _ties,
    "uniform": _uniform,
    "zeros": _zeros,
}

LAW_NAMES = (AS_GIVEN, *LAWS)
"""Every law's name, in the order in which they are tried."""


def laws_for(wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The laws to try: the target's own `LAWS`, else all; `as_given` always."""
    if wanted is None:
        return LAW_NAMES
    return (AS_GIVEN, *(name for name in LAWS if name in wanted))


def refill(inputs: Tensors, law: str, seed: int) -> Tensors:
    """A copy of `inputs` whose float tensors follow `law`; the same seed gives the same bytes.

    Tensors that share elements still do: an element is filled once, with the first tensor that
    has it.
    """
    if law == AS_GIVEN:
        return inputs
    storages = [np.array(storage, dtype=np.uint8) for storage in inputs.storages]
    filled: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for position, tensor in enumerate(inputs.tensors):
        part = COMPLEX_PARTS.get(tensor.dtype, tensor.dtype)
        if not is_float(part) or 0 in tensor.shape:
            continue
        size = ITEM_BYTES[tensor.dtype]
        storage = storages[tensor.buffer]
        usable = len(storage) // size * size
        items = storage[:usable].view(np.dtype((np.void, size)))
        done = filled.setdefault((tensor.buffer, size), np.zeros(len(items), dtype=np.bool_))
        _fill(items, done, tensor, part, _generator(law, seed, position), LAWS[law])
    return Tensors(inputs.tree, list(inputs.tensors), storages)


def _generator(law: str, seed: int, position: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{law}:{seed}:{position}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def _fill(
    items: NDArray[np.void],
    done: NDArray[np.bool_],
    tensor: TensorRef,
    part: str,
    rng: np.random.Generator,
    law: Law,
) -> None:
    # An expanded axis (stride 0) repeats the same elements; they get one value.
    shape = tuple(1 if s == 0 else n for n, s in zip(tensor.shape, tensor.stride, strict=True))
    if tensor.dtype in COMPLEX_PARTS:
        pairs = np.stack([law(rng, shape), law(rng, shape)], axis=-1)
        encoded = encode(pairs, part).view(items.dtype).reshape(shape)
    else:
        encoded = encode(law(rng, shape), part).reshape(shape)
    size = items.dtype.itemsize
    window = np.lib.stride_tricks.as_strided(
        items[tensor.offset :], shape, tuple(s * size for s in tensor.stride)
    )
    seen = np.lib.stride_tricks.as_strided(done[tensor.offset :], shape, tensor.stride)
    fresh = ~seen
    window[fresh] = encoded[fresh]
    seen[fresh] = True
