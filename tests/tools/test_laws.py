"""Laws keep everything but float values, and formats round as IEEE says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import TensorRef
from kopt.tools.floats import FORMATS, encode, rounded, values_of
from kopt.tools.laws import AS_GIVEN, EXACT, LAW_NAMES, LAWS, laws_for, refill


def some_inputs() -> Tensors:
    """fp32 (with a transposed view of the same storage), bf16, an index, and a mask."""
    storages = [np.zeros(4 * 60, np.uint8), np.zeros(2 * 30, np.uint8),
                np.arange(10).view(np.uint8).copy(), np.ones(5, np.uint8)]  # fmt: skip
    tensors = [
        TensorRef(0, "float32", (5, 10), (10, 1), 10),
        TensorRef(0, "float32", (10, 5), (1, 10), 10),
        TensorRef(1, "bfloat16", (3, 4, 10), (10, 0, 1), 0),
        TensorRef(2, "int64", (10,), (1,), 0),
        TensorRef(3, "bool", (5,), (1,), 0),
    ]
    return Tensors([{"tensor": i} for i in range(5)], tensors, storages)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_keeps_integers_views_and_the_rest_of_the_storage(law: str) -> None:
    before = some_inputs()
    after = refill(before, law, 7)
    assert after.tensors == before.tensors
    for position in (3, 4):
        assert np.array_equal(values_of(after, position), values_of(before, position))
    assert np.array_equal(values_of(after, 0), values_of(after, 1).T)
    expanded = values_of(after, 2)
    assert np.array_equal(expanded[:, 0], expanded[:, 3])
    assert not after.storages[0][:40].any(), "bytes outside every tensor are not touched"
    assert not before.storages[0].any(), "the given inputs are not changed"


def test_seeds_decide_values() -> None:
    first, again, other = (refill(some_inputs(), "normal", seed) for seed in (1, 1, 2))
    assert np.array_equal(values_of(first, 0), values_of(again, 0))
    assert not np.array_equal(values_of(first, 0), values_of(other, 0))


def test_laws_do_what_they_say() -> None:
    inputs = Tensors({"tensor": 0}, [TensorRef(0, "float32", (64, 512), (512, 1), 0)],
                     [np.zeros(4 * 64 * 512, np.uint8)])  # fmt: skip
    values = {law: values_of(refill(inputs, law, 3), 0).astype(np.float64) for law in LAWS}
    assert set(np.unique(values[EXACT])) == {-1.0, 0.0, 1.0}
    assert abs(values["normal"].mean()) < 0.02
    assert np.abs(values["heavy_tail"]).max() > 20 * np.abs(values["heavy_tail"]).mean()
    assert (np.diff(values["sorted"], axis=1) >= 0).all()
    assert values["large_offset"].mean() > 10 * values["large_offset"].std() / 2
    assert values["uniform"].min() >= 0
    assert not values["zeros"].any()
    assert len(np.unique(values["ties"])) < 10
    assert (values["structured"].std(axis=1) > 0.1).all(), "no row is constant"


def test_a_targets_own_laws_restrict() -> None:
    assert laws_for(None) == LAW_NAMES
    assert laws_for(("uniform",)) == (AS_GIVEN, "uniform")


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_is_to_nearest_even(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(20_000) * np.exp(rng.uniform(-40, 40, 20_000))
    values = np.concatenate([values.astype(np.float32), [0.0, -0.0, 1e-45, 3e38, np.nan]])
    values = values.astype(np.float32)  # torch rounds fp64 to small formats by way of fp32
    expected = torch.from_numpy(values).to(getattr(torch, dtype))
    finite = torch.isfinite(expected.double()).numpy()
    ours = rounded(values.astype(np.float64), dtype)
    assert np.array_equal(ours[finite], expected.double().numpy()[finite])
    raw = expected.view(torch.uint8).numpy().reshape(len(values), -1)
    encoded = encode(values.astype(np.float64), dtype)
    mine = np.frombuffer(encoded.tobytes(), np.uint8).reshape(len(values), -1)
    assert np.array_equal(mine[finite], raw[finite])


def test_rounding_does_not_go_through_fp32() -> None:
    tie = 1 + 2.0**-8 + 2.0**-40  # just above the middle of two bf16 numbers; fp32 makes it a tie
    assert rounded(np.array([tie]), "bfloat16")[0] == 1 + 2.0**-7
