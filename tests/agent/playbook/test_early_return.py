"""Kernels with an early return: their code behind it is conditional, and nothing crashes on it."""

from __future__ import annotations

from collections.abc import Callable

from kopt.agent.playbook.registry import REWRITES, propose_all
from kopt.agent.playbook.ttir import parse

GUARDED = """
import torch
import triton
import triton.language as tl


@triton.jit
def guarded_kernel(x_ptr, skip_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if tl.load(skip_ptr + row) == 1:
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            tl.store(out_ptr + row * n_cols + cols, 0.0, mask=cols < n_cols)
        return
    high = float("-inf")
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=float("-inf"))
        high = tl.maximum(high, tl.max(x, axis=0))
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        tl.store(out_ptr + row * n_cols + cols, x - high, mask=cols < n_cols)


def guarded(x, skip):
    out = torch.empty_like(x)
    guarded_kernel[(x.shape[0],)](x, skip, out, x.shape[1], BLOCK=128)
    return out


def make_inputs(n_rows, n_cols):
    skip = torch.arange(n_rows, device="cuda") % 2
    return torch.randn(n_rows, n_cols, device="cuda"), skip
"""


def test_code_behind_an_early_return_is_seen_but_not_as_unconditional(run: Callable) -> None:
    evidence = run(GUARDED, "guarded", n_rows=6, n_cols=300).evidence
    module = parse(evidence.launches[0].kernel.ttir)
    stores = [op for op in module.walk() if op.name == "tt.store"]
    assert len(stores) == 2
    assert all(op.block is not module.body for op in stores)
    assert len(module.loops()) == 3


def test_every_rewrite_takes_it(run: Callable) -> None:
    evidence = run(GUARDED, "guarded", n_rows=6, n_cols=300).evidence
    for proposal in propose_all(evidence, REWRITES):
        compile(proposal.source, "proposal.py", "exec")
