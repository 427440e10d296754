"""A scaled copy that already moves every byte once and coalesced: there is nothing to win."""

import torch
import triton
import triton.language as tl


@triton.jit
def scaled_copy_kernel(x_ptr, out_ptr, scale, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * scale, mask=mask)


def scaled_copy(x, scale=0.5):
    out = torch.empty_like(x)
    n_elements = x.numel()
    block = 1024
    grid = (triton.cdiv(n_elements, block),)
    scaled_copy_kernel[grid](x, out, scale, n_elements, BLOCK=block)
    return out


def reference(x, scale=0.5):
    return x * scale


def make_inputs(n_elements):
    return (torch.randn(n_elements, device="cuda"),)


WORKLOADS = {"large": {"n_elements": 1 << 23}}
