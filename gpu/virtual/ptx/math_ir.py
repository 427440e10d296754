"""Vector polynomials for the special functions: LLVM would call 32 scalar library routines.

In float32 errors are at most about 2 ulp where the PTX ISA promises 2 ulp (`ex2.approx`) or an
absolute 2^-20.9 (`sin.approx`, `cos.approx` in [-pi, pi]); tests hold them to that. The float64
forms, for `wide` arithmetic, are good to about 1e-15. Coefficients: Taylor series (2^f, sin, cos on
[-pi/4, pi/4], tanh near 0) and the atanh series (log2).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kopt.gpu.virtual.ptx.ir import Code, Routine, Value, constant, lanes

INFINITY, MINUS_INFINITY, NAN = "0x7FF0000000000000", "0xFFF0000000000000", "0x7FF8000000000000"


@dataclass(frozen=True)
class Format:
    """A binary floating-point format and how long its series must be."""

    name: str
    integer: str
    mantissa: int
    bias: int
    exp2_terms: int
    log2_terms: int
    trig_terms: int
    half_pi: tuple[float, ...]
    """pi/2 in parts with trailing zeros, so that multiples of all but the last are exact."""
    smallest: float
    exp2_range: tuple[float, float]


SINGLE = Format(
    "float", "i32", 23, 127, 8, 6, 4,
    (1.5703125, 4.837512969970703e-4, 7.549789948768648e-08), 2.0**-126, (-160.0, 130.0),
)  # fmt: skip
DOUBLE = Format(
    "double", "i64", 52, 1023, 15, 13, 8,
    (1.57079632673412561417, 6.07710050650619224932e-11, 2.02226624879595063154e-21), 2.0**-1022,
    (-1120.0, 1030.0),
)  # fmt: skip


def number(value: float, element: str) -> str:
    """A constant in LLVM's hexadecimal form."""
    if element == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class _Math(Code):
    def __init__(self, form: Format) -> None:
        super().__init__()
        self.form = form
        self.type = lanes(form.name)
        self.word = lanes(form.integer)

    def real(self, value: float) -> Value:
        return constant(self.type, number(value, self.form.name))

    def whole(self, value: int) -> Value:
        return constant(self.word, value)

    def special(self, text: str) -> Value:
        return constant(self.type, text)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.intrinsic("fma.", self.type, [a, b, c])

    def clamp(self, x: Value, low: float, high: float) -> Value:
        upper = self.intrinsic("minnum.", self.type, [x, self.real(high)])
        return self.intrinsic("maxnum.", self.type, [upper, self.real(low)])

    def to_integer(self, x: Value) -> Value:
        return self.emit(self.word, f"fptosi {x} to {self.word}")

    def polynomial(self, x: Value, coefficients: list[float]) -> Value:
        """Horner's scheme, highest coefficient first."""
        total = self.real(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.real(coefficient))
        return total

    def power_of_two(self, n: Value) -> Value:
        """2^n where that is a normal number."""
        biased = self.binary("add", n, self.whole(self.form.bias))
        bits = self.binary("shl", biased, self.whole(self.form.mantissa))
        return self.cast("bitcast", bits, self.form.name)


def _exp2(code: _Math, x: Value) -> Value:
    nan = code.compare("fcmp", "uno", x, x)
    clamped = code.clamp(x, *code.form.exp2_range)
    whole = code.intrinsic("rint.", code.type, [clamped])
    part = code.binary("fsub", clamped, whole)
    terms = [math.log(2) ** k / math.factorial(k) for k in range(code.form.exp2_terms - 1, -1, -1)]
    value = code.polynomial(part, terms)
    n = code.to_integer(whole)
    half = code.binary("ashr", n, code.whole(1))
    rest = code.binary("sub", n, half)
    scaled = code.binary("fmul", value, code.power_of_two(half))
    scaled = code.binary("fmul", scaled, code.power_of_two(rest))
    return code.select(nan, x, scaled)


def _log2(code: _Math, x: Value) -> Value:
    form = code.form
    lift = float(form.mantissa + 1)
    tiny = code.compare("fcmp", "olt", x, code.real(form.smallest))
    grown = code.select(tiny, code.binary("fmul", x, code.real(2.0**lift)), x)
    bits = code.cast("bitcast", grown, form.integer)
    # Mantissa in [sqrt(1/2), sqrt(2)).
    root = struct.unpack("<q", struct.pack("<d", math.sqrt(0.5)))[0]
    if form is SINGLE:
        root = struct.unpack("<i", struct.pack("<f", math.sqrt(0.5)))[0]
    shifted = code.binary("sub", bits, code.whole(root))
    exponent = code.binary("ashr", shifted, code.whole(form.mantissa))
    moved = code.binary("shl", exponent, code.whole(form.mantissa))
    mantissa = code.cast("bitcast", code.binary("sub", bits, moved), form.name)
    s = code.binary(
        "fdiv",
        code.binary("fsub", mantissa, code.real(1.0)),
        code.binary("fadd", mantissa, code.real(1.0)),
    )
    square = code.binary("fmul", s, s)
    odd = [2 * k + 1 for k in range(form.log2_terms - 1, 0, -1)]
    series = code.polynomial(square, [2 / math.log(2) / k for k in odd])
    # The leading term by itself, so that values near 1 keep their relative accuracy.
    leading = code.binary("fmul", s, code.real(2 / math.log(2)))
    tail = code.fma(code.binary("fmul", s, square), series, leading)
    whole = code.emit(code.type, f"sitofp {exponent} to {code.type}")
    whole = code.select(tiny, code.binary("fsub", whole, code.real(lift)), whole)
    value = code.binary("fadd", whole, tail)
    zero = code.compare("fcmp", "oeq", x, code.real(0.0))
    value = code.select(zero, code.special(MINUS_INFINITY), value)
    infinite = code.compare("fcmp", "oeq", x, code.special(INFINITY))
    value = code.select(infinite, x, value)
    bad = code.compare("fcmp", "ult", x, code.real(0.0))
    return code.select(bad, code.special(NAN), value)


def _sin_cos(code: _Math, x: Value, shift: int) -> Value:
    product = code.binary("fmul", x, code.real(2 / math.pi))
    quarter = code.intrinsic("rint.", code.type, [product])
    # pi/2 in three parts (Cody and Waite).
    reduced = x
    for part in code.form.half_pi:
        reduced = code.fma(quarter, code.real(-part), reduced)
    n = code.to_integer(code.clamp(quarter, -(2.0**30), 2.0**30))
    n = code.binary("add", n, code.whole(shift))
    square = code.binary("fmul", reduced, reduced)
    count = code.form.trig_terms
    odd = [(-1) ** k / math.factorial(2 * k + 1) for k in range(count, 0, -1)]
    even = [(-1) ** k / math.factorial(2 * k) for k in range(count, -1, -1)]
    sine = code.fma(code.binary("fmul", reduced, square), code.polynomial(square, odd), reduced)
    cosine = code.polynomial(square, even)
    swap = code.compare("icmp", "ne", code.binary("and", n, code.whole(1)), code.whole(0))
    value = code.select(swap, cosine, sine)
    negative = code.compare("icmp", "ne", code.binary("and", n, code.whole(2)), code.whole(0))
    flipped = code.emit(code.type, f"fneg {value}")
    value = code.select(negative, flipped, value)
    size = code.intrinsic("fabs.", code.type, [x])
    finite = code.compare("fcmp", "olt", size, code.special(INFINITY))
    return code.select(finite, value, code.special(NAN))


_TANH = [-929569 / 638512875, 21844 / 6081075, -1382 / 155925, 62 / 2835, -17 / 315, 2 / 15, -1 / 3]


def _tanh(code: _Math, x: Value) -> Value:
    size = code.intrinsic("fabs.", code.type, [x])
    power = _exp2(code, code.binary("fmul", size, code.real(-2 / math.log(2))))
    one = code.real(1.0)
    big = code.binary("fdiv", code.binary("fsub", one, power), code.binary("fadd", one, power))
    square = code.binary("fmul", x, x)
    series = code.polynomial(square, _TANH if code.form is DOUBLE else _TANH[3:])
    small = code.fma(code.binary("fmul", size, square), series, size)
    value = code.select(code.compare("fcmp", "olt", size, code.real(0.15)), small, big)
    value = code.intrinsic("copysign.", code.type, [value, x])
    return code.select(code.compare("fcmp", "uno", x, x), x, value)


BODIES: dict[str, Callable[[_Math, Value], Value]] = {
    "ex2": _exp2,
    "lg2": _log2,
    "sin": lambda code, x: _sin_cos(code, x, 0),
    "cos": lambda code, x: _sin_cos(code, x, 1),
    "tanh": _tanh,
}


@cache
def routine(name: str, element: str = "float") -> Routine:
    """The special function `name` of 32 floats or doubles."""
    code = _Math(SINGLE if element == "float" else DOUBLE)
    result = BODIES[name](code, Value(code.type, "%x"))
    body = "\n".join(code.lines)
    full = f"vm_{name}_{element}"
    text = (
        f"define fastcc {code.type} @{full}({code.type} %x) #0 noinline {{\n"
        f"{body}\n  ret {result}\n}}"
    )
    return Routine(full, code.type, (code.type,), text)
