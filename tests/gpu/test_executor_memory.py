"""Bounds, alignment, atomics, local and generic memory, barriers and waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.gpu.counters import Finding
from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.arrays import Array, Program, bfloat16, compile_triton, values
from kopt.gpu.virtual.executor import load_kernel
from kopt.gpu.virtual.segments import FIRST_ADDRESS

FAST = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def program(body: str, pointers: int, threads: int = 32, declarations: str = "") -> Program:
    """A kernel whose pointer parameters are in %rd0, %rd1, …; %t0 is the thread, %c0 the CTA."""
    params = ", ".join(f".param .u64 p{i}" for i in range(pointers))
    loads = "".join(f"ld.param.u64 %rd{i}, [p{i}];\n" for i in range(pointers))
    text = f"""
.version 8.4
.target sm_80
.address_size 64
{declarations}
.visible .entry k({params})
.reqntid {threads}
{{
.reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %t<4>, %r<40>, %c<2>; .reg .b64 %rd<40>;
{loads}
mov.u32 %t0, %tid.x;
mov.u32 %c0, %ctaid.x;
{body}
ret;
}}
"""
    return Program(text, "k", threads, 0)


# Out of bounds


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(y + at, v, mask=at < n)


def test_a_load_past_the_end_is_found_and_named() -> None:
    x = np.arange(1000, dtype=np.float32)
    y = np.zeros(1024, np.float32)
    result = compile_triton(copy, [x, y, 1024], {"BLOCK": 256}).run((4,), x, y, 1024)
    assert (y[:1000] == x).all()
    assert (y[1000:] == 0).all(), "such a load gives 0"
    (finding,) = result.findings
    line = next(
        n
        for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "v = tl.load(x + at)" in text
    )
    assert finding.kind == "out_of_bounds"
    assert (finding.arg, finding.kernel, finding.cta) == ("arg0", "copy", 3)
    assert Path(finding.file).name == Path(__file__).name
    assert finding.line == line
    assert finding.distance_bytes == 8, "a vector load of 8 bytes that starts at the end"
    assert "past the end of 'arg0'" in finding.sentence()


@triton.jit
def shifted_load(x, at):
    return tl.load(x + at + 1)  # the line to name


@triton.jit
def reversed_sum(x, y, BLOCK: tl.constexpr):
    tl.store(y, tl.sum(shifted_load(x, tl.arange(0, BLOCK)), 0))


def test_a_helper_of_the_user_is_named_by_its_own_line() -> None:
    x, y = np.zeros(256, np.float32), np.zeros(1, np.float32)
    (finding,) = compile_triton(reversed_sum, [x, y], {"BLOCK": 256}).run((1,), x, y).findings
    text = Path(__file__).read_text().splitlines()
    assert "# the line to name" in text[finding.line - 1]
    assert finding.distance_bytes == 4


def test_a_store_past_the_end_is_dropped() -> None:
    x = np.arange(1024, dtype=np.float32)
    memory = np.full(1100, 7, np.float32)
    y = memory[:1000]
    result = compile_triton(copy, [x, y, 1024], {"BLOCK": 256}).run((4,), x, y, 1024)
    assert (y == x[:1000]).all()
    assert (memory[1000:] == 7).all()
    assert {(f.kind, f.arg, f.opcode.split(".")[0]) for f in result.findings} == {
        ("out_of_bounds", "arg1", "st")
    }


def address_findings(address: int, opcode: str) -> tuple[tuple[Finding, ...], Array]:
    """One lane accesses an absolute address; the kernel also has a buffer of 64 bytes."""
    x = np.arange(16, dtype=np.uint32)
    out = np.full(32, 5, np.uint32)
    body = f"""
    setp.eq.u32 %p1, %t0, 3;
    mov.u64 %rd5, {address};
    mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u64 %rd7, 0;
    @%p1 {opcode};
    mul.wide.u32 %rd6, %t0, 4; add.s64 %rd6, %rd6, %rd1; st.global.u32 [%rd6], %r1;
    """
    return program(body, 2).run((1,), x, out).findings, out


@pytest.mark.parametrize(
    ("address", "kind", "arg", "distance"),
    [
        (0, "null", "", 0),
        (16, "null", "", 0),
        (FIRST_ADDRESS + 64, "out_of_bounds", "arg0", 4),
        (FIRST_ADDRESS + 62, "out_of_bounds", "arg0", 2),
        (FIRST_ADDRESS - 4, "out_of_bounds", "arg0", -4),
        (FIRST_ADDRESS + 2, "misaligned", "arg0", 0),
        (1 << 60, "out_of_bounds", "", 0),
        ((1 << 64) - 4, "out_of_bounds", "", 0),
        ((1 << 64) - 2, "out_of_bounds", "", 0),
    ],
)
@pytest.mark.parametrize("opcode", ["ld.global.u32 %r1, [%rd5]", "st.global.u32 [%rd5], %t0"])
def test_bad_addresses(address: int, kind: str, arg: str, distance: int, opcode: str) -> None:
    found, out = address_findings(address, opcode)
    (finding,) = found
    assert (finding.kind, finding.arg, finding.distance_bytes) == (kind, arg, distance)
    assert (finding.lane, finding.lanes, finding.address) == (3, 1, address)
    assert (out == 0).all()


@pytest.mark.parametrize(
    "opcode",
    [
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd5]",
        "ld.global.v2.u64 {%rd7, %rd8}, [%rd5]",
        "st.global.v4.u32 [%rd5], {%r1, %r2, %r3, %r4}",
        "st.global.v2.u32 [%rd5], {%r1, %r2}",
        "atom.global.add.u32 %r1, [%rd5], 1",
        "red.global.add.f32 [%rd5], %r2",
        "ld.global.u8 %h1, [%rd5]",
    ],
)
@pytest.mark.parametrize("offset", [64, 1 << 40, -16, -(1 << 45)])
def test_no_access_leaves_its_buffer(opcode: str, offset: int) -> None:
    found, _ = address_findings((FIRST_ADDRESS + offset) % (1 << 64), opcode)
    assert [f.kind for f in found] == ["out_of_bounds"]


@pytest.mark.parametrize(("offset", "kind"), [(60, ""), (64, "out_of_bounds"), (58, "misaligned")])
def test_one_address_for_the_whole_warp(offset: int, kind: str) -> None:
    x, out = np.arange(16, dtype=np.uint32) + 1, np.zeros(32, np.uint32)
    body = f"""
    mul.wide.u32 %rd4, %c0, {offset}; add.s64 %rd4, %rd4, %rd0; ld.global.u32 %r1, [%rd4];
    mul.wide.u32 %rd5, %t0, 4; add.s64 %rd5, %rd5, %rd1; st.global.u32 [%rd5], %r1;
    """
    # The first CTA is inside: the site knows its buffer then.
    found = program(body, 2).run((2,), x, out, threads=1).findings
    assert [f.kind for f in found] == [kind] * bool(kind)
    assert (out == (0 if kind else 16)).all()


def test_a_buffer_that_ends_inside_a_word() -> None:
    memory = np.full(67, 3, np.uint8)
    x, out = memory[:63], np.ones(32, np.uint32)
    body = """
    mul.wide.u32 %rd4, %c0, 60; add.s64 %rd4, %rd4, %rd0; ld.global.u32 %r1, [%rd4];
    mul.wide.u32 %rd5, %t0, 4; add.s64 %rd5, %rd5, %rd1; st.global.u32 [%rd5], %r1;
    """
    (finding,) = program(body, 2).run((2,), x, out, threads=1).findings
    assert (finding.kind, finding.distance_bytes) == ("out_of_bounds", 1)
    assert not out.any()


@pytest.mark.parametrize("opcode", ["ld.global.u32 %r1, [%rd5]", "st.global.u32 [%rd5], %t0"])
def test_lanes_side_by_side_must_be_aligned_too(opcode: str) -> None:
    x = np.zeros(64, np.uint32)
    body = f"""
    mul.wide.u32 %rd5, %t0, 4; add.s64 %rd5, %rd5, %rd0;
    mul.wide.u32 %rd6, %c0, 2; add.s64 %rd5, %rd5, %rd6; {opcode};
    """
    (finding,) = program(body, 1).run((2,), x, threads=1).findings
    assert (finding.kind, finding.lanes, finding.cta) == ("misaligned", 32, 1)
    assert x.tolist() == ([0] * 64 if opcode.startswith("ld") else [*range(32), *[0] * 32])


def test_addresses_that_wrap_around_are_not_inside() -> None:
    """Lanes side by side across the end of the address space, with a window that wraps too."""
    x = np.zeros(16, np.uint32)
    body = """
    mul.wide.u32 %rd5, %t0, 4; add.s64 %rd5, %rd5, -64;
    ld.global.u32 %r1, [%rd5];
    mul.wide.u32 %rd6, %t0, -4; st.global.u32 [%rd6], %r1;
    """
    found = program(body, 1).run((1,), x).findings
    assert sum(f.lanes for f in found) == 64


def test_a_neighbour_is_not_hit_by_an_overrun() -> None:
    x, y = np.zeros(128, np.float32), np.zeros(128, np.float32)
    body = """
    mul.wide.u32 %rd5, %t0, 4096; add.s64 %rd5, %rd5, %rd0; add.s64 %rd5, %rd5, 512;
    mov.u32 %r1, 0f3f800000; st.global.u32 [%rd5], %r1;
    """
    found = program(body, 2).run((1,), x, y).findings
    assert {f.arg for f in found} == {"arg0"}
    assert not y.any()


def test_shared_memory_has_bounds_too() -> None:
    out = np.full(32, 9, np.uint32)
    body = """
    shl.b32 %r1, %t0, 2; mov.u32 %r2, buffer; add.u32 %r1, %r1, %r2;
    st.shared.u32 [%r1+64], %t0;
    ld.shared.u32 %r3, [%r1+64];
    mul.wide.u32 %rd6, %t0, 4; add.s64 %rd6, %rd6, %rd0; st.global.u32 [%rd6], %r3;
    """
    declared = ".shared .align 16 .b8 buffer[128];"
    found = program(body, 1, declarations=declared).run((1,), out).findings
    assert {(f.kind, f.arg) for f in found} == {("out_of_bounds", "shared memory")}
    assert out.tolist() == [*range(16), *[0] * 16]


def test_findings_stop_at_their_limit() -> None:
    x = np.zeros(16, np.uint32)
    body = "mul.wide.u32 %rd5, %t0, 4; add.s64 %rd5, %rd5, %rd0; st.global.u32 [%rd5+64], %t0;"
    found = program(body, 1).run((50,), x, max_findings=10).findings
    assert sum(f.lanes for f in found) == 10


# Access patterns


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@FAST
@given(
    st.lists(st.integers(0, 40), min_size=32, max_size=32),
    st.lists(st.booleans(), min_size=32, max_size=32),
    st.booleans(),
)
def test_any_pattern_of_lanes(size: int, places: list[int], on: list[bool], line: bool) -> None:
    """Loads and stores of every width, side by side or scattered, under any mask."""
    if line:
        places = list(range(places[0], places[0] + 32))
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 80 * 16).astype(np.uint8)
    where = np.array(places, np.uint32)
    flags = np.array(on, np.uint32)
    loaded, stored = np.full(32 * 16, 99, np.uint8), np.zeros(80 * 16, np.uint8)
    vector = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "v4.u32"}[size]
    register = {1: "%h1", 2: "%h1", 4: "%r1", 8: "%rd11", 16: "{%r1, %r2, %r3, %r4}"}[size]
    body = f"""
    mul.wide.u32 %rd5, %t0, 4; add.s64 %rd6, %rd1, %rd5; ld.global.u32 %r10, [%rd6];
    add.s64 %rd6, %rd2, %rd5; ld.global.u32 %r11, [%rd6]; setp.ne.u32 %p1, %r11, 0;
    mul.wide.u32 %rd7, %r10, {size}; add.s64 %rd8, %rd7, %rd0; add.s64 %rd9, %rd7, %rd4;
    mul.wide.u32 %rd10, %t0, {size}; add.s64 %rd10, %rd10, %rd3;
    @%p1 ld.global.{vector} {register}, [%rd8];
    @%p1 st.global.{vector} [%rd10], {register};
    @%p1 ld.global.{vector} {register}, [%rd10];
    @%p1 st.global.{vector} [%rd9], {register};
    """
    assert not program(body, 5).run((1,), data, where, flags, loaded, stored).findings
    expected_loaded, expected_stored = np.full(32 * 16, 99, np.uint8), np.zeros(80 * 16, np.uint8)
    for lane in range(32):
        if on[lane]:
            piece = data[places[lane] * size : (places[lane] + 1) * size]
            expected_loaded[lane * size : (lane + 1) * size] = piece
            expected_stored[places[lane] * size : (places[lane] + 1) * size] = piece
    assert (loaded == expected_loaded).all()
    assert (stored == expected_stored).all()


def test_local_memory_is_per_lane_and_reachable_by_generic_addresses() -> None:
    out = np.zeros(64, np.uint32)
    body = """
    .local .align 8 .b8 depot[32];
    .reg .b64 %SP, %SPL;
    mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL;
    st.local.u32 [%SPL+4], %t0;
    add.u32 %r1, %t0, 100; st.u32 [%SP+8], %r1;
    ld.u32 %r2, [%SP+4]; ld.local.u32 %r3, [%SPL+8];
    mul.wide.u32 %rd6, %t0, 8; add.s64 %rd6, %rd6, %rd0;
    st.global.v2.u32 [%rd6], {%r2, %r3};
    """
    assert not program(body, 1).run((1,), out).findings
    assert (out[0::2] == np.arange(32)).all()
    assert (out[1::2] == np.arange(32) + 100).all()


def test_shared_memory_is_reachable_by_generic_addresses() -> None:
    out = np.zeros(32, np.uint32)
    body = """
    mov.u32 %r1, buffer; cvt.u64.u32 %rd4, %r1; cvta.shared.u64 %rd5, %rd4;
    mul.wide.u32 %rd6, %t0, 4; add.s64 %rd7, %rd5, %rd6; st.u32 [%rd7], %t0;
    shl.b32 %r2, %t0, 2; add.u32 %r2, %r2, %r1; ld.shared.u32 %r3, [%r2];
    add.s64 %rd8, %rd0, %rd6; st.global.u32 [%rd8], %r3;
    """
    declared = ".shared .align 16 .b8 buffer[128];"
    assert not program(body, 1, declarations=declared).run((1,), out).findings
    assert (out == np.arange(32)).all()


# Atomics


@triton.jit
def atomics(x, places, out, was, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, p = tl.load(x + at, mask=at < n), tl.load(places + at, mask=at < n)
    if OP == "add":
        old = tl.atomic_add(out + p, v, mask=at < n)
    elif OP == "max":
        old = tl.atomic_max(out + p, v, mask=at < n)
    elif OP == "min":
        old = tl.atomic_min(out + p, v, mask=at < n)
    elif OP == "and":
        old = tl.atomic_and(out + p, v, mask=at < n)
    elif OP == "or":
        old = tl.atomic_or(out + p, v, mask=at < n)
    elif OP == "xor":
        old = tl.atomic_xor(out + p, v, mask=at < n)
    else:
        old = tl.atomic_xchg(out + p, v, mask=at < n)
    tl.store(was + at, old, mask=at < n)


REFERENCE: dict[str, Any] = {
    "add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "xchg": lambda a, b: b,
}  # fmt: skip


@pytest.mark.parametrize("op", REFERENCE)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "float32", "float64"])
def test_atomics_one_after_the_other(op: str, dtype: str) -> None:
    if dtype.startswith("float") and op in {"and", "or", "xor"}:
        pytest.skip("no such operation")
    rng = np.random.default_rng(0)
    x = rng.integers(0 if dtype[0] == "u" else -1000, 1000, 300).astype(dtype)
    places = rng.integers(0, 7, 300).astype(np.int32)
    out, was = np.arange(7).astype(dtype), np.zeros(300, dtype)
    arguments = [x, places, out, was, 300]
    compiled = compile_triton(atomics, arguments, {"OP": op, "BLOCK": 128})
    assert not compiled.run((3,), *arguments).findings
    # The order of lanes is not fixed: every result must be one that some order gives.
    expected = np.arange(7).astype(dtype)
    for place in range(7):
        mine = x[places == place]
        total = expected[place]
        for value in mine:
            total = REFERENCE[op](total, value)
        if op == "xchg":
            assert out[place] in mine
            assert sorted([*was[places == place], out[place]]) == sorted([*mine, expected[place]])
        else:
            assert out[place] == total
            assert expected[place] in was[places == place]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("count", [12, 11, 1])
def test_atomic_add_of_short_floats(dtype: str, count: int) -> None:
    """On sm_80 a bfloat16 atomic works on the word around it, of which the last element of an odd
    number has only half."""
    rng = np.random.default_rng(0)
    raw = rng.integers(-8, 8, 200)
    x: Array = bfloat16(raw) if dtype == "bfloat16" else raw.astype(np.float16)
    places = np.arange(200).astype(np.int32) % count
    memory = np.full(count + 8, 7, x.dtype)
    out, was = memory[:count], np.zeros(200, x.dtype)
    arguments = [x, places, out, was, 200]
    compiled = compile_triton(atomics, arguments, {"OP": "add", "BLOCK": 128})
    out[:] = 0
    assert not compiled.run((2,), *arguments).findings
    expected = [raw[places == place].sum() for place in range(count)]
    assert values(out).tolist() == expected
    assert (memory[count:] == 7).all(), "the other half is not touched"


def test_atomics_of_ptx_that_triton_does_not_use() -> None:
    counters = np.array([0, 5, 0, 0], np.uint32)
    body = """
    atom.global.inc.u32 %r1, [%rd0], 6;
    atom.global.dec.u32 %r2, [%rd0+4], 9;
    red.global.add.noftz.f16x2 [%rd0+8], %r3;
    atom.global.cas.b32 %r4, [%rd0+12], 0, 77;
    """
    assert not program("mov.u32 %r3, 0x40003c00;" + body, 1).run((1,), counters).findings
    assert counters[0] == 32 % 7
    value = 5
    for _ in range(32):
        value = 9 if value == 0 or value > 9 else value - 1
    assert counters[1] == value
    assert counters[2:3].view(np.float16).tolist() == [32.0, 64.0]
    assert counters[3] == 77


@pytest.mark.parametrize(
    ("opcode", "ordered"),
    [
        ("red.global.add.f32 [%rd0], %r1", True), ("red.global.add.u32 [%rd0], %r1", False),
        ("red.global.add.noftz.bf16x2 [%rd0], %r1", True),
        ("atom.global.add.u32 %r2, [%rd0], %r1", True),
    ],
)  # fmt: skip
def test_what_needs_the_order_of_ctas(opcode: str, ordered: bool) -> None:
    """Integer sums whose results nobody reads may run on several threads, others may not."""
    made = program(f"mov.u32 %r1, 1; {opcode};", 1)
    assert load_kernel(made.ptx, "k").translation.ordered == ordered


def test_float_atomics_repeat_exactly() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000).astype(np.float32)
    places = rng.integers(0, 3, 4000).astype(np.int32)
    results = []
    for threads in (1, 4):
        out, was = np.zeros(3, np.float32), np.zeros(4000, np.float32)
        arguments = [x, places, out, was, 4000]
        compiled = compile_triton(atomics, arguments, {"OP": "add", "BLOCK": 128})
        compiled.run((32,), *arguments, threads=threads)
        results.append(out.tobytes())
    assert results[0] == results[1]


# Waiting


@triton.jit
def locked(lock, total):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.atomic_xchg(lock, 0)


def test_a_spin_lock_between_ctas() -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    compile_triton(locked, [lock, total], {}).run((53,), lock, total)
    assert total[0] == 53


def test_a_warp_that_waits_lets_others_run() -> None:
    """Warp 0 spins on a flag in global memory that warp 3 sets."""
    flag, out = np.zeros(1, np.uint32), np.zeros(4, np.uint32)
    body = """
    shr.u32 %r1, %t0, 5; setp.eq.u32 %p1, %r1, 3; setp.ne.u32 %p2, %r1, 0;
    @%p1 st.global.u32 [%rd0], 9;
    @%p2 bra DONE;
    SPIN:
    ld.volatile.global.u32 %r2, [%rd0]; setp.eq.u32 %p3, %r2, 0;
    @%p3 bra SPIN;
    DONE:
    bar.sync 0;
    ld.global.u32 %r3, [%rd0];
    mul.wide.u32 %rd5, %r1, 4; add.s64 %rd5, %rd5, %rd1; st.global.u32 [%rd5], %r3;
    """
    assert not program(body, 2, threads=128).run((1,), flag, out).findings
    assert out.tolist() == [9] * 4


def test_lanes_that_wait_for_a_lane_of_their_warp() -> None:
    """A lock taken lane by lane: the holder is past the loop, the others spin in it."""
    memory = np.zeros(2, np.uint32)
    body = """
    AGAIN:
    atom.global.cas.b32 %r1, [%rd0], 0, 1; setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ld.global.u32 %r2, [%rd0+4]; add.u32 %r2, %r2, 1; st.global.u32 [%rd0+4], %r2;
    atom.global.exch.b32 %r3, [%rd0], 0;
    """
    program(body, 1).run((2,), memory)
    assert memory.tolist() == [0, 64]


def test_waiting_for_a_later_cta_is_said_to_be_unsupported() -> None:
    flag = np.zeros(1, np.uint32)
    body = """
    setp.eq.u32 %p1, %c0, 1; @%p1 st.global.u32 [%rd0], 1; @%p1 bra DONE;
    SPIN: ld.acquire.gpu.global.u32 %r1, [%rd0]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN;
    DONE:
    """
    with pytest.raises(Unsupported, match="no earlier CTA"):
        program(body, 1).run((2,), flag, threads=1)


def test_threads_that_fill_only_a_part_of_a_warp() -> None:
    out = np.zeros(64, np.uint32)
    body = """
    add.u32 %r1, %t0, 1; mul.wide.u32 %rd5, %t0, 4; add.s64 %rd5, %rd5, %rd0;
    bar.sync 0; st.global.u32 [%rd5], %r1;
    """
    program(body, 1, threads=40).run((1,), out)
    assert out.tolist() == [*range(1, 41), *[0] * 24]


def test_divergent_lanes_meet_again() -> None:
    """Each lane loops as often as its number says, then all vote."""
    out = np.zeros(64, np.uint32)
    body = """
    mov.u32 %r1, 0; mov.u32 %r2, 0;
    LOOP:
    setp.ge.u32 %p1, %r1, %t0; @%p1 bra DONE;
    and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
    add.u32 %r2, %r2, 10; bra NEXT;
    EVEN: add.u32 %r2, %r2, 1;
    NEXT: add.u32 %r1, %r1, 1; bra LOOP;
    DONE:
    activemask.b32 %r4;
    mul.wide.u32 %rd5, %t0, 8; add.s64 %rd5, %rd5, %rd0; st.global.v2.u32 [%rd5], {%r2, %r4};
    """
    program(body, 1).run((1,), out)
    assert out[0::2].tolist() == [sum(10 if i % 2 else 1 for i in range(n)) for n in range(32)]
    assert out[1::2].tolist() == [0xFFFFFFFF] * 32


def test_an_empty_grid_does_nothing() -> None:
    x = np.zeros(4, np.uint32)
    assert not program("st.global.u32 [%rd0], %t0;", 1).run((0,), x).findings
    assert not x.any()


def test_two_dimensional_grids() -> None:
    out = np.zeros((3, 4, 5), np.uint32)
    body = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
    mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
    mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;
    mul.wide.u32 %rd5, %r6, 4; add.s64 %rd5, %rd5, %rd0; add.u32 %r7, %r6, 1;
    st.global.u32 [%rd5], %r7;
    """
    program(body, 1).run((5, 4, 3), out)
    assert (out.reshape(-1) == np.arange(1, 61)).all()
