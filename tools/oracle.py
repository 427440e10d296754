"""What a case should give: the reference in fp64, and in the task's own precision.

A PyTorch reference runs on the CPU twice, with fp64 and with the given inputs. Where the reference
is a Triton kernel, or there is none, the recorded work of the reference (or of the original) is
replayed in `wide` arithmetic for the truth and in `ieee` arithmetic for the precision.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from kopt.gpu import tensor_io
from kopt.gpu.errors import TargetError
from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import Json
from kopt.sandbox.protocol import Limits, OutcomeStatus
from kopt.tools.device_client import Replay
from kopt.tools.floats import is_float
from kopt.tools.laws import AS_GIVEN
from kopt.tools.models import Target
from kopt.tools.noise import DRAWS, has_few_elements, perturbed, relative_change
from kopt.tools.replayer import Replayer
from kopt.tools.sandbox_jobs import TARGET_LIMITS, Jobs
from kopt.tools.target import launches_kernels
from kopt.tools.trace_checks import precision_floor
from kopt.tools.verify import (
    Answer,
    Truth,
    is_finite,
    judge_outputs,
    structure,
    unchecked_floor,
)

LARGE_BYTES = 1 << 28
"""Inputs larger than this get no fp64 reference: it would take minutes and the machine's memory."""
ORIGINAL_SLACK = {"float32": 32.0, "float64": 32.0}
"""How far beyond the candidates' tolerance the original itself may be, by type of output; 4 for
the others. A long sum taken in sequence, by atomics for one, loses tens of roundings where
PyTorch's tree of sums loses one, and the hardware's functions are approximations. The original's
own error is the scale for candidates then."""
_REFERENCE_LARGE_S = 60.0
_NOISE_BYTES = 1 << 24
"""Larger inputs are not redrawn: their results get the noise of the small shapes' results."""


@dataclass(frozen=True)
class Learned:
    """The original's run of one case."""

    inputs: Path
    trace: Path
    answer: Answer
    law: str
    must_hold: bool
    """The original must agree with its reference here; else the case may be left out."""


@dataclass
class Oracle:
    """Finds the truth of cases of one target."""

    target: Target
    jobs: Jobs
    replayer: Replayer
    _noise: tuple[float, ...] = ()
    """The largest that was drawn, by output."""

    def truths(self, cases: dict[str, Learned]) -> dict[str, Truth | str]:
        """The truth of each case, or why it is not counted.

        Raises `TargetError` when the original misses its own reference on a case that counts.
        """
        if self.target.reference is None:
            found = {name: self._wide(case.trace, case) for name, case in cases.items()}
        elif launches_kernels(self.target, self.target.reference):
            found = self._triton_reference(cases)
        else:
            found = self._pytorch_reference(cases)
        found |= self._with_noise(cases, found)
        return {name: self._checked(name, cases[name], truth) for name, truth in found.items()}

    def _with_noise(
        self, cases: dict[str, Learned], found: dict[str, Truth | str]
    ) -> dict[str, Truth | str]:
        """Truths of small outputs, told how far rounding the inputs moves them."""
        few = {
            name: truth
            for name, truth in found.items()
            if isinstance(truth, Truth)
            and has_few_elements(cases[name].answer.outputs)
            and tensor_io.load(cases[name].inputs, memory_map=True).nbytes <= _NOISE_BYTES
        }
        reference = self.target.reference
        in_pytorch = reference is not None and not launches_kernels(self.target, reference)
        rows: list[JsonValue] = []
        drawn: dict[str, list[Tensors]] = {}
        place = self.jobs.work / "inputs" / ".noise"
        for name in few:
            inputs = tensor_io.load(cases[name].inputs)
            for draw in range(DRAWS):
                changed = perturbed(inputs, draw, as_float64=in_pytorch)
                folder = place / f"{len(rows)}"
                tensor_io.save(changed, folder)
                rows.append({"name": str(len(rows)), "inputs": str(folder), "dtype": "float64",
                             "optional": True})  # fmt: skip
                if not in_pytorch:
                    wide = self.replayer.answer(cases[name].trace, folder, arithmetic="wide")
                    if isinstance(wide, Answer) and _is_wide(wide.outputs):
                        drawn.setdefault(name, []).append(wide.outputs)
        if in_pytorch and rows:
            request: dict[str, JsonValue] = {"entry": reference, "cases": rows}
            folder, outcome = self.jobs.run("reference", request)
            if outcome.status is OutcomeStatus.OK:
                for position in range(len(rows)):
                    answer = folder / str(position) / "outputs"
                    if answer.exists():
                        name = list(few)[position // DRAWS]
                        drawn.setdefault(name, []).append(tensor_io.load(answer))
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
        noise = {n: _largest_change(few[n].oracle, others) for n, others in drawn.items()}
        self._noise = _largest([self._noise, *noise.values()])
        told: dict[str, Truth | str] = {n: replace(few[n], noise=noise[n]) for n in noise}
        for name, truth in found.items():
            if isinstance(truth, Truth) and name not in few and has_few_elements(truth.oracle):
                told[name] = replace(truth, noise=self._noise)
        return told

    def _pytorch_reference(self, cases: dict[str, Learned]) -> dict[str, Truth | str]:
        sizes = {n: tensor_io.load(c.inputs, memory_map=True).nbytes for n, c in cases.items()}
        small = {n: c for n, c in cases.items() if sizes[n] <= LARGE_BYTES >> 4}
        large = {n: c for n, c in cases.items() if LARGE_BYTES >> 4 < sizes[n] <= LARGE_BYTES}
        found: dict[str, Truth | str] = {n: _unchecked(c) for n, c in cases.items()}
        found |= self._run_reference(small, TARGET_LIMITS, must_end=True)
        limits = replace(TARGET_LIMITS, wall_s=_REFERENCE_LARGE_S)
        for name, case in large.items():
            found |= self._run_reference({name: case}, limits, must_end=False)
        return found

    def _run_reference(
        self, cases: dict[str, Learned], limits: Limits, *, must_end: bool
    ) -> dict[str, Truth | str]:
        if not cases:
            return {}
        rows: list[JsonValue] = []
        for position, case in enumerate(cases.values()):
            for kind, dtype in (("wide", "float64"), ("task", None)):
                rows.append(
                    {
                        "name": f"{position}.{kind}",
                        "inputs": str(case.inputs),
                        "dtype": dtype,
                        "optional": not case.must_hold,
                    }
                )
        request: dict[str, JsonValue] = {"entry": self.target.reference, "cases": rows}
        folder, outcome = self.jobs.run("reference", request, limits)
        if outcome.status in (OutcomeStatus.TIMEOUT, OutcomeStatus.MEMORY) and not must_end:
            return {}
        if outcome.status is not OutcomeStatus.OK:
            raise self.jobs.error(outcome, f"{self.target.reference}()")
        answered = outcome.answer["cases"]
        assert isinstance(answered, list)
        found: dict[str, Truth | str] = {}
        for position, (name, case) in enumerate(cases.items()):
            refusals = [r for r in answered[2 * position : 2 * position + 2] if "refused" in str(r)]
            if refusals and isinstance(refusals[0], dict):
                found[name] = f"the reference refuses it: {refusals[0].get('refused')}"
                continue
            wide = tensor_io.load(folder / f"{position}.wide" / "outputs")
            task = tensor_io.load(folder / f"{position}.task" / "outputs")
            floor, note = precision_floor(case.answer.trace)
            found[name] = Truth(wide, task, floor=floor, notes=(note,) if note else ())
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _triton_reference(self, cases: dict[str, Learned]) -> dict[str, Truth | str]:
        rows: list[JsonValue] = [
            {"name": str(i), "inputs": str(c.inputs), "optional": not c.must_hold}
            for i, c in enumerate(cases.values())
        ]
        request: dict[str, JsonValue] = {"entry": self.target.reference, "cases": rows}
        folder, outcome = self.jobs.run("record", request)
        if outcome.status is not OutcomeStatus.OK:
            raise self.jobs.error(outcome, f"{self.target.reference}()")
        found: dict[str, Truth | str] = {}
        for position, (name, case) in enumerate(cases.items()):
            if not (folder / str(position) / "trace").exists():
                found[name] = "the reference refuses it"
                continue
            trace = folder / str(position) / "trace"
            task = self.replayer.answer(trace, case.inputs)
            if isinstance(task, Replay):
                raise TargetError(f"{self.target.reference}() on {name}: {task.message}")
            truth = self._wide(trace, case)
            if isinstance(truth, Truth):
                truth = replace(truth, reference=task.outputs)
            found[name] = truth
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _wide(self, trace: Path, case: Learned) -> Truth | str:
        """The recorded work in fp64; without it the original's own result must do."""
        wide = self.replayer.answer(trace, case.inputs, arithmetic="wide")
        if isinstance(wide, Replay):
            return _unchecked(case, wide.message)
        if not _is_wide(wide.outputs):
            return _unchecked(case)
        return Truth(wide.outputs, case.answer.outputs, wide.mutated)

    def _checked(self, name: str, case: Learned, truth: Truth | str) -> Truth | str:
        """The truth, after holding the original itself to it."""
        if isinstance(truth, str):
            if not case.must_hold:
                return truth
            raise TargetError(f"{name}: {truth}", "mend the reference first")
        original = case.answer.outputs
        form = _difference(original, truth.reference)
        if form:
            raise TargetError(
                f"on {name} {self.target.entry}() and {self.target.reference}() return different"
                f" things: {form}",
                "make both return the same structure",
            )
        if case.law != AS_GIVEN and not (is_finite(truth.reference) and is_finite(truth.oracle)):
            return "the reference is not finite under this law"
        judged = judge_outputs(original, original, truth, "")
        if judged.ok:
            worse = (
                judged.candidate is not None
                and judged.reference is not None
                and judged.candidate.rms > judged.reference.rms
            )
            return replace(truth, reference=original) if worse else truth
        slack = max((ORIGINAL_SLACK.get(t.dtype, 4.0) for t in original.tensors), default=4.0)
        if judge_outputs(original, original, truth, "", slack=slack).ok:
            return replace(truth, reference=original)
        if case.law != AS_GIVEN and is_finite(original):
            note = f"{name}: the original itself misses the tolerance here; its error is the scale"
            return replace(truth, reference=original, notes=(*truth.notes, note))
        if not case.must_hold:
            return f"the original differs from its reference here: {judged.detail}"
        raise TargetError(
            f"{self.target.entry}() does not agree with its own reference on {name}:"
            f" {judged.detail}",
            "mend the target or its reference first",
        )


def _unchecked(case: Learned, why: str = "") -> Truth:
    """The original's own result as the truth, with a wider floor and a note that says so."""
    outputs = case.answer.outputs
    floor = unchecked_floor(outputs)
    note = "no fp64 truth for some cases" + (f" ({why})" if why else "")
    return Truth(
        outputs,
        outputs,
        case.answer.mutated,
        floor,
        notes=(note + ": results are compared with the original's own",),
    )


def _largest_change(truth: Tensors, others: list[Tensors]) -> tuple[float, ...]:
    return _largest([relative_change(truth, other) for other in others])


def _largest(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    """The largest of each column."""
    return tuple(max(column) for column in zip(*(row for row in rows if row), strict=True))


def _is_wide(outputs: Tensors) -> bool:
    return all(t.dtype == "float64" for t in outputs.tensors if is_float(t.dtype))


def _difference(original: Tensors, reference: Tensors) -> str:
    """What the entry and the reference return differently; types and strides are the entry's."""
    if _plain(original.tree) != _plain(reference.tree):
        return structure(original, Tensors(_plain(reference.tree), [], []))
    for position, (a, b) in enumerate(zip(original.tensors, reference.tensors, strict=True)):
        if a.shape != b.shape:
            return f"output {position} has shape {list(a.shape)} and {list(b.shape)}"
        if is_float(a.dtype) != is_float(b.dtype):
            return f"output {position} is {a.dtype} and {b.dtype}"
    return ""


def _plain(tree: Json) -> Json:
    """A reference's tensors are the host's, and a list may stand for a tuple."""
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if isinstance(tree, dict):
        for kind in ("tensor", "host_tensor"):
            if kind in tree:
                return {"tensor": tree[kind]}
        if set(tree) == {"tuple"}:
            return _plain(tree["tuple"])
        return {key: _plain(item) for key, item in tree.items()}
    return tree
