"""The judge's way into the sandbox: folders, requests and limits of jobs about one target."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from kopt.gpu.errors import EnvironmentLacks, TargetError
from kopt.sandbox.protocol import Job, Limits, Outcome, OutcomeStatus, Sandbox
from kopt.tools.disk import disk_full, full_for, is_full
from kopt.tools.models import Target
from kopt.tools.verify import innermost_line

TARGET_LIMITS = Limits(wall_s=120.0)
"""For the user's own file: making inputs, the original, the reference."""


@dataclass
class Jobs:
    """Runs jobs about one target, each in a folder of its own below `work`."""

    target: Target
    gpu: str
    sandbox: Sandbox
    work: Path
    _number: int = 0

    def new_folder(self) -> Path:
        """An empty folder for one job."""
        self._number += 1
        folder = self.work / f"job-{self._number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def run(
        self,
        function: str,
        request: dict[str, JsonValue],
        limits: Limits = TARGET_LIMITS,
        folder: Path | None = None,
    ) -> tuple[Path, Outcome]:
        """Run a function of the worker's table; what the request leaves out is the target's.

        Raises `EnvironmentLacks` when it failed because the disk is full.
        """
        place = folder or self.new_folder()
        home = Path(self.target.file).parent
        whole: dict[str, JsonValue] = {
            "file": self.target.file,
            "sidecar": self.target.sidecar,
            "gpu": self.gpu,
            "search_path": [str(home)],
            **request,
        }
        (place / "job.json").write_text(json.dumps(whole), encoding="utf-8")
        inputs = self.work / "inputs"
        job = Job(
            folder=place,
            function=function,
            limits=limits,
            env={"TRITON_DEFAULT_FP_FUSION": "1"},
            readable=(home, *((inputs,) if inputs.exists() else ())),
        )
        outcome = self.sandbox.run(job)
        if outcome.status is not OutcomeStatus.OK:
            lacks = full_for(place, f"{outcome.error} {outcome.detail}")
            if lacks is not None:
                raise lacks
        return place, outcome

    def error(self, outcome: Outcome, what: str) -> TargetError | EnvironmentLacks:
        """Why the target itself failed, in one sentence with its own line."""
        name = Path(self.target.file).name
        where = f" in {outcome.stage}" if outcome.stage else ""
        if outcome.status is OutcomeStatus.MEMORY or outcome.error_type == "OutOfMemoryError":
            return EnvironmentLacks(
                f"{name}: {what} does not fit in memory ({outcome.error or outcome.detail})",
                "use smaller parameters in WORKLOADS",
            )
        if is_full(self.work, outcome.error):
            return disk_full(self.work)
        if outcome.status is OutcomeStatus.ERROR:
            line = innermost_line(outcome.traceback)
            message = f"{name} fails{where}: {outcome.error_type}: {outcome.error}"
            return TargetError(
                message + (f" [{line}]" if line else ""),
                "mend the file first; kopt never edits it",
            )
        return TargetError(
            f"{name} fails{where}: {outcome.detail}", "mend the file first; kopt never edits it"
        )
