"""Sum over the rows of a matrix, as for the gradient of a bias, with atomic additions.

Every row adds to the same few addresses, and the L2 cache serves those additions one by one.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def column_sum_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0)
    tl.atomic_add(out_ptr + cols, x, mask=mask)


def column_sum(x):
    n_rows, n_cols = x.shape
    out = torch.zeros(n_cols, device=x.device, dtype=torch.float32)
    block = 512
    grid = (n_rows, triton.cdiv(n_cols, block))
    column_sum_kernel[grid](x, out, n_cols, BLOCK=block)
    return out


def reference(x):
    return x.sum(dim=0)


def make_inputs(n_rows, n_cols):
    return (torch.randn(n_rows, n_cols, device="cuda"),)


WORKLOADS = {"bias_gradient": {"n_rows": 16384, "n_cols": 1024}}
