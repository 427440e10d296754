"""Judging candidates for one target: the sandboxed host, the device process, and the verdict."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from kopt.gpu import facts_io, tensor_io
from kopt.gpu.errors import EnvironmentLacks, TargetError, UsageError
from kopt.gpu.facts import CallFacts
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.tensor_io import Tensors
from kopt.sandbox.protocol import Limits, OutcomeStatus, Sandbox
from kopt.tools import benchmark, profiler, verify
from kopt.tools.audit import Audit, audit_source, audit_work
from kopt.tools.cases import Case, Shape, cases, seed_of, shapes
from kopt.tools.comparison import row_count
from kopt.tools.device_client import DeviceClient, Replay
from kopt.tools.diagnose import diagnose
from kopt.tools.laws import AS_GIVEN, refill
from kopt.tools.models import (
    Candidate,
    CaseResult,
    Evaluation,
    Profile,
    SandboxInfo,
    Target,
    Verdict,
    VerdictStatus,
)
from kopt.tools.oracle import Learned, Oracle
from kopt.tools.replayer import Replayer
from kopt.tools.sandbox_jobs import Jobs
from kopt.tools.verify import Answer, Truth

BASELINE = "baseline"
SLOWDOWN = 10.0
"""A candidate may take so many times as long as the target took on the same cases."""
SHORTEST_WALL_S, LONGEST_WALL_S = 10.0, 120.0
_REPLAY_WALL_S = 60.0
"""For the device process on one case of a candidate."""
_LAW_BYTES = 1 << 26
"""Inputs up to this size are refilled from every law where no smaller shape can be had."""
_QUICK_ELEMENTS = 1 << 21
"""The quick check compares this many elements of an output, in rows drawn from the seed."""


@dataclass(frozen=True)
class _Known:
    """One case: its inputs, the original's answer, and the truth."""

    inputs: Path
    law: str
    original: Answer
    truth: Truth


@dataclass
class Session:
    """A judge for one target on one virtual GPU. Close it to stop its processes."""

    target: Target
    spec: DeviceSpec
    sandbox: Sandbox
    work: Path
    """An existing folder below the sandbox's root; everything in it is the session's."""
    secret: bytes
    """All seeds come from it; no sandboxed process ever sees it."""
    _device: DeviceClient = field(default_factory=DeviceClient)
    _known: dict[str, _Known] = field(default_factory=dict)
    _skipped: dict[str, str] = field(default_factory=dict)
    _shape_inputs: dict[str, Path] = field(default_factory=dict)
    _original_s: float = 0.0
    """How long the target's own runs took, all cases together."""

    def __post_init__(self) -> None:
        self._jobs = Jobs(self.target, self.spec.name, self.sandbox, self.work)
        self._replayer = Replayer(self._device, self.spec.name, self.work / "replayed")
        self._oracle = Oracle(self.target, self._jobs, self._replayer)

    # What callers ask for ------------------------------------------------------------------

    def sandbox_info(self) -> SandboxInfo:
        """Which backend runs untrusted code."""
        return SandboxInfo(
            backend=self.sandbox.name,
            isolation=self.sandbox.isolation(),
            lacks=self.sandbox.lacks(),
        )

    def start(self) -> None:
        """Start the sandbox's worker and the device process side by side; both import for seconds.

        Raises `EnvironmentLacks` when the worker does not come up.
        """
        self._device.start()
        self.sandbox.start()

    def inspect(self) -> dict[str, int]:
        """Make the inputs of every workload and shape; bytes of inputs by name.

        Raises `TargetError` when `make_inputs` fails and `EnvironmentLacks` when the inputs do not
        fit in memory.
        """
        if not self._shape_inputs:
            real = [Shape(w.name, w.params, w.name, False) for w in self.target.workloads]
            self._make_inputs(real, optional=False)
            self._make_inputs(shapes(self.target), optional=True)
        return {
            name: tensor_io.load(path, memory_map=True).nbytes
            for name, path in self._shape_inputs.items()
        }

    def baseline(self, folder: Path) -> Evaluation:
        """Run, check and profile the target itself; its traces and facts are in `folder` then.

        Raises `TargetError` when it fails on its own inputs or against its own reference, and
        `EnvironmentLacks` when its inputs do not fit in memory.
        """
        self._learn(cases(self.target, self.secret, full=False))
        notes = self._notes()
        bad = [
            f for w in self.target.workloads for f in self._known[w.name].original.facts.findings
        ]
        notes += tuple(f"the target's own fault: {f.sentence()}" for f in bad[:3])
        verdict = Verdict(
            status=VerdictStatus.PASS,
            summary="the target agrees with its reference"
            if self.target.reference
            else "the target runs; without a reference its own result is the measure",
            skipped=self._skips(),
            evidence=notes,
        )
        facts = {w.name: self._known[w.name].original.facts for w in self.target.workloads}
        for name, found in facts.items():
            _keep(self.work / "original" / name / "trace", folder / name, found)
        return self._evaluation(BASELINE, True, verdict, facts)

    def evaluate(self, candidate: Candidate, folder: Path, *, full: bool) -> Evaluation:
        """Judge a candidate, whatever it does; traces and facts of the workloads that it got right
        are in `folder` then. Raises `EnvironmentLacks` for dead tools only."""
        return self.judged(candidate, folder, full=full)[0]

    def judged(
        self, candidate: Candidate, folder: Path | None = None, *, full: bool
    ) -> tuple[Evaluation, dict[str, CallFacts]]:
        """`evaluate`, with the facts of the workloads that were reached whatever the verdict."""
        wanted = cases(self.target, self.secret, full=full)
        self._learn(wanted)
        names = [c.name for c in wanted if c.name in self._known]
        names += [w.name for w in self.target.workloads]
        job = self._jobs.new_folder()
        file = job / Path(self.target.file).name
        file.write_text(candidate.source, encoding="utf-8")
        rows: list[JsonValue] = [
            {"name": str(i), "inputs": str(self._known[n].inputs)} for i, n in enumerate(names)
        ]
        request: dict[str, JsonValue] = {
            "file": str(file),
            "entry": self.target.entry,
            "cases": rows,
        }
        wall_s = min(LONGEST_WALL_S, max(SHORTEST_WALL_S, SLOWDOWN * self._original_s))
        _, outcome = self._jobs.run("record", request, Limits(wall_s=wall_s), job)
        if outcome.status is not OutcomeStatus.OK:
            shutil.rmtree(job, ignore_errors=True)
            return self._evaluation(candidate.id, full, verify.of_outcome(outcome), {}), {}
        results, real, audit = self._judge(names, job, full)
        verdict = self._verdict(results, audit, candidate.source, full)
        for position, name in enumerate(names):
            if folder is not None and name in real:
                _keep(job / str(position) / "trace", folder / name, real[name])
        shutil.rmtree(job, ignore_errors=True)
        passed = verdict.status is VerdictStatus.PASS
        return self._evaluation(candidate.id, full, verdict, real if passed else {}), real

    def verify(self, source: str) -> Verdict:
        """The full verdict on another version of the file: every law, shape and workload."""
        candidate = Candidate(id="candidate", source=source, technique="", rationale="")
        return self.judged(candidate, full=True)[0].verdict

    def profile(self) -> tuple[Profile, ...]:
        """Profiles of the target's workloads. `baseline` comes first."""
        return tuple(
            profiler.profile(self.spec, w.name, self._known[w.name].original.facts)
            for w in self.target.workloads
        )

    def close(self) -> None:
        """Stop every process."""
        self._device.close()
        self.sandbox.close()

    # Inputs ----------------------------------------------------------------------------------

    def _make_inputs(self, wanted: list[Shape], *, optional: bool) -> None:
        rows: list[JsonValue] = [{"name": s.name, "params": s.params} for s in wanted]
        request: dict[str, JsonValue] = {
            "seed": seed_of(self.secret, "make_inputs"),
            "optional": optional,
            "workloads": rows,
        }
        folder, outcome = self._jobs.run("inspect", request)
        if outcome.status is not OutcomeStatus.OK:
            if not optional:
                raise self._jobs.error(outcome, "make_inputs()")
            for shape in wanted:
                self._refused(shape, f"make_inputs: {outcome.detail}")
            return
        answered = outcome.answer["workloads"]
        assert isinstance(answered, list)
        for position, (shape, row) in enumerate(zip(wanted, answered, strict=True)):
            if isinstance(row, dict) and "refused" in row:
                self._refused(shape, f"make_inputs refuses it: {row['refused']}")
                continue
            place = self.work / "inputs" / shape.name
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            shutil.move(folder / "inputs" / str(position), place)
            self._shape_inputs[shape.name] = place
        shutil.rmtree(folder, ignore_errors=True)

    def _refused(self, shape: Shape, why: str) -> None:
        """A small shape that cannot be had is replaced by the workload itself, if not too large."""
        self._skipped[shape.name] = why
        real = self._shape_inputs[shape.workload]
        if not shape.held_out and tensor_io.load(real, memory_map=True).nbytes <= _LAW_BYTES:
            self._shape_inputs[shape.name] = real

    def _inputs(self, case: Case) -> Path | None:
        """The folder with a case's inputs; None if its shape was refused."""
        base = self._shape_inputs.get(case.shape)
        if base is None or case.law == AS_GIVEN:
            return base
        place = self.work / "inputs" / case.name
        if not place.exists():
            tensor_io.save(refill(tensor_io.load(base), case.law, case.seed), place)
        return place

    # The original ----------------------------------------------------------------------------

    def _learn(self, wanted: list[Case]) -> None:
        """Run the original and its reference on the workloads and cases not known yet."""
        self._device.start()
        self.inspect()
        real = not any(self._is_real(name) for name in self._known)
        places: dict[str, tuple[Path, str, bool]] = {}  # inputs, law, must hold
        for case in wanted:
            if case.name in self._known or case.name in self._skipped:
                continue
            place = self._inputs(case)
            if place is not None:
                places[case.name] = place, case.law, case.must_hold
        if real:
            for workload in self.target.workloads:
                places[workload.name] = self._shape_inputs[workload.name], AS_GIVEN, True
        if not places:
            return
        rows: list[JsonValue] = [
            {"name": n, "inputs": str(p), "optional": not self._is_real(n)}
            for n, (p, _, _) in places.items()
        ]
        request: dict[str, JsonValue] = {"entry": self.target.entry, "cases": rows}
        folder, outcome = self._jobs.run("record", request)
        if outcome.status is not OutcomeStatus.OK:
            raise self._jobs.error(outcome, f"{self.target.entry}()")
        self._original_s += outcome.wall_s
        learned: dict[str, Learned] = {}
        answered = outcome.answer["cases"]
        assert isinstance(answered, list)
        for (name, (inputs, law, must_hold)), row in zip(places.items(), answered, strict=True):
            if isinstance(row, dict) and "refused" in row:
                self._skipped[name] = f"the original refuses it: {row['refused']}"
                continue
            trace = folder / name / "trace"
            answer = self._replayer.answer(trace, inputs, counted=self._is_real(name))
            if isinstance(answer, Answer):
                learned[name] = Learned(inputs, trace, answer, law, must_hold)
            elif not must_hold:
                self._skipped[name] = f"the original does not run: {answer.message}"
            else:
                raise self._original_fails(name, answer)
        for name, truth in self._oracle.truths(learned).items():
            if isinstance(truth, str):
                self._skipped[name] = truth
            else:
                run = learned[name]
                self._known[name] = _Known(run.inputs, run.law, run.answer, truth)
        if real:
            shutil.rmtree(self.work / "original", ignore_errors=True)
            shutil.move(folder, self.work / "original")
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_real(self, name: str) -> bool:
        return any(name == w.name for w in self.target.workloads)

    def _original_fails(self, name: str, replay: Replay) -> TargetError | EnvironmentLacks:
        what = f"{self.target.entry}() on {name}: {replay.message}"
        if replay.error_type in ("DeviceDied", "MemoryError"):
            return EnvironmentLacks(what, "use smaller parameters in WORKLOADS")
        return TargetError(what, "the virtual GPU cannot judge this target")

    # Candidates --------------------------------------------------------------------------------

    def _judge(
        self, names: list[str], job: Path, full: bool
    ) -> tuple[list[CaseResult], dict[str, CallFacts], Audit]:
        """Case after case until one fails; facts of the real workloads that were reached."""
        results: list[CaseResult] = []
        real: dict[str, CallFacts] = {}
        audit = Audit()
        for position, name in enumerate(names):
            known = self._known[name]
            place = job / str(position)
            answer = self._replayer.answer(
                place / "trace", known.inputs, counted=self._is_real(name), timeout_s=_REPLAY_WALL_S
            )
            if isinstance(answer, Replay):
                status = verify.of_refusal(answer.error_type)
                results.append(CaseResult(case=name, status=status, detail=answer.message))
                break
            audit = audit_work(known.original.trace, answer.trace)
            if audit.cheats:
                cheat = VerdictStatus.CHEAT
                results.append(CaseResult(case=name, status=cheat, detail=audit.cheats[0]))
                break
            try:
                claimed = tensor_io.load(place / "outputs")
            except (OSError, ValueError, KeyError, TypeError, UsageError) as error:
                detail = f"the job left no readable result: {error}"
                results.append(CaseResult(case=name, status=VerdictStatus.CRASH, detail=detail))
                break
            rows = None if full else self._sampled(known.original.outputs, name)
            result = verify.judge_case(
                name, known.law, known.original, answer, claimed, known.truth, rows
            )
            results.append(result)
            if result.status is not VerdictStatus.PASS:
                break
            if self._is_real(name):
                real[name] = answer.facts
        return results, real, audit

    def _sampled(self, outputs: Tensors, name: str) -> dict[int, NDArray[np.int64]]:
        """Rows of large outputs for the quick check: the first, the last, and drawn ones."""
        chosen: dict[int, NDArray[np.int64]] = {}
        for position, tensor in enumerate(outputs.tensors):
            size = int(np.prod(tensor.shape, dtype=np.int64))
            rows = row_count(tensor.shape) if size else 0
            count = max(8, rows * _QUICK_ELEMENTS // max(size, 1))
            if size > 2 * _QUICK_ELEMENTS and count < rows:
                rng = np.random.default_rng(seed_of(self.secret, "rows", name, str(position)))
                drawn = rng.choice(rows, count, replace=False)
                chosen[position] = np.unique(np.concatenate([[0, rows - 1], drawn]))
        return chosen

    def _verdict(self, results: list[CaseResult], audit: Audit, source: str, full: bool) -> Verdict:
        notes = (*audit.notes, *audit_source(source).notes, *self._notes())
        bad = next((r for r in results if r.status is not VerdictStatus.PASS), None)
        if bad is not None:
            summary = f"{bad.case}: {bad.detail}"
        else:
            worst = max((r.error_rms or 0.0 for r in results), default=0.0)
            kind = "cases" if full else "quick cases"
            summary = f"{len(results)} {kind} agree; worst relative RMS error {worst:.1e}"
        return Verdict(
            status=VerdictStatus.PASS if bad is None else bad.status,
            summary=summary,
            cases=tuple(results),
            skipped=self._skips(),
            evidence=notes,
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [note for known in self._known.values() for note in known.truth.notes]
        return tuple(dict.fromkeys(notes))

    def _skips(self) -> tuple[str, ...]:
        return tuple(
            f"{name}: {' '.join(why.split())[:200]}" for name, why in sorted(self._skipped.items())
        )

    def _evaluation(
        self, candidate: str, full: bool, verdict: Verdict, facts: dict[str, CallFacts]
    ) -> Evaluation:
        base = {n: self._known[n].original.facts for n in facts}
        compared = candidate != BASELINE
        return Evaluation(
            candidate=candidate,
            full=full,
            verdict=verdict,
            measurements=tuple(benchmark.measurement(self.spec, n, f) for n, f in facts.items()),
            comparisons=tuple(
                benchmark.comparison(self.spec, n, base[n], f) for n, f in facts.items() if compared
            ),
            diagnoses=tuple(diagnose(self.spec, n, f) for n, f in facts.items()),
            profiles=tuple(profiler.profile(self.spec, n, f) for n, f in facts.items()),
        )


def _keep(trace: Path, folder: Path, facts: CallFacts) -> None:
    """Leave a workload's trace (without bulk data) and facts for proposers."""
    target = folder / "trace"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in trace.glob("*.json"):
        shutil.copyfile(path, target / path.name)
    (folder / "facts.json").write_text(json.dumps(facts_io.to_json(facts)), encoding="utf-8")
