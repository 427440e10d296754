"""Gated SiLU with a bias, `silu(x + bias) * gate`, in three launches.

Each step is a fine kernel; the two intermediate tensors cross memory four times for nothing.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def add_bias_kernel(x_ptr, bias_ptr, out_ptr, n_elements, n_cols, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    bias = tl.load(bias_ptr + offsets % n_cols, mask=mask)
    tl.store(out_ptr + offsets, x + bias, mask=mask)


@triton.jit
def silu_kernel(x_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * tl.sigmoid(x), mask=mask)


@triton.jit
def multiply_kernel(a_ptr, b_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    a = tl.load(a_ptr + offsets, mask=mask)
    b = tl.load(b_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, a * b, mask=mask)


def gated_silu(x, bias, gate):
    n_elements = x.numel()
    block = 1024
    grid = (triton.cdiv(n_elements, block),)
    biased = torch.empty_like(x)
    add_bias_kernel[grid](x, bias, biased, n_elements, x.shape[1], BLOCK=block)
    activated = torch.empty_like(x)
    silu_kernel[grid](biased, activated, n_elements, BLOCK=block)
    out = torch.empty_like(x)
    multiply_kernel[grid](activated, gate, out, n_elements, BLOCK=block)
    return out


def reference(x, bias, gate):
    return torch.nn.functional.silu(x + bias) * gate


def make_inputs(n_rows, n_cols):
    x = torch.randn(n_rows, n_cols, device="cuda")
    bias = torch.randn(n_cols, device="cuda")
    gate = torch.randn(n_rows, n_cols, device="cuda")
    return x, bias, gate


WORKLOADS = {"mlp": {"n_rows": 4096, "n_cols": 4096}}
