"""The kernels that the executor and Triton's interpreter both run.

`python -m benchmarks.kernels NAME ARM` times one of them in this process and prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import kopt


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def softmax_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row + at, power / tl.sum(power, axis=0), mask=at < n)


@triton.jit
def layer_norm_kernel(x, w, b, y, n, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0)
    mean = tl.sum(value, axis=0) / n
    centred = tl.where(at < n, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    weight, bias = tl.load(w + at, mask=at < n), tl.load(b + at, mask=at < n)
    tl.store(y + row + at, centred * scale * weight + bias, mask=at < n)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + k[None, :])
        right = tl.load(b + k[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


Call = Callable[[], Any]
Check = Callable[[], Any]


def _add(device: str) -> tuple[Call, Call]:
    n = 16_000_000
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    z = torch.empty_like(x)
    return lambda: (add_kernel[(triton.cdiv(n, 1024),)](x, y, z, n, BLOCK=1024), z)[
        1
    ], lambda: x + y


def _softmax(device: str) -> tuple[Call, Call]:
    x = torch.randn(4096, 4096, device=device)
    y = torch.empty_like(x)
    return lambda: (softmax_kernel[(4096,)](x, y, 4096, BLOCK=4096), y)[1], lambda: torch.softmax(
        x, 1
    )


def _layer_norm(device: str) -> tuple[Call, Call]:
    x = torch.randn(4096, 4096, device=device)
    w, b = torch.randn(4096, device=device), torch.randn(4096, device=device)
    y = torch.empty_like(x)
    return (
        lambda: (layer_norm_kernel[(4096,)](x, w, b, y, 4096, 1e-5, BLOCK=4096), y)[1],
        lambda: torch.nn.functional.layer_norm(x, (4096,), w, b, 1e-5),
    )


def _matmul(device: str) -> tuple[Call, Call]:
    n = 1024
    a = torch.randn(n, n, device=device).half()
    b = torch.randn(n, n, device=device).half()
    c = torch.empty(n, n, device=device, dtype=torch.float16)
    grid = (n // 64, n // 64)
    return (
        lambda: (matmul_kernel[grid](a, b, c, n, n, n, BM=64, BN=64, BK=32), c)[1],
        lambda: (a.float() @ b.float()).half(),
    )


KERNELS: dict[str, Callable[[str], tuple[Call, Call]]] = {
    "add of 16M floats": _add,
    "softmax 4096x4096": _softmax,
    "layer norm 4096x4096": _layer_norm,
    "fp16 matmul 1024x1024x1024": _matmul,
}


def main(name: str, arm: str) -> None:
    """Time one kernel: the first call compiles, the best of three later ones counts."""
    active: contextlib.AbstractContextManager[object] = (
        kopt.virtual_gpu("a100", counted=False) if arm == "kopt" else contextlib.nullcontext()
    )
    with active:
        call, expected = KERNELS[name]("cuda" if arm == "kopt" else "cpu")
        began = time.perf_counter()
        call()
        first = time.perf_counter() - began
        times = []
        for _ in range(3 if arm == "kopt" else 1):
            began = time.perf_counter()
            result = call()
            times.append(time.perf_counter() - began)
        error = float((result.float() - expected().float()).abs().max().item())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"first_s": first, "best_s": min(times), "error": error, "peak_bytes": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
