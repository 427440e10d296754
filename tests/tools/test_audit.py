"""Fallbacks, lowered precision and missing work are seen in the recorded work."""

from __future__ import annotations

import pytest

from kopt.gpu.trace import Event, Kernel, Launch, Operator, PointerArg, TensorRef, Trace
from kopt.tools.audit import audit_source, audit_work


def trace(*events: Event, ptx: str = "", dtype: str = "float32") -> Trace:
    kernel = Kernel("k", "k", "k.py", 1, ptx, "", "", 4, 1, 0, "sm_80")
    given = TensorRef(0, dtype, (8,), (1,), 0)
    return Trace((given,), (given,), {"tensor": 0}, events, {"k": kernel})


def operator(name: str) -> Operator:
    return Operator(f"aten.{name}.default", [], {}, ())


LAUNCH = Launch("k", (1, 1, 1), (PointerArg(0, 0, "x"),))
MMA = "mma.sync.aligned.m16n8k8.row.col.f32.{0}.{0}.f32 {{%r1}}, {{%r2}};"


def test_the_same_work_is_clean() -> None:
    assert audit_work(trace(LAUNCH), trace(LAUNCH)).cheats == ()
    assert audit_work(trace(operator("mm")), trace(operator("mm"))).cheats == ()
    assert audit_work(trace(operator("mm")), trace(LAUNCH)).cheats == ()
    assert audit_work(trace(LAUNCH), trace(LAUNCH, operator("sum"))).cheats == ()


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((operator("mm"),), "mm"),
        ((LAUNCH, operator("_softmax")), "_softmax"),
        ((operator("mul"), operator("add")), "launches no kernel"),
        ((operator("empty_like"),), "does no work"),
        ((), "does no work"),
    ],
)
def test_replaced_kernels_are_cheats(events: tuple[Event, ...], words: str) -> None:
    (cheat,) = audit_work(trace(LAUNCH), trace(*events)).cheats
    assert words in cheat


def test_no_work_at_all_is_a_cheat_for_pytorch_too() -> None:
    assert audit_work(trace(operator("mm")), trace()).cheats


@pytest.mark.parametrize(
    ("dtype", "before", "after", "lowered"),
    [
        ("float32", "", "tf32", True),
        ("float32", "", "bf16", True),
        ("float32", "tf32", "tf32", False),
        ("float32", "tf32", "f16", False),  # both keep 11 bits
        ("float32", "tf32", "bf16", True),
        ("float16", "", "f16", False),
        ("float16", "f16", "bf16", True),
        ("bfloat16", "", "bf16", False),
    ],
)
def test_matrix_instructions_on_fewer_bits_are_cheats(
    dtype: str, before: str, after: str, lowered: bool
) -> None:
    original = trace(LAUNCH, ptx=MMA.format(before) if before else "", dtype=dtype)
    candidate = trace(LAUNCH, ptx=MMA.format(after), dtype=dtype)
    assert bool(audit_work(original, candidate).cheats) is lowered


def test_kernels_that_are_not_launched_do_not_count() -> None:
    unused = trace(operator("mul"), ptx=MMA.format("bf16"))
    assert audit_work(trace(operator("mul")), unused).cheats == ()


def test_source_patterns_are_notes() -> None:
    source = (
        "import torch, sys, subprocess\n"
        "torch.allclose = lambda *a: True\n"
        "def f(x):\n"
        "    try:\n        return k[(1,)](x)\n"
        "    except Exception:\n        return torch.relu(x)\n"
        "sys._getframe(1)\nsubprocess.run(['ls'])\n"
    )
    audit = audit_source(source)
    assert audit.cheats == ()
    text = " ".join(audit.notes)
    for words in ("replaces torch.allclose", "falls back", "sys._getframe", "subprocess.run"):
        assert words in text
    assert audit_source("import torch\ndef f(x):\n    y = x.T\n    return y\n").notes == ()
    assert audit_source("def f(:").notes == ()
