"""A reference runs in fp64 though it names narrower types."""

from __future__ import annotations

import torch

from kopt.gpu.virtual.raised import Raised


def narrow(x: torch.Tensor) -> torch.Tensor:
    """Rounds in every way that references do."""
    wide = x.float() + x.to(torch.bfloat16) + x.type(torch.float16) + x.to(dtype=torch.float32)
    wide = wide + torch.zeros(x.shape, dtype=torch.float16) + torch.ones(1) + torch.full((1,), 0.1)
    return torch.softmax(wide, -1, dtype=torch.float32).half()


def test_no_cast_rounds() -> None:
    x = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    with Raised():
        found = narrow(x)
    assert found.dtype is torch.float64
    exact = torch.softmax(4 * x + 1.1, -1)
    assert torch.allclose(found, exact, rtol=1e-14, atol=0)
    assert torch.get_default_dtype() is torch.float32
    assert narrow(x).dtype is torch.float16


def test_integers_and_masks_stay() -> None:
    with Raised():
        assert torch.arange(3).dtype is torch.int64
        assert (torch.ones(2) > 0).dtype is torch.bool
        assert torch.ones(2).long().dtype is torch.int64
