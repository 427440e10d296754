"""Counters: formulas derived by hand for eight kernels, and a brute-force count of any pattern."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.gpu.counters import KIND_ATOMIC, KIND_LOAD, KIND_STORE, LaunchCounters, Site, line_hash
from kopt.gpu.virtual.arrays import Program, compile_triton
from kopt.gpu.virtual.segments import FIRST_ADDRESS, next_address

FAST = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def counted(
    program: Program, grid: tuple[int, ...], *arguments: Any, **options: Any
) -> LaunchCounters:
    result = program.run(grid, *arguments, counted=True, **options)
    assert not result.findings
    assert result.counters is not None
    return result.counters


def sites(counters: LaunchCounters, kind: str, space: str = "global", arg: str = "") -> list[Site]:
    return [
        s
        for s in counters.sites
        if s.kind == kind and s.space == space and (not arg or s.args == (arg,))
    ]


def total(found: list[Site], field: str) -> int:
    assert found
    return sum(getattr(s, field) for s in found)


def check_lines(counters: LaunchCounters) -> None:
    """The line log agrees with the sites."""
    lines = counters.lines
    assert counters.line_sampling == 1
    assert np.bitwise_count(lines["sectors"]).sum() == sum(s.sectors for s in counters.sites)
    pairs = set(zip(lines["cta"].tolist(), lines["order"].tolist(), strict=True))
    assert len(pairs) == sum(s.requests for s in counters.sites if s.space == "global")
    keys = lines["cta"].astype(np.int64) << 32 | lines["order"]
    assert (np.diff(keys) >= 0).all()


# 1. Elementwise


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [8192, 8192 - 512, 8000])
def test_elementwise(dtype: str, n: int) -> None:
    x = np.ones(8192, dtype)
    y = np.zeros_like(x)
    block, threads = 1024, 128
    c = counted(compile_triton(scale, [x, y, n], {"BLOCK": block}), (8,), x, y, n)
    size = x.itemsize
    each = block // threads
    vector = min(16, each * size)
    requests_in_block = block * size // (32 * vector)
    # A request covers 32 * vector bytes that lie side by side: as many sectors as 32-byte pieces.
    for kind, arg in (("load", "arg0"), ("store", "arg1")):
        found = sites(c, kind, arg=arg)
        assert len(found) == requests_in_block // (threads // 32)
        assert total(found, "lanes") == n * size // vector
        assert total(found, "sectors") == n * size // 32
        assert total(found, "ideal") == n * size // 32
        assert {s.bytes_per_lane for s in found} == {vector}
        full = n // (32 * vector // size)
        partial = n % (32 * vector // size) > 0
        assert total(found, "requests") == full + partial
    assert c.flops == ({"fp32": 8192} if dtype == "float32" else c.flops)
    assert c.branches == c.divergent_branches == c.barriers == 0
    warps = 8 * threads // 32
    assert c.instructions["global_load"] == c.instructions["global_store"] == warps * len(found)
    assert c.coverage == 1
    check_lines(c)


# 2. Strided


@triton.jit
def every(x, y, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * stride))


@pytest.mark.parametrize("stride", [2, 3, 5, 8, 32])
def test_strided(stride: int) -> None:
    n = 2048
    x, y = np.zeros(n * stride, np.float32), np.zeros(n, np.float32)
    c = counted(compile_triton(every, [x, y, stride], {"BLOCK": 128}), (16,), x, y, stride)
    loads = sites(c, "load")
    # 32 lanes that are 4 * stride bytes apart, in requests whose lanes are neighbours.
    starts = np.arange(n // 32) * 32 * stride * 4
    addresses = starts[:, None] + np.arange(32) * stride * 4
    expected = sum(len(np.unique(row // 32)) for row in addresses)
    assert total(loads, "requests") == n // 32
    assert total(loads, "sectors") == expected
    assert total(loads, "ideal") == n * 4 // 32
    if stride >= 8:
        assert expected == n
    check_lines(c)


# 3. Transpose, naive and tiled


@triton.jit
def transpose_rows(x, y, M, N: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    tl.store(y + at * M + row, tl.load(x + row * N + at))


def test_transpose_naive() -> None:
    M, N = 256, 128
    x = np.arange(M * N, dtype=np.float32).reshape(M, N)
    y = np.zeros((N, M), np.float32)
    c = counted(compile_triton(transpose_rows, [x, y, M], {"N": N}, num_warps=1), (M,), x, y, M)
    assert (y == x.T).all()
    assert total(sites(c, "load"), "sectors") == M * N * 4 // 32
    # Neighbouring lanes write 4 * M bytes apart: a sector for each element.
    assert total(sites(c, "store"), "sectors") == M * N
    assert total(sites(c, "store"), "ideal") == M * N * 4 // 32
    check_lines(c)


@triton.jit
def transpose_tiles(x, y, M, N, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    tile = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.store(y + columns[:, None] * M + rows[None, :], tl.trans(tile))


def test_transpose_tiled() -> None:
    M, N, B = 256, 128, 32
    x = np.arange(M * N, dtype=np.float32).reshape(M, N)
    y = np.zeros((N, M), np.float32)
    program = compile_triton(transpose_tiles, [x, y, M, N], {"B": B})
    c = counted(program, (M // B, N // B), x, y, M, N)
    assert (y == x.T).all()
    for kind in ("load", "store"):
        assert total(sites(c, kind), "sectors") == M * N * 4 // 32
        assert total(sites(c, kind), "ideal") == M * N * 4 // 32
    for kind in ("load", "store"):
        shared = sites(c, kind, "shared")
        assert sum(s.lanes * s.bytes_per_lane for s in shared) == M * N * 4
        assert total(shared, "wavefronts") >= total(shared, "ideal") == M * N * 4 // 128
    ctas = M * N // B**2
    assert c.barriers == 4 * ctas * program.ptx.count("bar.sync")
    check_lines(c)


# 4. Reduction, softmax


@triton.jit
def row_sums(x, y, N: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    tl.store(y + row, tl.sum(tl.load(x + row * N + at), 0))


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_reduction(warps: int) -> None:
    rows, N = 24, 2048
    x, y = np.ones((rows, N), np.float32), np.zeros(rows, np.float32)
    program = compile_triton(row_sums, [x, y], {"N": N}, num_warps=warps)
    c = counted(program, (rows,), x, y)
    assert (y == N).all()
    threads = 32 * warps
    assert total(sites(c, "load"), "sectors") == rows * N * 4 // 32
    assert total(sites(c, "store"), "lanes") == rows
    assert total(sites(c, "store"), "sectors") == rows
    # Adds: each thread sums its elements, then log2(32) steps in a warp and log2(warps) between.
    between = warps.bit_length() - 1
    each = N // threads - 1 + 5 + between
    assert c.flops == {"fp32": rows * threads * each}
    assert c.instructions["shuffle"] == rows * warps * (5 + between)
    barriers = program.ptx.count("bar.sync")
    assert c.barriers == rows * warps * barriers
    assert (barriers > 0) == (warps > 1)
    check_lines(c)


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, BLOCK)
    v = tl.load(x + row + at, mask=at < n, other=-float("inf"))
    power = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + at, power / tl.sum(power, 0), mask=at < n)


def test_softmax() -> None:
    rows, n = 40, 1024
    x = np.random.default_rng(0).standard_normal((rows, n)).astype(np.float32)
    y = np.zeros_like(x)
    c = counted(compile_triton(softmax, [x, y, n], {"BLOCK": n}), (rows,), x, y, n)
    for kind in ("load", "store"):
        assert total(sites(c, kind), "sectors") == rows * n * 4 // 32
        assert total(sites(c, kind), "requests") == rows * n // 128
    # One exponential and one division for each element.
    assert 32 * c.opcodes["ex2.approx.f32"] == rows * n
    assert 32 * c.opcodes["div.full.f32"] == rows * n
    # Two reductions over 4 warps: 5 + 2 steps each.
    assert c.instructions["shuffle"] == 2 * rows * 4 * (5 + 2)
    check_lines(c)


# 5. Column sums with atomics


@triton.jit
def column_sums(x, y, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tile = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.atomic_add(y + columns, tl.sum(tile, 0))


def test_column_sums_with_atomics() -> None:
    M, N, BM, BN = 512, 256, 64, 128
    x, y = np.ones((M, N), np.float32), np.zeros(N, np.float32)
    c = counted(compile_triton(column_sums, [x, y, N], {"BM": BM, "BN": BN}), (8, 2), x, y, N)
    assert (y == M).all()
    assert total(sites(c, "load"), "sectors") == M * N * 4 // 32
    found = sites(c, "atomic")
    assert total(found, "lanes") == N * (M // BM)
    assert total(found, "sectors") == N * (M // BM) * 4 // 32
    assert {s.max_conflict for s in found if s.lanes} == {1}
    assert total(found, "conflicts") == 0
    assert {s.args for s in found if s.lanes} == {("arg1",)}
    kinds = Counter(c.lines["kind"].tolist())
    assert set(kinds) == {KIND_LOAD, KIND_ATOMIC}
    check_lines(c)


@triton.jit
def count_all(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + at * 0, tl.load(x + at))


def test_contended_atomics() -> None:
    x, y = np.ones(1024, np.int32), np.zeros(1, np.int32)
    c = counted(compile_triton(count_all, [x, y], {"BLOCK": 256}), (4,), x, y)
    assert y[0] == 1024
    found = sites(c, "atomic")
    requests = 1024 // 32
    assert total(found, "requests") == requests
    assert max(s.max_conflict for s in found) == 32
    assert total(found, "conflicts") == 31 * requests
    assert total(found, "sectors") == requests


# 6. Matrix product


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    result = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + k[None, :])
        right = tl.load(b + k[:, None] * N + columns[None, :])
        result = tl.dot(left, right, result)
    tl.store(c + rows[:, None] * N + columns[None, :], result.to(tl.float16))


def test_matmul() -> None:
    M, N, K, BM, BN, BK = 128, 192, 160, 64, 64, 32
    a, b = np.ones((M, K), np.float16), np.ones((K, N), np.float16)
    c = np.zeros((M, N), np.float16)
    arguments = [a, b, c, M, N, K]
    program = compile_triton(matmul, arguments, {"BM": BM, "BN": BN, "BK": BK})
    counters = counted(program, (M // BM, N // BN), *arguments)
    assert (c == K).all()
    assert counters.flops["mma_fp16"] == 2 * M * N * K
    assert counters.instructions["mma"] == M * N * K // (16 * 8 * 16)
    # Every block of rows reads all of B, every block of columns all of A.
    copies = sites(counters, "cp_async")
    assert sum(s.sectors for s in copies if s.args == ("arg0",)) == N // BN * M * K * 2 // 32
    assert sum(s.sectors for s in copies if s.args == ("arg1",)) == M // BM * K * N * 2 // 32
    assert total(copies, "lanes") == (N // BN * M * K + M // BM * K * N) * 2 // 16
    assert total(sites(counters, "store"), "sectors") == M * N * 2 // 32
    # Warps of 2 x 2: each fragment of A is read by two warps, each of B by two.
    # Newer versions of Triton read the first 16 columns of the next tile ahead: in vain at last.
    ctas = M // BM * (N // BN)
    matrices = sites(counters, "ldmatrix", "shared")
    moved = sum(s.requests * 32 * s.bytes_per_lane for s in matrices)
    assert moved in {ctas * k * (2 * BM + 2 * BN) * 2 for k in (K, K + 16)}
    assert total(matrices, "wavefronts") == total(matrices, "ideal"), "swizzled: no conflicts"
    check_lines(counters)


# Any pattern, counted by brute force.


def pattern(size: int, space: str) -> Program:
    """Every lane reads its place and flag, then loads and stores `size` bytes there."""
    vector = {1: "u8", 2: "u16", 4: "u32", 8: "v2.u32", 16: "v4.u32"}[size]
    register = {1: "%h1", 2: "%h1", 4: "%r1", 8: "{%r1, %r2}", 16: "{%r1, %r2, %r3, %r4}"}[size]
    base = "add.s64 %rd8, %rd7, %rd0;"
    if space == "shared":
        base = "mov.u32 %r5, buffer; cvt.u64.u32 %rd9, %r5; add.s64 %rd8, %rd7, %rd9;"
    text = f"""
.version 8.4
.target sm_80
.address_size 64
.shared .align 16 .b8 buffer[4096];
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2)
.reqntid 32
{{
.reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<40>; .reg .b64 %rd<40>;
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];
mov.u32 %r9, %tid.x; mul.wide.u32 %rd5, %r9, 4;
add.s64 %rd6, %rd1, %rd5; ld.global.u32 %r10, [%rd6];
add.s64 %rd6, %rd2, %rd5; ld.global.u32 %r11, [%rd6]; setp.ne.u32 %p1, %r11, 0;
mul.wide.u32 %rd7, %r10, {size}; {base}
@%p1 ld.{space}.{vector} {register}, [%rd8];
@%p1 st.{space}.{vector} [%rd8], {register};
ret;
}}
"""
    return Program(text, "k", 32, 0)


def wavefronts(addresses: list[int], size: int) -> tuple[int, int]:
    """Passes and the least passes, lane group by lane group, word by word."""
    passes = least = 0
    group = 32 if size <= 4 else 128 // size
    for first in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for address in addresses[first : first + group]:
            if address >= 0:
                for word in range(address // 4, (address + max(size, 1) - 1) // 4 + 1):
                    banks.setdefault(word % 32, set()).add(word)
        passes += max((len(words) for words in banks.values()), default=0)
        least += bool(banks)
    return passes, least


PLACES = st.one_of(
    st.lists(st.integers(0, 200), min_size=32, max_size=32),
    st.integers(0, 100).map(lambda first: list(range(first, first + 32))),
    st.tuples(st.integers(0, 7), st.integers(0, 6)).map(
        lambda t: [t[0] + i * t[1] for i in range(32)]
    ),
    st.integers(0, 200).map(lambda place: [place] * 32),
)
FLAGS = st.one_of(
    st.just([True] * 32),
    st.lists(st.booleans(), min_size=32, max_size=32),
    st.integers(0, 32).map(lambda n: [i < n for i in range(32)]),
)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@FAST
@given(PLACES, FLAGS)
def test_global_patterns(size: int, places: list[int], flags: list[bool]) -> None:
    data = np.zeros(4096, np.uint8)
    where, on = np.array(places, np.uint32), np.array(flags, np.uint32)
    c = counted(pattern(size, "global"), (1,), data, where, on)
    addresses = [FIRST_ADDRESS + p * size for p, f in zip(places, flags, strict=True) if f]
    sectors = {a // 32 for a in addresses}
    for kind, code in (("load", KIND_LOAD), ("store", KIND_STORE)):
        site = [s for s in c.sites if s.kind == kind][-1]
        assert site.requests == bool(addresses)
        assert site.lanes == len(addresses)
        assert site.sectors == len(sectors)
        # Scattered bytes count in pairs.
        least = {-(-len({a // g for a in addresses}) * g // 32) for g in (size, max(size, 2))}
        assert site.ideal in least
        rows = c.lines[c.lines["order"] == (2 if kind == "load" else 3)]
        if addresses:
            lines: dict[int, int] = {}
            for sector in sectors:
                lines[sector // 4] = lines.get(sector // 4, 0) | 1 << sector % 4
            assert dict(zip(rows["line"].tolist(), rows["sectors"].tolist(), strict=True)) == lines
            assert set(rows["kind"].tolist()) == {code}
            assert site.args == ("arg0",)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@FAST
@given(PLACES, FLAGS)
def test_shared_patterns(size: int, places: list[int], flags: list[bool]) -> None:
    data = np.zeros(4, np.uint8)
    where, on = np.array(places, np.uint32), np.array(flags, np.uint32)
    c = counted(pattern(size, "shared"), (1,), data, where, on)
    addresses = [p * size if f else -1 for p, f in zip(places, flags, strict=True)]
    for kind in ("load", "store"):
        (site,) = sites(c, kind, "shared")
        assert site.lanes == sum(flags)
        assert (site.wavefronts, site.ideal) == wavefronts(addresses, size)


# Instructions, branches, sampling


def ptx(body: str, threads: int = 64) -> Program:
    text = f"""
.version 8.4
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0)
.reqntid {threads}
{{
.reg .pred %p<10>; .reg .f32 %f<10>; .reg .b32 %r<40>; .reg .b64 %rd<40>;
ld.param.u64 %rd0, [p0];
mov.u32 %r0, %tid.x;
{body}
ret;
}}
"""
    return Program(text, "k", threads, 0)


def test_branches_and_predicates() -> None:
    """Two warps; in the first one lanes 0 to 9 leave the path, the second stays together."""
    out = np.zeros(64, np.uint32)
    body = """
    setp.lt.u32 %p1, %r0, 10;
    @%p1 bra SKIP;
    add.u32 %r1, %r0, 1;
    SKIP:
    setp.eq.u32 %p2, %r0, 3;
    @%p2 add.u32 %r2, %r0, 1;
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r0;
    """
    c = counted(ptx(body), (5,), out)
    assert c.branches == 5 * 2
    assert c.divergent_branches == 5
    # Lanes: the add after the branch misses 10 lanes, the predicated one runs in one lane. The
    # branch is executed by the ten lanes whose predicate holds.
    every_lane = 64 * 8
    assert c.thread_instructions == 5 * (every_lane + 10 + 54 + 1)
    assert c.opcodes["add.u32"] == 5 * 2 * 2
    assert c.opcodes["st.global.u32"] == 5 * 2


def test_selects_say_when_all_lanes_agreed() -> None:
    out = np.zeros(64, np.uint32)
    body = """
    setp.lt.u32 %p1, %r0, 32; selp.b32 %r1, 1, 2, %p1;
    setp.lt.u32 %p2, %r0, 40; selp.b32 %r2, 1, 2, %p2;
    mov.u32 %r5, %ctaid.x; setp.eq.u32 %p3, %r5, 1; selp.b32 %r3, 1, 2, %p3;
    add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r1;
    """
    c = counted(ptx(body), (3,), out)
    selects = [s for s in c.sites if s.kind == "select"]
    assert [(s.requests, s.uniform_true, s.uniform_false) for s in selects] == [
        (6, 3, 3), (6, 3, 0), (6, 2, 4),
    ]  # fmt: skip


def test_flops_by_type() -> None:
    out = np.zeros(64, np.uint32)
    body = """
    .reg .f64 %d<4>; .reg .b16 %h<4>;
    cvt.rn.f32.u32 %f0, %r0; fma.rn.f32 %f1, %f0, %f0, %f0; add.f32 %f1, %f1, %f0;
    cvt.f64.f32 %d0, %f1; mul.f64 %d1, %d0, %d0; ex2.approx.f32 %f2, %f1;
    fma.rn.f16x2 %r1, %r0, %r0, %r0;
    add.f32 %f3, %f1, %f2; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0;
    st.global.f32 [%rd1], %f3;
    """
    c = counted(ptx(body), (1,), out)
    assert c.flops == {"fp32": 64 * 5, "fp64": 64, "fp16": 64 * 4}
    assert c.instructions["sfu"] == 2
    assert c.instructions["convert"] == 4


def test_sampled_ctas_scale_to_the_grid() -> None:
    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    y = np.zeros_like(x)
    program = compile_triton(softmax, [x, y, 1024], {"BLOCK": 1024})
    whole = counted(program, (64,), x, y, 1024)
    some = counted(program, (64,), x, y, 1024, ctas=[0, 9, 33, 63])
    assert some.coverage == 4 / 64
    assert some.instructions == whole.instructions
    assert some.opcodes == whole.opcodes
    assert [s.sectors for s in some.sites] == [s.sectors for s in whole.sites]
    assert some.thread_instructions == whole.thread_instructions
    assert set(some.lines["cta"].tolist()) == {0, 9, 33, 63}


def test_counters_do_not_depend_on_the_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal((33, 1000)).astype(np.float32)
    y = np.zeros_like(x)
    program = compile_triton(softmax, [x, y, 1000], {"BLOCK": 1024})
    one = counted(program, (33,), x, y, 1000, threads=1)
    many = counted(program, (33,), x, y, 1000, threads=4)
    assert one.sites == many.sites
    assert one.instructions == many.instructions
    assert (one.lines == many.lines).all()


def test_a_long_line_log_is_thinned_by_the_hash_of_the_line() -> None:
    n = 1 << 23
    x = np.zeros(n, np.float32)
    y = np.zeros(n, np.float32)
    program = compile_triton(scale, [x, y, n], {"BLOCK": 1024})
    c = counted(program, (n // 1024,), x, y, n, threads=2)
    rate = c.line_sampling
    assert rate > 1
    assert (line_hash(c.lines["line"]) % np.uint64(rate) == 0).all()
    bases = [FIRST_ADDRESS, 0]
    bases[1] = next_address(bases[0] + x.nbytes, y.nbytes)
    every_line = np.concatenate(
        [np.arange(n * 4 // 128, dtype=np.uint64) + b // 128 for b in bases]
    )
    kept = every_line[line_hash(every_line) % np.uint64(rate) == 0]
    assert (np.sort(c.lines["line"]) == np.sort(kept)).all()
    assert total(sites(c, "load"), "sectors") == n * 4 // 32, "sums are not sampled"
    thin = counted(program, (n // 1024,), x, y, n, line_sampling=4 * rate)
    assert thin.line_sampling == 4 * rate
    assert len(thin.lines) == (line_hash(kept) % np.uint64(4 * rate) == 0).sum()
