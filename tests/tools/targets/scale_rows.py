"""Each row scaled and shifted; a small target that is right."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_rows_kernel(x_ptr, w_ptr, out_ptr, n_cols, shift, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask)
    w = tl.load(w_ptr + row)
    tl.store(out_ptr + row * n_cols + cols, x * w + shift, mask=mask)


def scale_rows(x, w):
    n_rows, n_cols = x.shape
    out = torch.empty_like(x)
    scale_rows_kernel[(n_rows,)](x, w, out, n_cols, 0.5, BLOCK=triton.next_power_of_2(n_cols))
    return out


def reference(x, w):
    return x * w[:, None] + 0.5


def make_inputs(n_rows, n_cols):
    return torch.randn(n_rows, n_cols, device="cuda"), torch.randn(n_rows, device="cuda")


WORKLOADS = {"wide": {"n_rows": 128, "n_cols": 1000}}
