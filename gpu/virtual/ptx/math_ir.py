"""Vector polynomials for the special functions: LLVM would call 32 scalar library routines.

Errors are at most about 2 ulp of float32 where the PTX ISA promises 2 ulp (`ex2.approx`) or an
absolute 2^-20.9 (`sin.approx`, `cos.approx` in [-pi, pi]); tests hold them to that.
Coefficients: Taylor series (2^f, sin, cos on [-pi/4, pi/4]) and the atanh series (log2).
"""

from __future__ import annotations

import math
from functools import cache

from kopt.gpu.virtual.ptx.ir import Code, Routine, Value, constant, lanes

F, I, B = lanes("float"), lanes("i32"), lanes("i1")


def _f(value: float) -> Value:
    import struct

    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    bits = struct.unpack("<Q", struct.pack("<d", rounded))[0]
    return constant(F, f"0x{bits:016X}")


def _i(value: int) -> Value:
    return constant(I, value)


class _Math(Code):
    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.intrinsic("fma.", F, [a, b, c])

    def polynomial(self, x: Value, coefficients: list[float]) -> Value:
        """Horner's scheme, highest coefficient first."""
        total = _f(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, _f(coefficient))
        return total

    def power_of_two(self, n: Value) -> Value:
        """2^n as a float for -126 <= n <= 127."""
        biased = self.binary("add", n, _i(127))
        return self.cast("bitcast", self.binary("shl", biased, _i(23)), "float")


def _exp2(code: _Math, x: Value) -> Value:
    low, high = _f(-160.0), _f(130.0)
    nan = code.compare("fcmp", "uno", x, x)
    clamped = code.intrinsic("maxnum.", F, [code.intrinsic("minnum.", F, [x, high]), low])
    whole = code.intrinsic("rint.", F, [clamped])
    part = code.binary("fsub", clamped, whole)
    terms = [math.log(2) ** k / math.factorial(k) for k in range(7, -1, -1)]
    value = code.polynomial(part, terms)
    n = code.emit(I, f"fptosi {whole} to {I}")
    half = code.binary("ashr", n, _i(1))
    rest = code.binary("sub", n, half)
    scaled = code.binary("fmul", value, code.power_of_two(half))
    scaled = code.binary("fmul", scaled, code.power_of_two(rest))
    return code.select(nan, x, scaled)


def _log2(code: _Math, x: Value) -> Value:
    tiny = code.compare("fcmp", "olt", x, _f(2.0**-126))
    grown = code.select(tiny, code.binary("fmul", x, _f(2.0**24)), x)
    bits = code.cast("bitcast", grown, "i32")
    # Mantissa in [sqrt(1/2), sqrt(2)).
    shifted = code.binary("sub", bits, _i(0x3F3504F3))
    exponent = code.binary("ashr", shifted, _i(23))
    mantissa = code.cast(
        "bitcast", code.binary("sub", bits, code.binary("shl", exponent, _i(23))), "float"
    )
    s = code.binary(
        "fdiv",
        code.binary("fsub", mantissa, _f(1.0)),
        code.binary("fadd", mantissa, _f(1.0)),
    )
    square = code.binary("fmul", s, s)
    series = code.polynomial(square, [2 / math.log(2) / k for k in (11, 9, 7, 5, 3)])
    # s·2/ln2 in two parts, so that values near 1 keep their relative accuracy.
    leading = code.binary("fmul", s, _f(2 / math.log(2)))
    tail = code.fma(code.binary("fmul", s, square), series, leading)
    whole = code.emit(F, f"sitofp {exponent} to {F}")
    whole = code.select(tiny, code.binary("fsub", whole, _f(24.0)), whole)
    value = code.binary("fadd", whole, tail)
    zero = code.compare("fcmp", "oeq", x, _f(0.0))
    value = code.select(zero, constant(F, "0xFFF0000000000000"), value)
    infinite = code.compare("fcmp", "oeq", x, constant(F, "0x7FF0000000000000"))
    value = code.select(infinite, x, value)
    bad = code.compare("fcmp", "ult", x, _f(0.0))
    return code.select(bad, constant(F, "0x7FF8000000000000"), value)


def _sin_cos(code: _Math, x: Value, shift: int) -> Value:
    quarter = code.intrinsic("rint.", F, [code.binary("fmul", x, _f(2 / math.pi))])
    # pi/2 in three parts (Cody and Waite).
    reduced = x
    for part in (1.5703125, 4.837512969970703e-4, 7.549789948768648e-08):
        reduced = code.fma(quarter, _f(-part), reduced)
    clamped = code.intrinsic(
        "maxnum.", F, [code.intrinsic("minnum.", F, [quarter, _f(2.0**30)]), _f(-(2.0**30))]
    )
    n = code.binary("add", code.emit(I, f"fptosi {clamped} to {I}"), _i(shift))
    square = code.binary("fmul", reduced, reduced)
    sine = code.polynomial(square, [1 / 362880, -1 / 5040, 1 / 120, -1 / 6])
    sine = code.fma(code.binary("fmul", reduced, square), sine, reduced)
    cosine = code.polynomial(square, [1 / 40320, -1 / 720, 1 / 24, -0.5, 1.0])
    odd = code.compare("icmp", "ne", code.binary("and", n, _i(1)), _i(0))
    value = code.select(odd, cosine, sine)
    negative = code.compare("icmp", "ne", code.binary("and", n, _i(2)), _i(0))
    flipped = code.emit(F, f"fneg {value}")
    value = code.select(negative, flipped, value)
    finite = code.compare(
        "fcmp", "olt", code.intrinsic("fabs.", F, [x]), constant(F, "0x7FF0000000000000")
    )
    return code.select(finite, value, constant(F, "0x7FF8000000000000"))


def _tanh(code: _Math, x: Value) -> Value:
    size = code.intrinsic("fabs.", F, [x])
    power = _exp2(code, code.binary("fmul", size, _f(-2 / math.log(2))))
    big = code.binary(
        "fdiv", code.binary("fsub", _f(1.0), power), code.binary("fadd", _f(1.0), power)
    )
    square = code.binary("fmul", x, x)
    series = code.polynomial(square, [-17 / 315, 2 / 15, -1 / 3])
    small = code.fma(code.binary("fmul", size, square), series, size)
    value = code.select(code.compare("fcmp", "olt", size, _f(0.1)), small, big)
    value = code.intrinsic("copysign.", F, [value, x])
    return code.select(code.compare("fcmp", "uno", x, x), x, value)


BODIES = {
    "ex2": _exp2,
    "lg2": _log2,
    "sin": lambda code, x: _sin_cos(code, x, 0),
    "cos": lambda code, x: _sin_cos(code, x, 1),
    "tanh": _tanh,
}


@cache
def routine(name: str) -> Routine:
    """The special function `name` of 32 floats."""
    code = _Math()
    result = BODIES[name](code, Value(F, "%x"))
    body = "\n".join(code.lines)
    text = f"define fastcc {F} @vm_{name}({F} %x) #0 noinline {{\n{body}\n  ret {result}\n}}"
    return Routine(f"vm_{name}", F, (F,), text)
