"""Causal attention forward that computes the whole score matrix and masks the upper half away."""

import torch
import triton
import triton.language as tl


@triton.jit
def causal_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    scale,
    n_ctx,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    pid_m = tl.program_id(0)
    head = tl.program_id(1)
    base = head * n_ctx * HEAD_DIM
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    rows = base + offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    q = tl.load(q_ptr + rows, mask=offs_m[:, None] < n_ctx, other=0.0)

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start_n in range(0, n_ctx, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        columns = base + offs_n[:, None] * HEAD_DIM + offs_d[None, :]
        k = tl.load(k_ptr + columns, mask=offs_n[:, None] < n_ctx, other=0.0)
        v = tl.load(v_ptr + columns, mask=offs_n[:, None] < n_ctx, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(offs_m[:, None] >= offs_n[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])
        row_max = new_max

    out = acc / row_sum[:, None]
    tl.store(out_ptr + rows, out.to(q.dtype), mask=offs_m[:, None] < n_ctx)


def causal_attention(q, k, v):
    batch, heads, n_ctx, head_dim = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(n_ctx, 64), batch * heads)
    causal_attention_kernel[grid](
        q, k, v, out, head_dim**-0.5, n_ctx, HEAD_DIM=head_dim, BLOCK_M=64, BLOCK_N=64
    )
    return out


def reference(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def make_inputs(batch, heads, n_ctx, head_dim):
    shape = (batch, heads, n_ctx, head_dim)
    q = torch.randn(shape, device="cuda", dtype=torch.float16)
    k = torch.randn(shape, device="cuda", dtype=torch.float16)
    v = torch.randn(shape, device="cuda", dtype=torch.float16)
    return q, k, v


WORKLOADS = {"decoder": {"batch": 4, "heads": 16, "n_ctx": 512, "head_dim": 64}}
