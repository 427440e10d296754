"""Right targets are learned, wrong ones named, and hostile candidates get their verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kopt.gpu import facts_io, trace_io
from kopt.gpu.errors import TargetError
from kopt.tools.catalogue import judging_tools
from kopt.tools.models import Candidate, ComparisonStatus, Verdict, VerdictStatus
from kopt.tools.session import Session

from .conftest import Open

LAUNCH = "    scale_rows_kernel[(n_rows,)]"
RETURN = "    return out\n"


def candidate(source: str) -> Candidate:
    return Candidate(id="c", source=source, technique="test", rationale="")


def changed(session: Session, old: str, new: str) -> str:
    source = session.target.source
    assert old in source
    return source.replace(old, new, 1)


def judge(session: Session, old: str, new: str, *, full: bool = False) -> Verdict:
    found = session.judged(candidate(changed(session, old, new)), full=full)[0]
    if found.verdict.status is not VerdictStatus.PASS:
        assert found.measurements == found.comparisons == ()
    return found.verdict


def test_the_baseline_leaves_traces_and_facts(open_session: Open, tmp_path: Path) -> None:
    session = open_session("scale_rows.py")
    found = session.baseline(tmp_path)
    assert found.verdict.status is VerdictStatus.PASS
    assert [m.workload for m in found.measurements] == ["wide"]
    trace = trace_io.load(tmp_path / "wide" / "trace")
    assert [k.name for k in trace.kernels.values()] == ["scale_rows_kernel"]
    facts = facts_io.from_json(json.loads((tmp_path / "wide" / "facts.json").read_text()))
    assert len(facts.launches) == 1


def test_the_target_passes_as_its_own_candidate(open_session: Open, tmp_path: Path) -> None:
    session = open_session("scale_rows.py")
    found = session.evaluate(candidate(session.target.source), tmp_path, full=True)
    assert found.verdict.status is VerdictStatus.PASS, found.verdict.summary
    laws = {c.case.rsplit(".", 1)[-1] for c in found.verdict.cases}
    assert {"as_given", "normal", "exact_integers", "large_offset", "zeros"} <= laws
    assert any("n_cols_1001" in c.case for c in found.verdict.cases)
    assert found.comparisons[0].status is ComparisonStatus.SAME
    assert (tmp_path / "wide" / "facts.json").exists()


def test_an_honest_variant_passes(open_session: Open) -> None:
    session = open_session("scale_rows.py")
    verdict = judge(session, "x * w + shift", "tl.fma(x, w, shift + 0.0 * x)", full=True)
    assert verdict.status is VerdictStatus.PASS, verdict.summary


WRONG = {
    "last_row_skipped": ("(n_rows,)]", "(n_rows - 1,)]", VerdictStatus.MISMATCH),
    "another_shift": ("n_cols, 0.5,", "n_cols, 0.50001,", VerdictStatus.MISMATCH),
    "half_precision": ("x * w + shift", "(x.to(tl.float16) * w).to(tl.float32) + shift",
                       VerdictStatus.MISMATCH),
    "no_mask": ("n_cols + cols, mask=mask)\n    w", "n_cols + cols)\n    w",
                VerdictStatus.MEMORY_ERROR),
    "another_type": (RETURN, "    return out.half()\n", VerdictStatus.MISMATCH),
    "another_shape": (RETURN, "    return out.view(-1)\n", VerdictStatus.MISMATCH),
    "another_structure": (RETURN, "    return (out, out)\n", VerdictStatus.MISMATCH),
    "transposed_strides": (RETURN, "    return out.t().contiguous().t()\n", VerdictStatus.MISMATCH),
    "in_place": ("torch.empty_like(x)", "x", VerdictStatus.MISMATCH),
    "changed_input": (RETURN, "    w.zero_()\n    return out\n", VerdictStatus.MISMATCH),
    "stale_memory": (LAUNCH, "    return out\n    scale_rows_kernel[(n_rows,)]",
                     VerdictStatus.CHEAT),
    "pytorch_instead": (LAUNCH, "    return x * w[:, None] + 0.5\n" + LAUNCH, VerdictStatus.CHEAT),
    "computed_on_the_host": (RETURN, "    out.copy_((x.cpu() * w.cpu()[:, None] + 0.5).cuda())\n"
                             + RETURN, VerdictStatus.CHEAT),
    "syntax_error": (RETURN, "    return out)\n", VerdictStatus.COMPILE_ERROR),
    "unknown_name_in_the_kernel": ("x * w + shift", "x * v + shift", VerdictStatus.COMPILE_ERROR),
    "shared_memory": (
        "w = tl.load(w_ptr + row)\n",
        """w = tl.load(w_ptr + row)
    tile = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    total = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, 64, num_stages=16):
        a = tl.load(x_ptr + tile + k)
        total = tl.dot(a, tl.load(x_ptr + tile + 2 * k), total)
    shift += tl.sum(tl.sum(total, 0), 0)
""",
        VerdictStatus.COMPILE_ERROR,
    ),
    "raises": (LAUNCH, "    raise ValueError('no')\n" + LAUNCH, VerdictStatus.CRASH),
    "exits": (LAUNCH, "    import os; os._exit(0)\n" + LAUNCH, VerdictStatus.CRASH),
    "no_entry": ("def scale_rows(", "def other(", VerdictStatus.CRASH),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_gets_its_verdict(open_session: Open, name: str) -> None:
    old, new, expected = WRONG[name]
    verdict = judge(open_session("scale_rows.py"), old, new)
    assert verdict.status is expected, verdict.summary
    assert verdict.summary


def test_a_candidate_that_fits_known_shapes_only_fails_in_full(open_session: Open) -> None:
    session = open_session("scale_rows.py")
    source = changed(session, RETURN, "    if n_cols % 2 == 1:\n        out.mul_(1.001)\n" + RETURN)
    quick = session.judged(candidate(source), full=False)[0]
    full = session.judged(candidate(source), full=True)[0]
    assert quick.verdict.status is VerdictStatus.PASS
    assert full.verdict.status is VerdictStatus.MISMATCH


@pytest.mark.slow
def test_a_candidate_that_hangs_times_out(open_session: Open) -> None:
    session = open_session("scale_rows.py")
    verdict = judge(session, LAUNCH, "    while True:\n        pass\n" + LAUNCH)
    assert verdict.status is VerdictStatus.TIMEOUT


def test_a_target_without_reference_is_its_own(open_session: Open, tmp_path: Path) -> None:
    session = open_session("in_place.py")
    assert session.baseline(tmp_path).verdict.status is VerdictStatus.PASS
    same = session.judged(candidate(session.target.source), full=True)[0]
    assert same.verdict.status is VerdictStatus.PASS, same.verdict.summary
    other_block = judge(session, "BLOCK=256)", "BLOCK=256, num_warps=2)")
    assert other_block.status is VerdictStatus.PASS, other_block.summary
    not_in_place = judge(session, "tl.store(x_ptr", "tl.store(y_ptr")
    assert not_in_place.status is VerdictStatus.MISMATCH


def test_wrong_contents_of_a_changed_input_fail(open_session: Open) -> None:
    session = open_session("in_place.py")
    verdict = judge(session, "x_ptr + offsets, x + y,", "x_ptr + offsets, x - y,")
    assert verdict.status is VerdictStatus.MISMATCH, verdict.summary


def test_a_target_that_misses_its_reference_is_an_error(open_session: Open, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="own reference") as caught:
        open_session("wrong.py").baseline(tmp_path)
    assert caught.value.exit_code == 4


def test_every_judging_tool_can_be_called(open_session: Open) -> None:
    session = open_session("scale_rows.py")
    tools = judging_tools()
    source = json.dumps({"source": session.target.source})
    assert "scale_rows_kernel" in tools.call(session, "inspect_target", "{}")
    assert '"registers"' in tools.call(session, "compile_candidate", source)
    assert '"pass"' in tools.call(session, "benchmark_candidate", source)
    assert '"bottleneck"' in tools.call(session, "diagnose_target", '{"workload": null}')
    assert '"wide"' in tools.call(session, "profile_target", '{"workload": "wide"}')
