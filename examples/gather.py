"""Gather of single elements through an index that is known only at run time.

Each element costs a whole sector, and no rearrangement of the program changes which ones.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(table_ptr, index_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    index = tl.load(index_ptr + offsets, mask=mask, other=0)
    value = tl.load(table_ptr + index, mask=mask)
    tl.store(out_ptr + offsets, value, mask=mask)


def gather(table, index):
    out = torch.empty(index.shape, device=table.device, dtype=table.dtype)
    n_elements = index.numel()
    block = 1024
    grid = (triton.cdiv(n_elements, block),)
    gather_kernel[grid](table, index, out, n_elements, BLOCK=block)
    return out


def reference(table, index):
    return table[index]


def make_inputs(n_elements):
    table = torch.randn(n_elements, device="cuda")
    index = torch.randperm(n_elements, device="cuda")
    return table, index


WORKLOADS = {"permutation": {"n_elements": 1 << 24}}
