"""Kernels of the PyPI package liger-kernel run unmodified and agree with PyTorch, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

import kopt
from kopt.gpu.virtual.device import VirtualGPU

pytest.importorskip("liger_kernel", reason="liger-kernel is not installed (extra dev)")

Function = Callable[..., object]


@pytest.fixture(scope="module")
def gpu() -> Iterator[VirtualGPU]:
    with kopt.virtual_gpu("a100", counted=False) as active:
        torch.manual_seed(1)
        yield active


def relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest error over the largest expected magnitude."""
    return float(((value - expected).abs().max() / expected.abs().max()).item())


def check(gpu: VirtualGPU, kernel: Function, reference: Function, *inputs: torch.Tensor) -> None:
    """Outputs and gradients agree; no access was out of bounds."""
    results = []
    gradients: list[torch.Tensor] = []
    for function in (kernel, reference):
        leaves = [x.clone().detach().requires_grad_(True) for x in inputs]
        outputs = function(*leaves)
        assert isinstance(outputs, torch.Tensor | tuple)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if not gradients:
            gradients = [torch.randn_like(o) for o in outputs]
        # Some of these backward kernels write to the gradient they are given.
        torch.autograd.backward(outputs, [g.clone() for g in gradients])
        results.append([*outputs, *(x.grad for x in leaves)])
    for value, expected in zip(*results, strict=True):
        assert value is not None
        assert relative(value, expected) < 2e-6
    assert gpu.launches
    assert not gpu.findings


def test_rms_norm(gpu: VirtualGPU) -> None:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    check(
        gpu,
        lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False, None),
        reference,
        torch.randn(4, 64, 512, device="cuda"),
        torch.randn(512, device="cuda"),
    )


def test_layer_norm(gpu: VirtualGPU) -> None:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    check(
        gpu,
        lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-6),
        lambda x, w, b: functional.layer_norm(x, (512,), w, b, 1e-6),
        torch.randn(4, 64, 512, device="cuda"),
        torch.randn(512, device="cuda"),
        torch.randn(512, device="cuda"),
    )


def test_softmax(gpu: VirtualGPU) -> None:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    check(
        gpu,
        LigerSoftmaxFunction.apply,
        lambda x: torch.softmax(x, -1),
        torch.randn(32, 1000, device="cuda"),
    )


def test_swiglu(gpu: VirtualGPU) -> None:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    check(
        gpu,
        LigerSiLUMulFunction.apply,
        lambda a, b: functional.silu(a) * b,
        torch.randn(64, 512, device="cuda"),
        torch.randn(64, 512, device="cuda"),
    )


def test_cross_entropy(gpu: VirtualGPU) -> None:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    target = torch.randint(0, 1000, (64,), device="cuda")
    check(
        gpu,
        lambda x: LigerCrossEntropyFunction.apply(x, target, None)[0],
        lambda x: functional.cross_entropy(x, target),
        torch.randn(64, 1000, device="cuda"),
    )


def test_rope(gpu: VirtualGPU) -> None:
    from liger_kernel.ops.rope import LigerRopeFunction

    length, width = 16, 64
    steps = torch.arange(0, width, 2, device="cuda").float() / width
    angle = torch.outer(torch.arange(length, device="cuda").float(), 1 / 10000**steps)
    angle = torch.cat((angle, angle), -1)[None]
    cos, sin = angle.cos(), angle.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * cos.unsqueeze(1) + rotated * sin.unsqueeze(1)

    check(
        gpu,
        lambda q, k: LigerRopeFunction.apply(q, k, cos, sin),
        lambda q, k: (turned(q), turned(k)),
        torch.randn(2, 8, length, width, device="cuda"),
        torch.randn(2, 4, length, width, device="cuda"),
    )
