"""`run.json`: what a run was asked, on what, and how it stands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kopt.agent.state import Attempt
from kopt.tools.models import Budget, Model, RunStatus, SandboxInfo, Spent

SCHEMA_VERSION = 1
"""Of the run folder. A folder with another number is refused, not guessed at."""


class TargetInfo(Model):
    """Which target, in short."""

    file: str
    entry: str
    language: str


class GpuInfo(Model):
    """Which device the numbers are about."""

    name: str
    arch: str
    kind: Literal["virtual", "silicon"]


class RunRecord(Model):
    """`run.json`."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    kopt_version: str
    created: str
    """UTC, ISO 8601."""
    target: TargetInfo
    target_sha256: str
    gpu: GpuInfo
    sandbox: SandboxInfo
    sandbox_asked: str = "auto"
    proposer: str
    budget: Budget
    spent: Spent = Spent()
    seed_commitment: str
    """Hash of the secret behind the hidden seeds; the secret itself is elsewhere."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Versions and machine facts that the numbers depend on."""
    status: RunStatus = RunStatus.RUNNING
    reason: str = ""
    """Why it ended as it did, in one sentence."""
    attempts: tuple[Attempt, ...] = ()
    best: str | None = None
