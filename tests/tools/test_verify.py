"""The layers of a verdict, each on the smallest data that shows it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from kopt.gpu.counters import Finding
from kopt.gpu.facts import CallFacts
from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import (
    Alloc,
    DeviceRead,
    Event,
    HostCopy,
    Kernel,
    Launch,
    Operator,
    PointerArg,
    TensorRef,
    Trace,
)
from kopt.sandbox.protocol import Outcome, OutcomeStatus
from kopt.tools.models import VerdictStatus
from kopt.tools.trace_checks import adds_atomically, precision_floor
from kopt.tools.verify import (
    Answer,
    Truth,
    judge_case,
    of_outcome,
    of_refusal,
    same_bytes,
    structure,
)

N = 64


def result(values: NDArray[np.float32] | NDArray[np.float64], dtype: str = "float32") -> Tensors:
    data = np.ascontiguousarray(values)
    stride = tuple(s // data.itemsize for s in data.strides)
    ref = TensorRef(0, dtype, data.shape, stride, 0)
    return Tensors({"tensor": 0}, [ref], [data.reshape(-1).view(np.uint8).copy()])


def facts(findings: tuple[Finding, ...] = (), mutated: tuple[int, ...] = ()) -> CallFacts:
    return CallFacts("a100", (), (), 0, 0, 0, 0, findings, mutated)


def kernel(ptx: str = "") -> Kernel:
    return Kernel("k", "k", "k.py", 1, ptx, "", "", 4, 1, 0, "sm_80")


def ref(buffer: int, dtype: str = "float32") -> TensorRef:
    return TensorRef(buffer, dtype, (N, N), (N, 1), 0)


def launch(*buffers: int) -> Launch:
    return Launch("k", (1, 1, 1), tuple(PointerArg(b, 0, f"p{b}") for b in buffers))


def trace(*events: Event, output: int = 1, ptx: str = "", dtype: str = "float32") -> Trace:
    return Trace((ref(0, dtype),), (ref(output),), {"tensor": 0}, events, {"k": kernel(ptx)})


GOOD = trace(Alloc(1, 4 * N * N), launch(0, 1))
TRUTH64 = np.random.default_rng(0).standard_normal((N, N))
ORIGINAL = result(TRUTH64.astype(np.float32))
TRUTH = Truth(result(TRUTH64, "float64"), ORIGINAL)


def answer(
    outputs: Tensors = ORIGINAL, work: Trace = GOOD, known: CallFacts | None = None
) -> Answer:
    return Answer(outputs, known or facts(), work)


def status(candidate: Answer, claimed: Tensors | None = None, original: Answer | None = None,
           law: str = "normal") -> VerdictStatus:  # fmt: skip
    found = judge_case(
        "case", law, original or answer(), candidate, claimed or candidate.outputs, TRUTH
    )
    assert (found.detail == "") is (found.status is VerdictStatus.PASS)
    return found.status


def test_an_equal_answer_passes() -> None:
    assert status(answer()) is VerdictStatus.PASS


def test_a_wrong_answer_is_a_mismatch() -> None:
    assert status(answer(result(np.zeros((N, N), np.float32)))) is VerdictStatus.MISMATCH


def test_an_answer_that_the_replay_does_not_give_is_a_cheat() -> None:
    wrong = answer(result(np.zeros((N, N), np.float32)))
    assert status(wrong, claimed=ORIGINAL) is VerdictStatus.CHEAT
    assert status(answer(), claimed=result(2 * TRUTH64.astype(np.float32))) is VerdictStatus.CHEAT


ATOMIC = "red.global.gpu.add.f32 [%rd1], %f1;"


def test_atomic_sums_may_differ_in_their_order_but_not_in_their_value() -> None:
    atomic = trace(Alloc(1, 4 * N * N), launch(0, 1), ptx=ATOMIC)
    near = result(np.nextafter(TRUTH64.astype(np.float32), np.float32(9)))
    assert status(answer(near, atomic), claimed=ORIGINAL) is VerdictStatus.PASS
    assert status(answer(near, GOOD), claimed=ORIGINAL) is VerdictStatus.CHEAT
    far = result(1.01 * TRUTH64.astype(np.float32))
    assert status(answer(near, atomic), claimed=far) is VerdictStatus.CHEAT


@pytest.mark.parametrize(
    ("ptx", "expected"),
    [
        (ATOMIC, True),
        ("atom.global.gpu.acq_rel.add.noftz.f16x2 %r1, [%rd1], %r2;", True),
        ("atom.global.add.u32 %r1, [%rd1], 1;", False),
        ("add.f32 %f1, %f2, %f3;", False),
    ],
)
def test_free_orders_are_seen_in_the_ptx(ptx: str, expected: bool) -> None:
    assert adds_atomically(trace(launch(0, 1), ptx=ptx)) is expected


def finding(arg: str = "x", lanes: int = 3) -> Finding:
    return Finding("out_of_bounds", "k", "k.py", 9, "ld.global", arg, 4, 0, 0, 0, lanes)


def test_bad_accesses_that_the_original_has_not() -> None:
    bad = answer(known=facts((finding(),)))
    assert status(bad) is VerdictStatus.MEMORY_ERROR
    assert status(bad, original=answer(known=facts((finding(),)))) is VerdictStatus.PASS
    for other in (finding("y"), finding(lanes=2)):
        original = answer(known=facts((other,)))
        assert status(bad, original=original) is VerdictStatus.MEMORY_ERROR


def test_forms_must_be_equal() -> None:
    turned = Tensors({"tensor": 0}, [TensorRef(0, "float32", (N, N), (1, N), 0)], ORIGINAL.storages)
    expanded = Tensors({"tensor": 0}, [TensorRef(0, "float32", (N, N), (0, 1), 0)],
                       ORIGINAL.storages)  # fmt: skip
    double = result(TRUTH64, "float64")
    flat = result(TRUTH64.astype(np.float32).reshape(-1))
    pair = Tensors({"tuple": [{"tensor": 0}]}, ORIGINAL.tensors, ORIGINAL.storages)
    for other, words in (
        (turned, "contiguous"), (expanded, "overlap"), (double, "float64"), (flat, "shape"),
        (pair, "1 values"),
    ):  # fmt: skip
        assert words in structure(ORIGINAL, other)
        assert status(answer(other)) is VerdictStatus.MISMATCH


def test_changed_and_shared_inputs_are_mismatches() -> None:
    changing = facts(mutated=(0,))
    assert status(answer(known=changing)) is VerdictStatus.MISMATCH
    assert status(answer(), original=answer(known=changing)) is VerdictStatus.MISMATCH
    in_place = trace(launch(0), output=0)
    assert status(answer(work=in_place)) is VerdictStatus.MISMATCH
    assert status(answer(work=in_place), original=answer(work=in_place)) is VerdictStatus.PASS


def test_contents_of_changed_inputs_are_judged() -> None:
    original = Answer(ORIGINAL, facts(mutated=(0,)), GOOD, ORIGINAL)
    same = Answer(ORIGINAL, facts(mutated=(0,)), GOOD, ORIGINAL)
    assert status(same, original=original) is VerdictStatus.PASS
    wrong = dataclasses.replace(same, mutated=result(1.01 * TRUTH64.astype(np.float32)))
    assert status(wrong, original=original) is VerdictStatus.MISMATCH


def tensor_arg(buffer: int) -> dict[str, object]:
    return {"tensor": dataclasses.asdict(ref(buffer))}


def test_an_answer_from_the_host_is_a_cheat() -> None:
    size = 4 * N * N
    copied = trace(DeviceRead(0, size), Alloc(1, size), HostCopy(1, "b", size))
    assert status(answer(work=copied)) is VerdictStatus.CHEAT
    hidden = trace(
        Alloc(1, size), launch(0, 1), Alloc(2, size), HostCopy(2, "b", size),
        Operator("aten.copy_.default", [tensor_arg(1), tensor_arg(2)], {}, (ref(1),)),  # type: ignore[list-item]
    )  # fmt: skip
    assert status(answer(work=hidden)) is VerdictStatus.CHEAT
    constant = trace(Alloc(1, size), Alloc(2, 4), HostCopy(2, "b", 4), launch(0, 1, 2))
    assert status(answer(work=constant)) is VerdictStatus.PASS


def test_operators_that_the_task_rounds_lower_widen_the_floor() -> None:
    def floor(name: str, dtype: str) -> float:
        ptx = f"mma.sync.aligned.m16n8k8.row.col.f32.{name}.{name}.f32 {{%r1}};"
        return precision_floor(trace(launch(0, 1), ptx=ptx, dtype=dtype))[0]

    assert floor("tf32", "float32") == 2.0**-11
    assert floor("bf16", "float32") == 2.0**-8
    assert floor("f16", "float16") == 0.0
    assert precision_floor(GOOD)[0] == 0.0


def test_equal_bytes_ignore_strides_and_accept_nan() -> None:
    values = TRUTH64.astype(np.float32)
    values[3, 3] = np.nan
    turned = Tensors({"tensor": 0}, [TensorRef(0, "float32", (N, N), (1, N), 0)],
                     [np.ascontiguousarray(values.T).reshape(-1).view(np.uint8)])  # fmt: skip
    assert same_bytes(result(values), turned)
    assert not same_bytes(result(values), result(TRUTH64.astype(np.float32)))


def outcome(kind: OutcomeStatus, error_type: str = "") -> Outcome:
    return Outcome(kind, "what happened", error_type=error_type, error="because",
                   traceback='  File "/a/k.py", line 7, in f')  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "error_type", "expected"),
    [
        (OutcomeStatus.TIMEOUT, "", VerdictStatus.TIMEOUT),
        (OutcomeStatus.CRASH, "", VerdictStatus.CRASH),
        (OutcomeStatus.MEMORY, "", VerdictStatus.CRASH),
        (OutcomeStatus.ERROR, "CompilationError", VerdictStatus.COMPILE_ERROR),
        (OutcomeStatus.ERROR, "OutOfResources", VerdictStatus.COMPILE_ERROR),
        (OutcomeStatus.ERROR, "SyntaxError", VerdictStatus.COMPILE_ERROR),
        (OutcomeStatus.ERROR, "Unsupported", VerdictStatus.UNJUDGED),
        (OutcomeStatus.ERROR, "ValueError", VerdictStatus.CRASH),
    ],
)
def test_jobs_that_end_badly(kind: OutcomeStatus, error_type: str, expected: VerdictStatus) -> None:
    verdict = of_outcome(outcome(kind, error_type))
    assert verdict.status is expected
    if kind is OutcomeStatus.ERROR:
        assert "because" in verdict.summary
        assert "k.py:7" in verdict.summary


def test_replays_that_fail() -> None:
    assert of_refusal("Unsupported") is VerdictStatus.UNJUDGED
    assert of_refusal("AssemblyError") is VerdictStatus.COMPILE_ERROR
    assert of_refusal("TimeoutError") is VerdictStatus.TIMEOUT
    assert of_refusal("DeviceDied") is VerdictStatus.CRASH
    assert of_refusal("UsageError") is VerdictStatus.CHEAT
