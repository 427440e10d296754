"""From what was seen of a job's end to its outcome: pure, and as sceptical as it gets."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kopt.gpu.trace import Json
from kopt.sandbox import folder as folders
from kopt.sandbox import host
from kopt.sandbox.protocol import Limits, Outcome, OutcomeStatus
from kopt.sandbox.request import Report


def judge(report: Report, limits: Limits, folder: Path | None, nonce: str) -> Outcome:
    """The outcome, still without output. `folder` has been cleaned; None: it is gone.

    `report.how` is none of `setup` and `killed`: those are not the job's doing.
    """
    status, detail = _stopped(report, limits)
    if status is None:
        status, detail = _ended(report)
    document: dict[str, Json] | None = None
    if status is None:
        document = folders.read_answer(folder / host.ANSWER) if folder else None
        if folder is None:
            status, detail = OutcomeStatus.CRASH, "the job replaced its own folder"
        elif document is None or document.get("nonce") != nonce:
            status, detail = OutcomeStatus.CRASH, f"the job ended without an answer{_code(report)}"
    answer = document.get("answer") if document else None
    error = document.get("error") if document else None
    if status is None and isinstance(error, dict):
        return Outcome(
            OutcomeStatus.ERROR,
            f"{_text(error, 'type')}: {_text(error, 'message')}".split("\n", 1)[0][:500],
            error_type=_text(error, "type"),
            error=_text(error, "message"),
            traceback=_text(error, "traceback"),
            wall_s=report.wall_s,
        )
    if status is None and isinstance(answer, dict):
        return Outcome(OutcomeStatus.OK, "it returned", answer=answer, wall_s=report.wall_s)
    return Outcome(
        status or OutcomeStatus.CRASH,
        detail or "the job left an answer of the wrong form",
        wall_s=report.wall_s,
    )


def _stopped(report: Report, limits: Limits) -> tuple[OutcomeStatus | None, str]:
    """The supervisor stopped it."""
    gib = 1 << 30
    match report.how:
        case "timeout":
            return OutcomeStatus.TIMEOUT, f"still running after {limits.wall_s:g} s, killed"
        case "memory":
            return (
                OutcomeStatus.MEMORY,
                f"used more than {limits.memory_bytes / gib:.3g} GiB of host memory, killed",
            )
        case "processes":
            return (
                OutcomeStatus.CRASH,
                f"started too many processes ({report.detail}, {limits.processes} allowed), killed",
            )
        case "disk":
            return (
                OutcomeStatus.CRASH,
                f"wrote more than {limits.folder_bytes / gib:.3g} GiB to disk, killed",
            )
    return None, ""


def _ended(report: Report) -> tuple[OutcomeStatus | None, str]:
    """It ended by itself, in a way that needs no look at its answer."""
    if report.status is None:
        if report.oom_killed:
            return OutcomeStatus.MEMORY, "killed by the kernel for lack of host memory"
        return OutcomeStatus.CRASH, "the process that supervises the job was killed"
    if os.WIFSIGNALED(report.status):
        number = os.WTERMSIG(report.status)
        if number == signal.SIGKILL and report.oom_killed:
            return OutcomeStatus.MEMORY, "killed by the kernel for lack of host memory"
        if number == signal.SIGXCPU:
            return OutcomeStatus.TIMEOUT, "used up its processor time, killed"
        return OutcomeStatus.CRASH, f"killed by {_signal_name(number)}"
    match os.WEXITSTATUS(report.status):
        case host.EXIT_OUT_OF_MEMORY:
            return OutcomeStatus.MEMORY, "ran out of the host memory it may use"
        case host.EXIT_CALLED:
            return OutcomeStatus.CRASH, "user code ended the process (SystemExit)"
        case 0:
            return None, ""
        case code:
            return OutcomeStatus.CRASH, f"exited with code {code} without an answer"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _code(report: Report) -> str:
    return f" (exit code {os.WEXITSTATUS(report.status)})" if report.status is not None else ""


def _text(fields: dict[str, Json], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
