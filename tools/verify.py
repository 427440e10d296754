"""Is a candidate right? Pure functions from what its jobs and replays left to a verdict.

The layers stand in the order of their cost; the first that fails decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import Finding
from kopt.gpu.facts import CallFacts
from kopt.gpu.tensor_io import Tensors, raw_view
from kopt.gpu.trace import Json, TensorRef, Trace
from kopt.sandbox.protocol import Outcome, OutcomeStatus
from kopt.tools.comparison import Judgement, compare
from kopt.tools.floats import FORMATS, is_float, rounded, values_of
from kopt.tools.laws import EXACT
from kopt.tools.models import CaseResult, Verdict, VerdictStatus
from kopt.tools.trace_checks import adds_atomically, aliasing, copied_outputs

COMPILE_ERRORS = frozenset(
    {
        "CompilationError",
        "CompileTimeAssertionFailure",
        "UnsupportedLanguageConstruct",
        "OutOfResources",
        "PTXASError",
        "AssemblyError",
        "SyntaxError",
        "IndentationError",
        "TabError",
    }
)
"""Types of errors that compilers raise, Triton's running out of shared memory included."""


@dataclass(frozen=True)
class Answer:
    """What the device computed for one case."""

    outputs: Tensors
    facts: CallFacts
    trace: Trace
    mutated: Tensors | None = None
    """Contents of the inputs that the call changed, in the order of `facts.mutated_inputs`."""


@dataclass(frozen=True)
class Truth:
    """What one case should give."""

    oracle: Tensors
    """In fp64."""
    reference: Tensors
    """In the task's own precision: its error against the oracle sets the tolerance."""
    mutated_oracle: Tensors | None = None
    floor: float = 0.0
    """Relative error that the task's own arithmetic may have besides rounding its output."""
    noise: tuple[float, ...] = ()
    """By output: its relative change when the inputs change by one rounding, where it was drawn.

    Few elements say little about their typical error: the reference's may be small by chance.
    """
    notes: tuple[str, ...] = field(default=())


# Before anything was replayed ------------------------------------------------------------------


def of_outcome(outcome: Outcome) -> Verdict:
    """The verdict on a candidate whose job did not end well."""
    if outcome.status is OutcomeStatus.TIMEOUT:
        return Verdict(status=VerdictStatus.TIMEOUT, summary=outcome.detail)
    if outcome.status is not OutcomeStatus.ERROR:
        return Verdict(status=VerdictStatus.CRASH, summary=outcome.detail)
    if outcome.error_type in COMPILE_ERRORS:
        status = VerdictStatus.COMPILE_ERROR
    elif outcome.error_type == "Unsupported":
        status = VerdictStatus.UNJUDGED
    else:
        status = VerdictStatus.CRASH
    line = innermost_line(outcome.traceback)
    summary = f"{outcome.error_type}: {outcome.error}".strip()[:500]
    return Verdict(status=status, summary=summary + (f" [{line}]" if line else ""))


def of_refusal(error_type: str) -> VerdictStatus:
    """The verdict on a trace that the device did not replay to its end."""
    return {
        "Unsupported": VerdictStatus.UNJUDGED,
        "AssemblyError": VerdictStatus.COMPILE_ERROR,
        "TimeoutError": VerdictStatus.TIMEOUT,
        "MemoryError": VerdictStatus.CRASH,
        "DeviceDied": VerdictStatus.CRASH,
        "OSError": VerdictStatus.CRASH,
    }.get(error_type, VerdictStatus.CHEAT)


def innermost_line(traceback: str) -> str:
    """`file.py:12` of the last frame of a traceback, "" if it has none."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', traceback)
    return f"{frames[-1][0].rsplit('/', 1)[-1]}:{frames[-1][1]}" if frames else ""


# One case --------------------------------------------------------------------------------------


def judge_case(
    case: str,
    law: str,
    original: Answer,
    candidate: Answer,
    claimed: Tensors,
    truth: Truth,
    rows: dict[int, NDArray[np.int64]] | None = None,
) -> CaseResult:
    """Everything that one case can say about a candidate. `claimed` is the answer that the
    sandboxed call returned, `rows` limits the comparison of large outputs to some rows."""
    finding = new_finding(original.facts.findings, candidate.facts.findings)
    if finding is not None:
        return _result(case, VerdictStatus.MEMORY_ERROR, finding.sentence())
    copied = copied_outputs(original.trace, candidate.trace)
    if copied:
        return _result(
            case,
            VerdictStatus.CHEAT,
            f"output {copied[0]} was computed on the host and copied; no device work on the inputs"
            " leads to it",
        )
    for problem in (
        structure(original.outputs, candidate.outputs),
        aliasing(original.trace, candidate.trace),
        mutation(original.facts, candidate.facts),
    ):
        if problem:
            return _result(case, VerdictStatus.MISMATCH, problem)
    found = judge_outputs(original.outputs, candidate.outputs, truth, law, rows)
    if found.ok and original.mutated is not None and candidate.mutated is not None:
        floor = truth.floor
        if truth.mutated_oracle is None:
            floor = max(floor, unchecked_floor(original.mutated))
        changed = Truth(truth.mutated_oracle or original.mutated, original.mutated, floor=floor)
        judged = judge_outputs(original.mutated, candidate.mutated, changed, law, None)
        if not judged.ok:
            found = Judgement(False, f"changed input: {judged.detail}", found.candidate)
    if not same_bytes(candidate.outputs, claimed):
        # The order of floating-point atomics is free, so that two honest runs may differ; then the
        # claimed answer must be right by itself.
        free = adds_atomically(candidate.trace)
        honest = free and judge_outputs(original.outputs, claimed, truth, law, rows).ok
        if not honest:
            return _result(
                case,
                VerdictStatus.CHEAT,
                "the recorded device work does not give the answer that the call returned",
            )
    if found.ok:
        return _result(case, VerdictStatus.PASS, "", found)
    return _result(case, VerdictStatus.MISMATCH, found.detail, found)


def judge_outputs(
    original: Tensors,
    candidate: Tensors,
    truth: Truth,
    law: str,
    rows: dict[int, NDArray[np.int64]] | None = None,
    slack: float = 1.0,
) -> Judgement:
    """Each output against the oracle; the worst judgement of a float output stands for all."""
    problem = structure(original, candidate)
    if problem:
        return Judgement(False, problem)
    worst = Judgement(True)
    for position, tensor in enumerate(original.tensors):
        judged = compare(
            values_of(candidate, position),
            values_of(truth.oracle, position),
            _reference(truth, position, tensor.dtype),
            tensor.dtype,
            exact_law=law == EXACT,
            floor=max(truth.floor, truth.noise[position] if truth.noise else 0.0),
            rows=rows.get(position) if rows else None,
            slack=slack,
        )
        if not judged.ok:
            detail = f"output {position}: {judged.detail}"
            return Judgement(False, detail, judged.candidate, judged.reference)
        if judged.candidate is not None and (
            worst.candidate is None or judged.candidate.rms > worst.candidate.rms
        ):
            worst = judged
    return worst


def _reference(truth: Truth, position: int, dtype: str) -> NDArray[np.generic]:
    """A reference that returns another float type than the entry is rounded to the entry's."""
    values = values_of(truth.reference, position)
    if not is_float(dtype) or truth.reference.tensors[position].dtype == dtype:
        return values
    return rounded(values.astype(np.float64), dtype)


def unchecked_floor(outputs: Tensors) -> float:
    """The tolerance's floor where the original's own result must serve as the truth."""
    floors = [FORMATS[t.dtype].rounding for t in outputs.tensors if is_float(t.dtype)]
    return 4.0 * max(floors, default=0.0)


def structure(expected: Tensors, got: Tensors) -> str:
    """Why two results do not even have the same form; "" if they do."""
    if expected.tree != got.tree or len(expected.tensors) != len(got.tensors):
        return (
            f"the result is {_form(got.tree)}, the original's is {_form(expected.tree)};"
            " values outside tensors must be equal too"
        )
    for position, (want, have) in enumerate(zip(expected.tensors, got.tensors, strict=True)):
        if want.dtype != have.dtype:
            return f"output {position} is {have.dtype} instead of {want.dtype}"
        if want.shape != have.shape:
            return f"output {position} has shape {list(have.shape)} instead of {list(want.shape)}"
        if _is_dense(want) and not _is_dense(have):
            return f"output {position} has stride {list(have.stride)}: its elements overlap"
        if _is_contiguous(want) and not _is_contiguous(have):
            return f"output {position} has stride {list(have.stride)}: it is not contiguous"
    return ""


def _form(tree: Json) -> str:
    if isinstance(tree, dict) and "tensor" in tree:
        return "a tensor"
    if isinstance(tree, list):
        return f"{len(tree)} values"
    if isinstance(tree, dict) and len(tree) == 1:
        return _form(next(iter(tree.values())))
    return f"{tree!r:.60}"


def _is_contiguous(tensor: TensorRef) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != expected:
            return 0 in tensor.shape
        expected *= size
    return True


def _is_dense(tensor: TensorRef) -> bool:
    """No two elements share an address, as far as sizes and strides alone can say."""
    axes = sorted((s, n) for s, n in zip(tensor.stride, tensor.shape, strict=True) if n > 1)
    reach = 0
    for stride, size in axes:
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def mutation(original: CallFacts, candidate: CallFacts) -> str:
    """Inputs that only one of the two changes."""
    before, after = set(original.mutated_inputs), set(candidate.mutated_inputs)
    if after - before:
        return f"it changes input {min(after - before)}, which the original leaves as it is"
    if before - after:
        return f"it leaves input {min(before - after)} as it is, which the original changes"
    return ""


def new_finding(original: tuple[Finding, ...], candidate: tuple[Finding, ...]) -> Finding | None:
    """The first bad access that the original does not have just so."""

    def key(finding: Finding) -> tuple[str, str, bool]:
        return finding.kind, finding.arg, finding.distance_bytes > 0

    known: dict[tuple[str, str, bool], int] = {}
    for finding in original:
        known[key(finding)] = known.get(key(finding), 0) + finding.lanes
    seen: dict[tuple[str, str, bool], int] = {}
    for finding in candidate:
        seen[key(finding)] = seen.get(key(finding), 0) + finding.lanes
        if seen[key(finding)] > known.get(key(finding), 0):
            return finding
    return None


def same_bytes(first: Tensors, second: Tensors) -> bool:
    """Whether two results have the same form and equal elements, NaN equal to NaN."""
    if first.tree != second.tree or len(first.tensors) != len(second.tensors):
        return False
    for position, (a, b) in enumerate(zip(first.tensors, second.tensors, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        x, y = raw_view(a, first.storages[a.buffer]), raw_view(b, second.storages[b.buffer])
        if np.array_equal(_bits(x), _bits(y)):
            continue
        u, v = values_of(first, position), values_of(second, position)
        if not np.array_equal(u, v, equal_nan=is_float(a.dtype)):
            return False
    return True


def _bits(items: NDArray[np.void]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(items).reshape(-1).view(np.uint8)


def is_finite(result: Tensors) -> bool:
    """Whether every float of a result is finite."""
    return all(
        bool(np.isfinite(values_of(result, i)).all())
        for i, t in enumerate(result.tensors)
        if is_float(t.dtype)
    )


def _result(
    case: str, status: VerdictStatus, detail: str, found: Judgement | None = None
) -> CaseResult:
    mine = found.candidate if found else None
    base = found.reference if found else None
    return CaseResult(
        case=case,
        status=status,
        detail=detail,
        error_rms=mine.rms if mine else None,
        reference_error_rms=base.rms if base else None,
        error_max=mine.peak if mine else None,
        reference_error_max=base.peak if base else None,
    )
