"""Each PTX instruction against exact arithmetic on integers and fractions."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.arrays import Program

WIDTH = {
    "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32,
    "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "b64": 64, "u64": 64, "s64": 64,
    "f64": 64,
}  # fmt: skip
FAST = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


# A harness: 32 lanes load operands, run a few instructions and store results.


@cache
def program(body: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Program:
    """Registers %a0, %a1, … hold the inputs and %d0, … the outputs; %p0…%p9 are predicates."""
    lines = []
    names = [*(f"%a{i}" for i in range(len(inputs))), *(f"%d{i}" for i in range(len(outputs)))]
    for name, kind in zip(names, (*inputs, *outputs), strict=True):
        lines.append(f".reg .b{max(16, WIDTH[kind])} {name};")
    lines += [
        ".reg .pred %p<10>; .reg .b32 %t<2>; .reg .b64 %rd<4>; .reg .b32 %r<10>; .reg .b16 %h<10>;",
        "mov.u32 %t0, %tid.x; cvt.u64.u32 %rd0, %t0; shl.b64 %rd1, %rd0, 3;",
    ]
    for i, kind in enumerate(inputs):
        lines.append(f"ld.param.u64 %rd2, [p{i}]; add.s64 %rd2, %rd2, %rd1;")
        lines.append(f"ld.global.b{WIDTH[kind]} %a{i}, [%rd2];")
    lines.append(body)
    for i, kind in enumerate(outputs):
        position = len(inputs) + i
        lines.append(f"ld.param.u64 %rd2, [p{position}]; add.s64 %rd2, %rd2, %rd1;")
        lines.append(f"st.global.b{WIDTH[kind]} [%rd2], %d{i};")
    count = len(inputs) + len(outputs)
    params = ", ".join(f".param .u64 p{i}" for i in range(count))
    text = "\n".join(lines)
    ptx = (
        f".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k({params})\n"
        f".reqntid 32\n{{\n{text}\nret;\n}}\n"
    )
    return Program(ptx, "k", 32, 0)


def execute(
    body: str, inputs: Sequence[tuple[str, Sequence[int]]], outputs: Sequence[str]
) -> list[list[int]]:
    """Bits of each output, lane by lane."""
    kinds = tuple(kind for kind, _ in inputs)
    arrays = []
    for kind, lanes in inputs:
        mask = (1 << WIDTH[kind]) - 1
        arrays.append(np.array([value & mask for value in lanes], np.uint64))
    results = [np.zeros(32, np.uint64) for _ in outputs]
    done = program(body, kinds, tuple(outputs)).run((1,), *arrays, *results)
    assert not done.findings
    return [
        [int(v) & ((1 << WIDTH[kind]) - 1) for v in array]
        for kind, array in zip(outputs, results, strict=True)
    ]


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def number(value: int, kind: str) -> int:
    """The integer that the bits stand for in a type."""
    return signed(value, WIDTH[kind]) if kind[0] == "s" else value & ((1 << WIDTH[kind]) - 1)


def words(width: int) -> st.SearchStrategy[list[int]]:
    """32 integers with the corners that break things."""
    top = 1 << width
    corners = [0, 1, 2, 31, 32, 33, top - 1, top // 2, top // 2 - 1, top // 2 + 1, 255, 63, 64]
    one = st.one_of(
        st.integers(0, top - 1), st.sampled_from([c % top for c in corners]), st.integers(0, 70)
    )
    return st.lists(one, min_size=32, max_size=32)


# Integers


def divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def shift_left(a: int, b: int, width: int) -> int:
    return a << b if b < width else 0


BINARY: dict[str, Callable[[int, int, int], int | None]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul.lo": lambda a, b, w: a * b,
    "mul.hi": lambda a, b, w: (a * b) >> w,
    "min": lambda a, b, w: min(a, b),
    "max": lambda a, b, w: max(a, b),
    "div": lambda a, b, w: divide(a, b) if b else -1,
    "rem": lambda a, b, w: a - b * divide(a, b) if b else None,
}


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", BINARY)
@FAST
@given(st.data())
def test_binary_integers(name: str, kind: str, data: st.DataObject) -> None:
    width = WIDTH[kind]
    a, b = data.draw(words(width)), data.draw(words(width))
    (got,) = execute(f"{name}.{kind} %d0, %a0, %a1;", [(kind, a), (kind, b)], [kind])
    for x, y, result in zip(a, b, got, strict=True):
        expected = BINARY[name](number(x, kind), number(y, kind), width)
        if expected is not None:
            assert result == expected & ((1 << width) - 1), (name, kind, x, y)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
@FAST
@given(st.data())
def test_wide_products(kind: str, data: st.DataObject) -> None:
    width = WIDTH[kind]
    double = f"{kind[0]}{2 * width}"
    a, b = data.draw(words(width)), data.draw(words(width))
    c = data.draw(words(2 * width))
    body = f"mul.wide.{kind} %d0, %a0, %a1; mad.wide.{kind} %d1, %a0, %a1, %a2;"
    got = execute(body, [(kind, a), (kind, b), (double, c)], [double, double])
    for x, y, z, product, total in zip(a, b, c, *got, strict=True):
        exact = number(x, kind) * number(y, kind)
        assert product == exact & ((1 << 2 * width) - 1)
        assert total == (exact + z) & ((1 << 2 * width) - 1)


def funnel(a: int, b: int, n: int, left: bool, clamp: bool) -> int:
    n = min(n, 32) if clamp else n & 31
    pair = b << 32 | a
    return (pair << n >> 32 if left else pair >> n) & 0xFFFFFFFF


def field(a: int, start: int, length: int, width: int, is_signed: bool) -> int:
    start, length = start & 255, length & 255
    if not length:
        return 0
    a = signed(a, width) if is_signed else a
    last = min(start + length, width) if is_signed else start + length
    if start >= width:
        return (-1 if a < 0 else 0) if is_signed else 0
    piece = (a >> start) & ((1 << (last - start)) - 1)
    return signed(piece, last - start) if is_signed else piece


def insert(a: int, b: int, start: int, length: int, width: int) -> int:
    start, length = start & 255, length & 255
    mask = ((1 << length) - 1) << start & ((1 << width) - 1)
    return b & ~mask | a << start & mask


def permute(a: int, b: int, selector: int) -> int:
    pool = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for n in range(4):
        pick = selector >> (4 * n) & 15
        byte = pool[pick & 7]
        if pick & 8:
            byte = 255 if byte & 128 else 0
        out |= byte << (8 * n)
    return out


def table(a: int, b: int, c: int, lut: int) -> int:
    out = 0
    for bit in range(32):
        row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1
        out |= (lut >> row & 1) << bit
    return out


def high_bit(a: int, width: int, is_signed: bool) -> int:
    a = signed(a, width) if is_signed else a
    if a < 0:
        a = ~a
    return a.bit_length() - 1


BITS: list[tuple[str, str, str, Callable[[int, int, int], int]]] = [
    # Instruction, types of its inputs, type of its result, reference.
    ("and.b32", "b32 b32", "b32", lambda a, b, c: a & b),
    ("xor.b64", "b64 b64", "b64", lambda a, b, c: a ^ b),
    ("or.b16", "b16 b16", "b16", lambda a, b, c: a | b),
    ("not.b32", "b32", "b32", lambda a, b, c: ~a),
    ("cnot.b32", "b32", "b32", lambda a, b, c: int(a == 0)),
    ("neg.s64", "s64", "s64", lambda a, b, c: -a),
    ("abs.s32", "s32", "s32", lambda a, b, c: abs(signed(a, 32))),
    ("shl.b32", "b32 b32", "b32", lambda a, b, c: shift_left(a, b, 32)),
    ("shl.b64", "b64 b32", "b64", lambda a, b, c: shift_left(a, b, 64)),
    ("shl.b16", "b16 b32", "b16", lambda a, b, c: shift_left(a, b, 16)),
    ("shr.u32", "u32 b32", "u32", lambda a, b, c: a >> min(b, 64)),
    ("shr.s32", "s32 b32", "s32", lambda a, b, c: signed(a, 32) >> min(b, 64)),
    ("shr.s64", "s64 b32", "s64", lambda a, b, c: signed(a, 64) >> min(b, 64)),
    ("shr.s16", "s16 b32", "s16", lambda a, b, c: signed(a, 16) >> min(b, 64)),
    ("shf.l.wrap.b32", "b32 b32 b32", "b32", lambda a, b, c: funnel(a, b, c, True, False)),
    ("shf.r.wrap.b32", "b32 b32 b32", "b32", lambda a, b, c: funnel(a, b, c, False, False)),
    ("shf.l.clamp.b32", "b32 b32 b32", "b32", lambda a, b, c: funnel(a, b, c, True, True)),
    ("shf.r.clamp.b32", "b32 b32 b32", "b32", lambda a, b, c: funnel(a, b, c, False, True)),
    ("popc.b32", "b32", "u32", lambda a, b, c: a.bit_count()),
    ("popc.b64", "b64", "u32", lambda a, b, c: a.bit_count()),
    ("clz.b32", "b32", "u32", lambda a, b, c: 32 - a.bit_length()),
    ("clz.b64", "b64", "u32", lambda a, b, c: 64 - a.bit_length()),
    ("brev.b32", "b32", "b32", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", "b64", "b64", lambda a, b, c: int(f"{a:064b}"[::-1], 2)),
    ("bfind.u32", "u32", "u32", lambda a, b, c: high_bit(a, 32, False)),
    ("bfind.s32", "s32", "u32", lambda a, b, c: high_bit(a, 32, True)),
    ("bfind.u64", "u64", "u32", lambda a, b, c: high_bit(a, 64, False)),
    ("bfind.shiftamt.u32", "u32", "u32", lambda a, b, c: 31 - high_bit(a, 32, False) if a else -1),
    ("bfe.u32", "u32 b32 b32", "u32", lambda a, b, c: field(a, b, c, 32, False)),
    ("bfe.s32", "s32 b32 b32", "s32", lambda a, b, c: field(a, b, c, 32, True)),
    ("bfe.u64", "u64 b32 b32", "u64", lambda a, b, c: field(a, b, c, 64, False)),
    ("bfe.s64", "s64 b32 b32", "s64", lambda a, b, c: field(a, b, c, 64, True)),
    ("bmsk.clamp.b32", "b32 b32", "b32",
     lambda a, b, c: ((1 << min(b, 32)) - 1) << min(a, 64) & 0xFFFFFFFF),
    ("prmt.b32", "b32 b32 b32", "b32", permute),
    ("prmt.b32.f4e", "b32 b32 b32", "b32",
     lambda a, b, c: permute(a, b, 0x3210 + 0x1111 * (c & 3))),
    ("prmt.b32.b4e", "b32 b32 b32", "b32",
     lambda a, b, c: permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][c & 3])),
    ("prmt.b32.rc8", "b32 b32 b32", "b32", lambda a, b, c: permute(a, b, 0x1111 * (c & 3))),
    ("prmt.b32.ecl", "b32 b32 b32", "b32",
     lambda a, b, c: permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][c & 3])),
    ("prmt.b32.ecr", "b32 b32 b32", "b32",
     lambda a, b, c: permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][c & 3])),
    ("prmt.b32.rc16", "b32 b32 b32", "b32",
     lambda a, b, c: permute(a, b, [0x1010, 0x3232, 0x1010, 0x3232][c & 3])),
    ("sad.s32", "s32 s32 s32", "s32", lambda a, b, c: c + abs(signed(a, 32) - signed(b, 32))),
    ("sad.u32", "u32 u32 u32", "u32", lambda a, b, c: c + abs(a - b)),
    ("mul24.lo.u32", "u32 u32", "u32", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    ("mul24.hi.s32", "s32 s32", "s32", lambda a, b, c: signed(a, 24) * signed(b, 24) >> 16),
    ("mad24.lo.s32", "s32 s32 s32", "s32", lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
    ("add.sat.s32", "s32 s32", "s32",
     lambda a, b, c: max(-(1 << 31), min((1 << 31) - 1, signed(a, 32) + signed(b, 32)))),
    ("sub.sat.s32", "s32 s32", "s32",
     lambda a, b, c: max(-(1 << 31), min((1 << 31) - 1, signed(a, 32) - signed(b, 32)))),
    ("mad.lo.s32", "s32 s32 s32", "s32", lambda a, b, c: a * b + c),
    ("mad.hi.s32", "s32 s32 s32", "s32",
     lambda a, b, c: (signed(a, 32) * signed(b, 32) >> 32) + c),
    ("dp4a.s32.s32", "b32 b32 s32", "s32",
     lambda a, b, c: c + sum(signed(a >> s, 8) * signed(b >> s, 8) for s in (0, 8, 16, 24))),
    ("dp4a.u32.s32", "b32 b32 s32", "s32",
     lambda a, b, c: c + sum((a >> s & 255) * signed(b >> s, 8) for s in (0, 8, 16, 24))),
    ("dp2a.hi.s32.u32", "b32 b32 s32", "s32",
     lambda a, b, c: c + signed(a, 16) * (b >> 16 & 255) + signed(a >> 16, 16) * (b >> 24)),
    ("slct.b32.s32", "b32 b32 s32", "b32", lambda a, b, c: a if signed(c, 32) >= 0 else b),
    ("cvt.s64.s32", "s32", "s64", lambda a, b, c: signed(a, 32)),
    ("cvt.u64.u32", "u32", "u64", lambda a, b, c: a),
    ("cvt.u16.u32", "u32", "u16", lambda a, b, c: a),
    ("cvt.s32.s8", "s8", "s32", lambda a, b, c: signed(a, 8)),
    ("cvt.sat.s8.s32", "s32", "s8", lambda a, b, c: max(-128, min(127, signed(a, 32)))),
    ("cvt.sat.u8.s32", "s32", "u8", lambda a, b, c: max(0, min(255, signed(a, 32)))),
    ("cvt.sat.s32.u32", "u32", "s32", lambda a, b, c: min(a, (1 << 31) - 1)),
    ("cvt.sat.u16.s64", "s64", "u16", lambda a, b, c: max(0, min(65535, signed(a, 64)))),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "kinds", "result", "reference"), BITS, ids=[b[0] for b in BITS])
@FAST
@given(st.data())
def test_bits(
    opcode: str,
    kinds: str,
    result: str,
    reference: Callable[[int, int, int], int],
    data: st.DataObject,
) -> None:
    inputs = [(kind, data.draw(words(WIDTH[kind]))) for kind in kinds.split()]
    operands = ", ".join(f"%a{i}" for i in range(len(inputs)))
    (got,) = execute(f"{opcode} %d0, {operands};", inputs, [result])
    for lane in range(32):
        a, b, c = (*(values[lane] for _, values in inputs), 0, 0, 0)[:3]
        expected = reference(a, b, c) & ((1 << WIDTH[result]) - 1)
        assert got[lane] == expected, (opcode, a, b, c)


@pytest.mark.parametrize("lut", [0x00, 0x96, 0xE8, 0x3C, 0xCA, 0x80, 0xFF, 0x1B])
@FAST
@given(words(32), words(32), words(32))
def test_lop3(lut: int, a: list[int], b: list[int], c: list[int]) -> None:
    body = f"lop3.b32 %d0, %a0, %a1, %a2, {lut};"
    (got,) = execute(body, [("b32", a), ("b32", b), ("b32", c)], ["b32"])
    assert got == [table(x, y, z, lut) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("width", [32, 64])
@FAST
@given(st.data())
def test_bit_field_insert(width: int, data: st.DataObject) -> None:
    a, b = data.draw(words(width)), data.draw(words(width))
    start, length = data.draw(words(32)), data.draw(words(32))
    body = f"bfi.b{width} %d0, %a0, %a1, %a2, %a3;"
    kinds = [f"b{width}", f"b{width}", "b32", "b32"]
    inputs = list(zip(kinds, (a, b, start, length), strict=True))
    (got,) = execute(body, inputs, [f"b{width}"])
    assert got == [insert(*lane, width) for lane in zip(a, b, start, length, strict=True)]


@FAST
@given(words(64), words(64))
def test_carry_chains(a: list[int], b: list[int]) -> None:
    body = """
    mov.b64 {%r0, %r1}, %a0; mov.b64 {%r2, %r3}, %a1;
    add.cc.u32 %r4, %r0, %r2; addc.u32 %r5, %r1, %r3; mov.b64 %d0, {%r4, %r5};
    sub.cc.u32 %r4, %r0, %r2; subc.u32 %r5, %r1, %r3; mov.b64 %d1, {%r4, %r5};
    mad.lo.cc.u32 %r4, %r0, %r2, %r1; madc.hi.u32 %r5, %r0, %r2, 0; mov.b64 %d2, {%r4, %r5};
    """
    total, difference, product = execute(body, [("b64", a), ("b64", b)], ["b64"] * 3)
    mask = (1 << 64) - 1
    for n, (x, y) in enumerate(zip(a, b, strict=True)):
        assert total[n] == (x + y) & mask
        assert difference[n] == (x - y) & mask
        assert product[n] == ((x & 0xFFFFFFFF) * (y & 0xFFFFFFFF) + (x >> 32)) & mask


# Floats: bits to exact fractions and back.


class Format:
    """An IEEE-like binary format."""

    def __init__(self, exponent: int, mantissa: int) -> None:
        self.exponent, self.mantissa = exponent, mantissa
        self.bias = (1 << (exponent - 1)) - 1
        self.width = 1 + exponent + mantissa
        self.infinity = ((1 << exponent) - 1) << mantissa

    def split(self, bits: int) -> tuple[int, int, int]:
        return (
            bits >> (self.width - 1),
            bits >> self.mantissa & ((1 << self.exponent) - 1),
            bits & ((1 << self.mantissa) - 1),
        )

    def is_nan(self, bits: int) -> bool:
        return bits & ((1 << (self.width - 1)) - 1) > self.infinity

    def is_finite(self, bits: int) -> bool:
        return bits & ((1 << (self.width - 1)) - 1) < self.infinity

    def fraction(self, bits: int) -> Fraction:
        sign, exponent, mantissa = self.split(bits)
        if exponent:
            mantissa |= 1 << self.mantissa
        scale = max(exponent, 1) - self.bias - self.mantissa
        value = Fraction(mantissa) * (Fraction(2) ** scale)
        return -value if sign else value

    def round(self, value: Fraction, mode: str = "rn", negative_zero: bool = False) -> int:
        """Bits of the value rounded once."""
        sign = value < 0 or (value == 0 and negative_zero)
        size = abs(value)
        bits = 0
        if size:
            exponent = math.floor(math.log2(size.numerator) - math.log2(size.denominator)) + 1
            while Fraction(2) ** exponent > size:
                exponent -= 1
            while Fraction(2) ** (exponent + 1) <= size:
                exponent += 1
            step = Fraction(2) ** (max(exponent, 1 - self.bias) - self.mantissa)
            count, rest = divmod(size, step)
            up = {
                "rn": rest * 2 > step or (rest * 2 == step and count % 2 == 1),
                "rz": False,
                "rm": sign and rest > 0,
                "rp": not sign and rest > 0,
            }[mode]
            total = (count + up) * step
            bits = self.encode(total, exponent if exponent >= 1 - self.bias else None)
            if bits >= self.infinity:
                inward = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and sign)
                bits = self.infinity - 1 if inward else self.infinity
        return bits | sign << (self.width - 1)

    def encode(self, size: Fraction, exponent: int | None) -> int:
        lowest = 1 - self.bias
        exponent = lowest if exponent is None else exponent
        count = size / (Fraction(2) ** (exponent - self.mantissa))
        assert count.denominator == 1
        whole = int(count)
        if exponent == lowest:
            return whole
        return ((exponent - lowest) << self.mantissa) + whole


FORMATS = {
    "f16": Format(5, 10), "bf16": Format(8, 7), "f32": Format(8, 23), "f64": Format(11, 52),
}  # fmt: skip


def floats(kind: str) -> st.SearchStrategy[list[int]]:
    """32 bit patterns: any, near one, near a tie of a narrower format, and the special ones."""
    form = FORMATS[kind]
    top = 1 << form.width
    one = form.bias << form.mantissa
    special = [0, 1, form.infinity, form.infinity + 1, form.infinity - 1, 1 << form.mantissa, one]
    special += [v | top >> 1 for v in special]
    near = st.integers(-(8 << form.mantissa), 8 << form.mantissa).map(lambda d: (one + d) % top)
    shifts = [form.mantissa - m for m in (7, 10, 23) if m < form.mantissa] or [4]
    tie = st.tuples(near, st.sampled_from(shifts), st.integers(-1, 1)).map(
        lambda t: ((t[0] >> t[1] << t[1] | 1 << (t[1] - 1)) + t[2]) % top
    )
    each = st.one_of(st.integers(0, top - 1), near, tie, st.sampled_from(special))
    return st.lists(each, min_size=32, max_size=32)


def check_float(kind: str, got: int, exact: Fraction | None, mode: str, what: object) -> None:
    """`exact` is None where the result must be NaN or is not finite: then nothing is checked."""
    if exact is None:
        return
    form = FORMATS[kind]
    expected = form.round(exact, mode)
    if exact == 0:
        assert got & ((1 << (form.width - 1)) - 1) == 0, what
    else:
        assert got == expected, (what, hex(got), hex(expected))


def root(value: Fraction) -> Fraction:
    """A square root to 1200 bits: enough to round it."""
    scale = 1 << 2400
    return Fraction(math.isqrt(value.numerator * scale // value.denominator), 1 << 1200)


EXACT: dict[str, Callable[..., Fraction | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else None,
    "fma": lambda a, b, c: a * b + c,
    "sqrt": lambda a: root(a) if a >= 0 else None,
    "rcp": lambda a: 1 / a if a else None,
}
MODES = ("rn", "rz", "rm", "rp")
FLOAT_CASES = [
    *(f"{op}.{mode}.f32" for op in ("add", "sub", "mul", "fma") for mode in MODES),
    *(f"{op}.{mode}.f32" for op in ("div", "sqrt", "rcp") for mode in MODES),
    *(f"{op}.rn.f64" for op in ("add", "sub", "mul", "fma", "div", "sqrt", "rcp")),
    *(f"{op}.{kind}" for op in ("add", "sub", "mul") for kind in ("f16", "bf16")),
    "fma.rn.f16", "fma.rn.bf16",
]  # fmt: skip


@pytest.mark.parametrize("opcode", FLOAT_CASES)
@FAST
@given(st.data())
def test_float_arithmetic_rounds_once(opcode: str, data: st.DataObject) -> None:
    parts = opcode.split(".")
    kind = parts[-1]
    mode = parts[1] if len(parts) == 3 else "rn"
    count = EXACT[parts[0]].__code__.co_argcount
    inputs = [(kind, data.draw(floats(kind))) for _ in range(count)]
    operands = ", ".join(f"%a{i}" for i in range(count))
    (got,) = execute(f"{opcode} %d0, {operands};", inputs, [kind])
    form = FORMATS[kind]
    for lane in range(32):
        bits = [values[lane] for _, values in inputs]
        if any(form.is_nan(b) for b in bits):
            assert form.is_nan(got[lane])
            continue
        if not all(form.is_finite(b) for b in bits):
            continue
        exact = EXACT[parts[0]](*(form.fraction(b) for b in bits))
        check_float(kind, got[lane], exact, mode, (opcode, [hex(b) for b in bits]))


@pytest.mark.parametrize(
    ("kind", "a", "b", "c", "expected"),
    [
        # The product is a tie, the addend far below what float32 holds decides it.
        ("f16", 3, 683, Fraction(1, 1 << 24), 2050),
        ("f16", 3, 683, 0, 2048),
        ("f16", 65, 63, -Fraction(1, 1 << 24), 4094),
        ("bf16", 9, 29, Fraction(1, 1 << 60), 262),
        ("bf16", 9, 29, 0, 260),
        ("bf16", 7, 37, -Fraction(1, 1 << 60), 258),
    ],
)
def test_short_fma_sees_the_smallest_addend(
    kind: str, a: int, b: int, c: Fraction, expected: int
) -> None:
    form = FORMATS[kind]
    inputs = [(kind, [form.round(Fraction(v))] * 32) for v in (a, b, c)]
    (got,) = execute(f"fma.rn.{kind} %d0, %a0, %a1, %a2;", inputs, [kind])
    assert form.fraction(got[0]) == expected


@pytest.mark.parametrize(("low", "expected"), [(1, 0x3C01), (0, 0x3C00), (-1, 0x3C00)])
def test_a_double_becomes_a_half_in_one_rounding(low: int, expected: int) -> None:
    """1 + 2^-11 is a tie between two halves; float32 would lose what decides it."""
    bits = (0x3FF << 52 | 1 << 41) + low
    (got,) = execute("cvt.rn.f16.f64 %d0, %a0;", [("f64", [bits] * 32)], ["f16"])
    assert got[0] == expected


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
@FAST
@given(st.data())
def test_pairs_are_two_halves(kind: str, data: st.DataObject) -> None:
    one = kind[:-2]
    columns = [data.draw(floats(one)) for _ in range(6)]
    pairs = [
        [low | high << 16 for low, high in zip(columns[n], columns[n + 1], strict=True)]
        for n in (0, 2, 4)
    ]
    (both,) = execute(f"fma.rn.{kind} %d0, %a0, %a1, %a2;", [(kind, p) for p in pairs], [kind])
    for part in (0, 1):
        inputs = [(one, columns[n + part]) for n in (0, 2, 4)]
        (single,) = execute(f"fma.rn.{one} %d0, %a0, %a1, %a2;", inputs, [one])
        assert [value >> (16 * part) & 0xFFFF for value in both] == single


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ["min", "max", "min.NaN", "max.NaN"])
@FAST
@given(st.data())
def test_extremes(name: str, kind: str, data: st.DataObject) -> None:
    if kind == "f64" and "NaN" in name:
        pytest.skip("PTX has no such instruction")
    a, b = data.draw(floats(kind)), data.draw(floats(kind))
    (got,) = execute(f"{name}.{kind} %d0, %a0, %a1;", [(kind, a), (kind, b)], [kind])
    form = FORMATS[kind]
    top = 1 << (form.width - 1)

    def order(bits: int) -> int:
        return -(bits - top) - 1 if bits & top else bits

    for x, y, result in zip(a, b, got, strict=True):
        nans = [form.is_nan(x), form.is_nan(y)]
        if all(nans) or (any(nans) and "NaN" in name):
            assert form.is_nan(result)
        elif any(nans):
            assert result == (y if nans[0] else x)
        else:
            pick = min if name.startswith("min") else max
            assert result == pick((x, y), key=order), (name, hex(x), hex(y))


CONVERSIONS = [
    *(f"cvt.{mode}.{to}.f32" for to in ("f16", "bf16") for mode in ("rn", "rz")),
    "cvt.rm.f16.f32", "cvt.rp.f16.f32", "cvt.f32.f16", "cvt.f64.f32", "cvt.f64.f16",
    "cvt.rn.f32.f64", "cvt.rz.f32.f64", "cvt.rm.f32.f64", "cvt.rp.f32.f64", "cvt.rn.f16.f64",
    "cvt.f32.bf16",
]  # fmt: skip


@pytest.mark.parametrize("opcode", CONVERSIONS)
@FAST
@given(st.data())
def test_conversions_between_floats(opcode: str, data: st.DataObject) -> None:
    parts = opcode.split(".")
    to, source = parts[-2], parts[-1]
    mode = parts[1] if len(parts) == 4 else "rn"
    values = data.draw(floats(source))
    (got,) = execute(f"{opcode} %d0, %a0;", [(source, values)], [to])
    for x, result in zip(values, got, strict=True):
        if FORMATS[source].is_nan(x):
            assert FORMATS[to].is_nan(result)
        elif FORMATS[source].is_finite(x):
            check_float(to, result, FORMATS[source].fraction(x), mode, (opcode, hex(x)))
        else:
            sign = x >> (FORMATS[source].width - 1)
            assert result == FORMATS[to].infinity | sign << (FORMATS[to].width - 1)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@FAST
@given(floats("f32"), floats("f32"))
def test_packed_conversion(kind: str, a: list[int], b: list[int]) -> None:
    body = f"cvt.rn.{kind}x2.f32 %d0, %a0, %a1;"
    body += f"cvt.rn.{kind}.f32 %d1, %a0; cvt.rn.{kind}.f32 %d2, %a1;"
    both, high, low = execute(body, [("f32", a), ("f32", b)], [f"{kind}x2", kind, kind])
    assert both == [h << 16 | x for h, x in zip(high, low, strict=True)]


ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("to", ["s8", "u16", "s32", "u32", "s64", "u64"])
@FAST
@given(st.data())
def test_float_to_integer(to: str, source: str, mode: str, data: st.DataObject) -> None:
    values = data.draw(floats(source))
    (got,) = execute(f"cvt.{mode}.{to}.{source} %d0, %a0;", [(source, values)], [to])
    form, width = FORMATS[source], WIDTH[to]
    low, high = (
        (-(1 << (width - 1)), (1 << (width - 1)) - 1) if to[0] == "s" else (0, (1 << width) - 1)
    )
    for x, result in zip(values, got, strict=True):
        if form.is_nan(x):
            expected = 1 << (width - 1) if source == "f64" or width == 64 else 0
        elif not form.is_finite(x):
            expected = low if x >> (form.width - 1) else high
        else:
            expected = max(low, min(high, ROUND[mode](form.fraction(x))))
        assert result == expected & ((1 << width) - 1), (mode, to, source, hex(x))


@pytest.mark.parametrize("source", ["s8", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("to", ["f16", "f32", "f64"])
@FAST
@given(st.data())
def test_integer_to_float(to: str, source: str, data: st.DataObject) -> None:
    values = data.draw(words(WIDTH[source]))
    (got,) = execute(f"cvt.rn.{to}.{source} %d0, %a0;", [(source, values)], [to])
    for x, result in zip(values, got, strict=True):
        assert result == FORMATS[to].round(Fraction(number(x, source))), (to, source, x)


COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize(
    "test", [*COMPARISONS, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
)
@FAST
@given(floats("f32"), floats("f32"), words(32))
def test_setp_on_floats(test: str, a: list[int], b: list[int], c: list[int]) -> None:
    body = f"""
    setp.ne.b32 %p1, %a2, 0;
    setp.{test}.and.f32 %p2|%p3, %a0, %a1, %p1;
    setp.{test}.f32 %p4, %a0, %a1;
    selp.b32 %d0, 1, 0, %p4; selp.b32 %d1, 1, 0, %p2; selp.b32 %d2, 1, 0, %p3;
    set.{test}.u32.f32 %d3, %a0, %a1;
    """
    got = execute(body, [("f32", a), ("f32", b), ("b32", c)], ["b32"] * 4)
    form = FORMATS["f32"]
    for lane, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        left, right = (struct.unpack("<f", struct.pack("<I", v))[0] for v in (x, y))
        nan = form.is_nan(x) or form.is_nan(y)
        if test in {"num", "nan"}:
            truth = nan == (test == "nan")
        else:
            truth = COMPARISONS[test[:2]](left, right) if not nan else test.endswith("u")
        other = not truth
        expected = [truth, truth and z != 0, other and z != 0]
        assert [bool(got[k][lane]) for k in range(3)] == expected, (test, hex(x), hex(y))
        assert got[3][lane] == (0xFFFFFFFF if truth else 0)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("test", COMPARISONS)
@FAST
@given(st.data())
def test_setp_on_integers(test: str, kind: str, data: st.DataObject) -> None:
    width = WIDTH[kind]
    a, b = data.draw(words(width)), data.draw(words(width))
    body = f"setp.{test}.{kind} %p1, %a0, %a1; selp.b32 %d0, 7, 9, %p1;"
    (got,) = execute(body, [(kind, a), (kind, b)], ["b32"])
    for x, y, result in zip(a, b, got, strict=True):
        truth = COMPARISONS[test](number(x, kind), number(y, kind))
        assert result == (7 if truth else 9)


# Approximations


def ulp(value: float) -> float:
    return float(np.spacing(np.float32(abs(value))))


@pytest.mark.parametrize(
    ("opcode", "function", "low", "high", "ulps"),
    [
        ("ex2.approx.f32", lambda x: 2.0**x, -126.0, 127.9, 2.0),
        ("ex2.approx.ftz.f32", lambda x: 2.0**x, -125.0, 127.9, 2.0),
        ("lg2.approx.f32", math.log2, 1e-38, 3e38, 2.0),
        ("rcp.approx.ftz.f32", lambda x: 1 / x, 1e-37, 1e37, 1.0),
        ("sqrt.approx.f32", math.sqrt, 0.0, 3e38, 1.0),
        ("rsqrt.approx.f32", lambda x: 1 / math.sqrt(x), 1e-37, 3e38, 2.0),
        ("tanh.approx.f32", math.tanh, -20.0, 20.0, 4.0),
    ],
)
def test_approximate_functions(
    opcode: str, function: Callable[[float], float], low: float, high: float, ulps: float
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        if low > 0:
            x = np.exp(rng.uniform(math.log(low), math.log(high), 32)).astype(np.float32)
        else:
            x = rng.uniform(low, high, 32).astype(np.float32)
        x[:2] = np.float32([1.0, max(low, 0.9999)])
        bits = x.view(np.uint32).tolist()
        (got,) = execute(f"{opcode} %d0, %a0;", [("f32", bits)], ["f32"])
        results = np.array(got, np.uint32).view(np.float32)
        for value, result in zip(x.tolist(), results.tolist(), strict=True):
            expected = function(value)
            assert abs(result - expected) <= ulps * ulp(expected), (opcode, value, result, expected)


@pytest.mark.parametrize(("opcode", "function"), [("sin", math.sin), ("cos", math.cos)])
def test_sine_and_cosine(opcode: str, function: Callable[[float], float]) -> None:
    rng = np.random.default_rng(0)
    for span in (math.pi, 1000.0):
        x = rng.uniform(-span, span, 3200).astype(np.float32).reshape(-1, 32)
        for row in x:
            bits = row.view(np.uint32).tolist()
            (got,) = execute(f"{opcode}.approx.f32 %d0, %a0;", [("f32", bits)], ["f32"])
            results = np.array(got, np.uint32).view(np.float32)
            for value, result in zip(row.tolist(), results.tolist(), strict=True):
                assert abs(result - function(value)) < 2.0**-20.9 * max(1.0, span / 1000)


@pytest.mark.parametrize(
    ("opcode", "value", "expected"),
    [
        ("ex2.approx.f32", "-inf", "0.0"), ("ex2.approx.f32", "inf", "inf"),
        ("ex2.approx.ftz.f32", "-140.0", "0.0"), ("ex2.approx.f32", "0.0", "1.0"),
        ("lg2.approx.f32", "0.0", "-inf"), ("lg2.approx.f32", "inf", "inf"),
        ("lg2.approx.f32", "-1.0", "nan"), ("lg2.approx.f32", "1.0", "0.0"),
        ("rsqrt.approx.f32", "0.0", "inf"), ("rcp.approx.ftz.f32", "inf", "0.0"),
        ("sqrt.approx.f32", "-1.0", "nan"), ("sin.approx.f32", "inf", "nan"),
        ("tanh.approx.f32", "inf", "1.0"), ("tanh.approx.f32", "-inf", "-1.0"),
        ("ex2.approx.f32", "nan", "nan"), ("tanh.approx.f32", "nan", "nan"),
    ],
)  # fmt: skip
def test_special_values(opcode: str, value: str, expected: str) -> None:
    bits = int(np.float32(float(value)).view(np.uint32))
    (got,) = execute(f"{opcode} %d0, %a0;", [("f32", [bits] * 32)], ["f32"])
    result = float(np.array(got[:1], np.uint32).view(np.float32)[0])
    wanted = float(expected)
    assert math.isnan(result) if math.isnan(wanted) else result == wanted


def test_subnormals_are_flushed_where_the_opcode_says_so() -> None:
    tiny = int(np.float32(1e-40).view(np.uint32))
    body = "add.ftz.f32 %d0, %a0, %a0; add.f32 %d1, %a0, %a0; mul.ftz.f32 %d2, %a1, %a1;"
    small = int(np.float32(1e-20).view(np.uint32))
    got = execute(body, [("f32", [tiny] * 32), ("f32", [small] * 32)], ["f32"] * 3)
    assert got[0][0] == 0
    assert got[1][0] == 2 * tiny
    assert got[2][0] == 0


# Warps


def shuffle(
    mode: str, values: list[int], amount: list[int], clamp: int
) -> tuple[list[int], list[int]]:
    """PTX ISA, shfl.sync: pseudo code."""
    out, inside = [], []
    for lane in range(32):
        b, c, segment = amount[lane] & 31, clamp & 31, clamp >> 8 & 31
        high = lane & segment | c & ~segment & 31
        low = lane & segment
        target, good = {
            "up": (lane - b, lane - b >= high),
            "down": (lane + b, lane + b <= high),
            "bfly": (lane ^ b, lane ^ b <= high),
            "idx": (low | b & ~segment & 31, (low | b & ~segment & 31) <= high),
        }[mode]
        out.append(values[target if good else lane])
        inside.append(int(good))
    return out, inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("clamp", [31, 0, 0x1C03, 0x1800, 0x181F])
@FAST
@given(words(32), words(32))
def test_shfl(mode: str, clamp: int, values: list[int], amount: list[int]) -> None:
    body = (
        f"shfl.sync.{mode}.b32 %d0|%p1, %a0, %a1, {clamp}, -1; selp.b32 %d1, 1, 0, %p1;"
        f"shfl.sync.{mode}.b32 %d2, %a0, 5, {clamp}, -1;"
    )
    got = execute(body, [("b32", values), ("b32", amount)], ["b32"] * 3)
    assert got[:2] == list(shuffle(mode, values, amount, clamp))
    assert got[2] == shuffle(mode, values, [5] * 32, clamp)[0]


@FAST
@given(words(32), words(32))
def test_votes_and_reductions(values: list[int], flags: list[int]) -> None:
    body = """
    setp.ne.b32 %p1, %a1, 0;
    vote.sync.ballot.b32 %d0, %p1, -1;
    vote.sync.any.pred %p2, %p1, -1; selp.b32 %d1, 1, 0, %p2;
    vote.sync.all.pred %p3, %p1, -1; selp.b32 %d2, 1, 0, %p3;
    redux.sync.add.u32 %d3, %a0, -1; redux.sync.min.s32 %d4, %a0, -1;
    redux.sync.xor.b32 %d5, %a0, -1; activemask.b32 %d6;
    match.any.sync.b32 %d7, %a1, -1;
    match.all.sync.b32 %d8|%p4, %a1, -1; selp.b32 %d9, 1, 0, %p4;
    """
    got = execute(body, [("b32", values), ("b32", flags)], ["b32"] * 10)
    bits = sum(1 << lane for lane in range(32) if flags[lane])
    total = values[0]
    for value in values[1:]:
        total ^= value
    expected = [
        bits, int(bits != 0), int(bits == 0xFFFFFFFF), sum(values) & 0xFFFFFFFF,
        min(signed(v, 32) for v in values) & 0xFFFFFFFF, total, 0xFFFFFFFF,
    ]  # fmt: skip
    for result, wanted in zip(got, expected, strict=False):
        assert result == [wanted] * 32
    assert got[7] == [
        sum(1 << other for other in range(32) if flags[other] == flags[lane]) for lane in range(32)
    ]
    equal = len(set(flags)) == 1
    assert got[8] == [0xFFFFFFFF if equal else 0] * 32
    assert got[9] == [int(equal)] * 32


def test_an_unknown_opcode_is_named() -> None:
    with pytest.raises(Unsupported, match=r"tcgen05\.ld\.sync"):
        execute("tcgen05.ld.sync.b32 %d0, %a0;", [("b32", [0] * 32)], ["b32"])
