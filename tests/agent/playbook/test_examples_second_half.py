"""Which rewrites the shipped examples call for: those meant for them, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kopt.agent.playbook.registry import REWRITES

CASES = {
    "rmsnorm_residual": ("rmsnorm_residual", {"n_rows": 64, "n_cols": 1024}, {"fuse_launches"}),
    "transpose": ("transpose", {"n_rows": 256, "n_cols": 512}, {"two_dimensional_tile"}),
    "elementwise_chain": ("gated_silu", {"n_rows": 64, "n_cols": 1024}, {"fuse_launches"}),
    "column_sum": ("column_sum", {"n_rows": 8192, "n_cols": 64}, {"two_stage_reduction"}),
    "causal_attention": (
        "causal_attention",
        {"batch": 1, "heads": 2, "n_ctx": 256, "head_dim": 32},
        {"skip_masked_tiles"},
    ),
    "scaled_copy": ("scaled_copy", {"n_elements": 1 << 16}, set()),
    "gather": ("gather", {"n_elements": 1 << 16}, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_each_example_calls_for_its_rewrite_alone(
    run: Callable, example: Callable, name: str
) -> None:
    entry, sizes, wanted = CASES[name]
    evidence = run(example(name), entry, **sizes).evidence
    found = {p.technique for rewrite in REWRITES for p in rewrite.propose(evidence)}
    assert found == wanted
