"""Exact rounding: to 16-bit floats, and in the directions that are not a CPU's default.

The hardware rounds once. Where the CPU can only compute in a wider format first, the error of that
first step decides: the result is moved by one unit in the last place where that error says so.
"""

from __future__ import annotations

from kopt.gpu.virtual.ptx.instruction import Instruction, Operand
from kopt.gpu.virtual.ptx.ir import FLOATS, Value, constant, lanes, width
from kopt.gpu.virtual.ptx.registers import Registers

INFINITY = "0x7FF0000000000000"
DIRECTIONS = ("rz", "rm", "rp")


def direction(instruction: Instruction) -> str | None:
    """The rounding direction that an opcode names, None for the nearest."""
    return next((p for p in instruction.parts if p in DIRECTIONS), None)


class Rounding(Registers):
    """Conversions between float formats."""

    def like(self, value: Value, element: str) -> str:
        """The type of as many `element`s as the value has."""
        return lanes(element) if value.vector else element

    def flush(self, value: Value) -> Value:
        """Subnormal fp32 becomes zero of the same sign."""
        code = self.code
        size = code.intrinsic("fabs.", value.type, [value])
        small = code.compare("fcmp", "olt", size, constant(value.type, "0x3810000000000000"))
        zero = code.intrinsic("copysign.", value.type, [constant(value.type, "0.0"), value])
        return code.select(small, zero, value)

    # 16-bit floats -----------------------------------------------------------------

    def from_half(self, bits: Value, kind: str) -> Value:
        """fp32 value of 16-bit float bits (i16)."""
        code = self.code
        if kind == "f16":
            return code.cast("fpext", code.cast("bitcast", bits, "half"), "float")
        wide = code.cast("zext", bits, "i32")
        return code.cast("bitcast", code.binary("shl", wide, constant(wide.type, 16)), "float")

    def half(self, operand: Operand, kind: str, part: int, vector: bool) -> Value:
        """fp32 value of one part of a pair of 16-bit floats."""
        whole = self.read(operand, 32, vector)
        if part:
            whole = self.code.binary("lshr", whole, constant(whole.type, 16))
        return self.from_half(self.code.cast("trunc", whole, "i16"), kind)

    def to_half(self, value: Value, kind: str, toward: str | None = None) -> Value:
        """Bits (i16) of fp32 or fp64 rounded once to a 16-bit float; NaN becomes 0x7FFF."""
        code = self.code
        if width(value.type) == 64:
            value = self.narrow(value, "odd")
        if kind == "f16":
            short = code.cast("bitcast", code.cast("fptrunc", value, "half"), "i16")
        else:
            bits = code.cast("bitcast", value, "i32")
            high = code.binary("lshr", bits, constant(bits.type, 16))
            odd = code.binary("and", high, constant(bits.type, 1))
            bias = code.binary("add", odd, constant(bits.type, 0x7FFF))
            rounded = code.binary("lshr", code.binary("add", bits, bias), constant(bits.type, 16))
            short = code.cast("trunc", rounded, "i16")
        if toward is not None:
            error = code.binary("fsub", value, self.from_half(short, kind))
            short = self.nudge(short, error, toward)
        nan = code.compare("fcmp", "uno", value, value)
        return code.select(nan, constant(short.type, 0x7FFF), short)

    def pack16(self, low: Value, high: Value) -> Value:
        """Two 16-bit halves as one i32."""
        code = self.code
        wide = code.cast("zext", high, "i32")
        up = code.binary("shl", wide, constant(wide.type, 16))
        return code.binary("or", code.cast("zext", low, "i32"), up)

    # Directions -----------------------------------------------------------------------

    def nudge(self, bits: Value, error: Value, toward: str) -> Value:
        """Float bits that were rounded to nearest with `error` = exact - rounded (of which the sign
        counts) as `toward` would have rounded: rz, rm, rp, or `odd` (to the odd neighbour)."""
        code = self.code
        zero = constant(bits.type, 0)
        one = constant(bits.type, 1)
        nothing = constant(error.type, "0.0")
        above = code.compare("fcmp", "ogt", error, nothing)
        below = code.compare("fcmp", "olt", error, nothing)
        top = width(bits.type)
        minus = code.compare("icmp", "slt", bits, zero)
        magnitude = code.binary("and", bits, constant(bits.type, (1 << (top - 1)) - 1))
        empty = code.compare("icmp", "eq", magnitude, zero)
        # Away from zero is up in magnitude; a zero result of a tiny value has the value's sign.
        outward = code.select(minus, below, above)
        inward = code.select(minus, above, below)
        grown = code.binary("add", bits, one)
        shrunk = code.binary("sub", bits, one)
        if toward == "odd":
            even = code.compare("icmp", "eq", code.binary("and", bits, one), zero)
            grows = code.binary("and", outward, even)
            shrinks = code.binary("and", inward, even)
        elif toward == "rz":
            grows, shrinks = constant(outward.type, "false"), inward
        else:
            wanted = below if toward == "rm" else above
            grows = code.binary("and", outward, wanted)
            shrinks = code.binary("and", inward, wanted)
        result = code.select(shrinks, shrunk, code.select(grows, grown, bits))
        if toward == "rz":
            return code.select(empty, bits, result)
        # Next to zero: the smallest number of the error's sign.
        smallest = code.select(below, constant(bits.type, -(1 << (top - 1)) + 1), one)
        wanted = {"odd": code.binary("or", above, below), "rm": below, "rp": above}[toward]
        return code.select(code.binary("and", empty, wanted), smallest, result)

    def narrow(self, value: Value, toward: str | None, error: Value | None = None) -> Value:
        """fp64 to fp32 in a direction; `error` is what the fp64 value itself lacks."""
        code = self.code
        short = code.cast("fptrunc", value, "float")
        if toward is None:
            return short
        rest = code.binary("fsub", value, code.cast("fpext", short, "double"))
        if error is not None:
            rest = code.binary("fadd", rest, error)
        bits = self.nudge(code.bits(short), rest, toward)
        finite = code.compare(
            "fcmp",
            "olt",
            code.intrinsic("fabs.", value.type, [value]),
            constant(value.type, INFINITY),
        )
        return code.select(finite, code.cast("bitcast", bits, "float"), short)

    def exact_sum(self, a: Value, b: Value) -> tuple[Value, Value]:
        """a + b and its rounding error (Knuth's two-sum)."""
        code = self.code
        total = code.binary("fadd", a, b)
        virtual = code.binary("fsub", total, a)
        left = code.binary("fsub", a, code.binary("fsub", total, virtual))
        right = code.binary("fsub", b, virtual)
        return total, code.binary("fadd", left, right)

    def directed(self, name: str, inputs: list[Value], toward: str) -> Value | None:
        """An fp32 operation rounded once, in a direction or to odd; None if it is not known."""
        code = self.code
        a, *rest = (code.cast("fpext", v, "double") for v in inputs)
        if name in {"add", "sub"}:
            b = rest[0] if name == "add" else code.emit(rest[0].type, f"fneg {rest[0]}")
            total, error = self.exact_sum(a, b)
            return self.narrow(total, toward, error)
        if name == "mul":
            return self.narrow(code.binary("fmul", a, rest[0]), toward)
        if name in {"fma", "mad"}:
            total, error = self.exact_sum(code.binary("fmul", a, rest[0]), rest[1])
            return self.narrow(total, toward, error)
        if name in {"div", "rcp"}:
            if name == "rcp":
                a, rest = constant(a.type, "1.0"), [a]
            ratio = code.binary("fdiv", a, rest[0])
            left = code.intrinsic("fma.", a.type, [code.emit(a.type, f"fneg {ratio}"), rest[0], a])
            return self.narrow(ratio, toward, code.binary("fdiv", left, rest[0]))
        if name == "sqrt":
            root = code.intrinsic("sqrt.", a.type, [a])
            left = code.intrinsic("fma.", a.type, [code.emit(a.type, f"fneg {root}"), root, a])
            twice = code.binary("fadd", root, root)
            return self.narrow(root, toward, code.binary("fdiv", left, twice))
        return None

    def read_float(self, operand: Operand, bits: int, vector: bool) -> Value:
        """The operand as half, float or double."""
        return self.code.cast("bitcast", self.read(operand, bits, vector), FLOATS[bits])
