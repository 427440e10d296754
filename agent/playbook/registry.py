"""The playbook: every rewrite, in the order in which they are tried."""

from __future__ import annotations

from kopt.agent.playbook.base import CallEvidence, Proposal, Rewrite
from kopt.agent.playbook.fuse_launches import FuseLaunches
from kopt.agent.playbook.grouped_order import GroupedOrder
from kopt.agent.playbook.launch_parameters import LaunchParameters
from kopt.agent.playbook.masked_tiles import MaskedTiles
from kopt.agent.playbook.matmul_loops import NativeDot, SoftwarePipelining
from kopt.agent.playbook.one_pass_variance import OnePassVariance
from kopt.agent.playbook.online_softmax import OnlineSoftmax
from kopt.agent.playbook.row_in_one_block import RowInOneBlock
from kopt.agent.playbook.split_reduction import SplitReduction
from kopt.agent.playbook.two_dimensional_tile import TwoDimensionalTile
from kopt.agent.playbook.two_stage_reduction import TwoStageReduction

REWRITES: tuple[Rewrite, ...] = (
    RowInOneBlock(),
    OnlineSoftmax(),
    OnePassVariance(),
    NativeDot(),
    SoftwarePipelining(),
    GroupedOrder(),
    MaskedTiles(),
    TwoStageReduction(),
    SplitReduction(),
    TwoDimensionalTile(),
    FuseLaunches(),
)
TUNING: tuple[Rewrite, ...] = (LaunchParameters(),)


def propose_all(call: CallEvidence, rewrites: tuple[Rewrite, ...] = REWRITES) -> list[Proposal]:
    """What every rewrite proposes, without repeats and without what changes nothing."""
    found: dict[str, Proposal] = {}
    for rewrite in rewrites:
        for proposal in rewrite.propose(call):
            if proposal.source != call.source:
                found.setdefault(proposal.source, proposal)
    return list(found.values())
