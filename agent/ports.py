"""What the agent asks of the judge. `kopt.tools.session.Session` is one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kopt.tools.models import Candidate, Evaluation, SandboxInfo


class Evaluator(Protocol):
    """Judges candidates for one target on one GPU.

    Answers depend on the target, the GPU, the seeds and the candidate alone: asked twice, it says
    the same. Both methods leave traces and facts of every workload in `folder`.
    """

    def sandbox_info(self) -> SandboxInfo:
        """Which backend runs untrusted code."""

    def baseline(self, folder: Path) -> Evaluation:
        """Run, check and profile the target itself; loads what an earlier call left in `folder`.

        Raises `TargetError` when the target fails, `EnvironmentLacks` for a missing tool.
        """

    def evaluate(self, candidate: Candidate, folder: Path, *, full: bool) -> Evaluation:
        """Judge a candidate, whatever it does. Raises `EnvironmentLacks` for dead tools only."""

    def close(self) -> None:
        """Stop every process."""
