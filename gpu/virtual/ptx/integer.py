"""Lowering of integer arithmetic and logic."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.bits import Bits
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Imm, Instruction
from kopt.gpu.virtual.ptx.ir import Value, constant, lanes, width

SIGNED = {"s8", "s16", "s32", "s64"}


class Integer(Bits):
    """Integer instructions whose result is a function of their operands in the same lane."""

    def integer(self, instruction: Instruction) -> bool:
        """Lower the instruction if it is integer arithmetic; False if it is not."""
        kind = instruction.parts[-1]
        method = getattr(self, f"int_{instruction.parts[0]}", None)
        if kind not in WIDTHS or method is None:
            return False
        method(instruction, WIDTHS[kind], kind in SIGNED, self.varied(instruction))
        return True

    def _simple(self, instruction: Instruction, op: str, bits: int, vector: bool) -> None:
        a = self.read(instruction.operands[1], bits, vector)
        b = self.read(instruction.operands[2], bits, vector)
        self.finish(instruction, self.code.binary(op, a, b))

    def int_and(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._simple(i, "and", bits, vector)

    def int_or(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._simple(i, "or", bits, vector)

    def int_xor(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._simple(i, "xor", bits, vector)

    def int_not(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        ones = constant(a.type, "true" if bits == 1 else -1)
        self.finish(i, self.code.binary("xor", a, ones))

    def int_cnot(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        zero = self.code.compare("icmp", "eq", a, constant(a.type, 0))
        self.finish(i, self.code.cast("zext", zero, f"i{bits}"))

    def int_neg(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        self.finish(i, self.code.binary("sub", constant(a.type, 0), a))

    def int_abs(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        false = Value("i1", "false")
        self.finish(i, self.code.intrinsic("abs.", a.type, [a, false]))

    def int_min(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._extreme(i, "smin." if signed else "umin.", bits, vector)

    def int_max(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._extreme(i, "smax." if signed else "umax.", bits, vector)

    def _extreme(self, i: Instruction, name: str, bits: int, vector: bool) -> None:
        if i.parts[-1].endswith("x2") or "relu" in i.parts:
            raise self.unsupported(i)
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        self.finish(i, self.code.intrinsic(name, a.type, [a, b]))

    def int_add(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        if "sat" in i.parts:
            self._extreme(i, "sadd.sat.", bits, vector)
        else:
            self._add(i, bits, vector, carry_in=False)

    def int_addc(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._add(i, bits, vector, carry_in=True)

    def int_sub(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        if "sat" in i.parts:
            self._extreme(i, "ssub.sat.", bits, vector)
        elif "cc" in i.parts:
            self._subtract(i, bits, borrow_in=False)
        else:
            self._simple(i, "sub", bits, vector)

    def int_subc(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._subtract(i, bits, borrow_in=True)

    def _add(self, i: Instruction, bits: int, vector: bool, carry_in: bool) -> None:
        vector = vector or carry_in or "cc" in i.parts
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        self._sum(i, a, b, carry_in)

    def _sum(self, i: Instruction, a: Value, b: Value, carry_in: bool) -> None:
        code = self.code
        total = code.binary("add", a, b)
        carry = code.compare("icmp", "ult", total, a) if "cc" in i.parts else None
        if carry_in:
            more = code.binary("add", total, code.cast("zext", self._carry(), total.element))
            if carry is not None:
                again = code.compare("icmp", "ult", more, total)
                carry = code.binary("or", carry, again)
            total = more
        if carry is not None:
            code.raw(f"store {carry}, ptr %carry")
        self.finish(i, total)

    def _carry(self) -> Value:
        return self.code.emit(lanes("i1"), f"load {lanes('i1')}, ptr %carry")

    def _subtract(self, i: Instruction, bits: int, borrow_in: bool) -> None:
        code = self.code
        a = self.read(i.operands[1], bits, vector=True)
        b = self.read(i.operands[2], bits, vector=True)
        total = code.binary("sub", a, b)
        borrow = code.compare("icmp", "ult", a, b)
        if borrow_in:
            extra = code.cast("zext", self._carry(), total.element)
            less = code.binary("sub", total, extra)
            borrow = code.binary("or", borrow, code.compare("icmp", "ugt", less, total))
            total = less
        if "cc" in i.parts:
            code.raw(f"store {borrow}, ptr %carry")
        self.finish(i, total)

    def _product(self, i: Instruction, bits: int, signed: bool, vector: bool) -> Value:
        """The part of a × b that the mode (`lo`, `hi`, `wide`) keeps."""
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        if "hi" in i.parts and bits == 64 and vector:
            return self._high64(a, b, signed)
        if "wide" in i.parts or "hi" in i.parts:
            grow = "sext" if signed else "zext"
            wide = code.binary(
                "mul", code.cast(grow, a, f"i{2 * bits}"), code.cast(grow, b, f"i{2 * bits}")
            )
            if "wide" in i.parts:
                return wide
            return code.cast(
                "trunc", code.binary("lshr", wide, constant(wide.type, bits)), f"i{bits}"
            )
        return code.binary("mul", a, b)

    def _high64(self, a: Value, b: Value, signed: bool) -> Value:
        """The upper half of a 128-bit product, from 32-bit pieces."""
        code = self.code
        low = constant(a.type, 0xFFFFFFFF)
        half = constant(a.type, 32)
        a0, b0 = code.binary("and", a, low), code.binary("and", b, low)
        a1, b1 = code.binary("lshr", a, half), code.binary("lshr", b, half)
        bottom = code.binary("lshr", code.binary("mul", a0, b0), half)
        middle = code.binary("add", code.binary("mul", a1, b0), bottom)
        other = code.binary("add", code.binary("mul", a0, b1), code.binary("and", middle, low))
        high = code.binary("add", code.binary("mul", a1, b1), code.binary("lshr", middle, half))
        high = code.binary("add", high, code.binary("lshr", other, half))
        if signed:
            for one, two in ((a, b), (b, a)):
                sign = code.binary("ashr", one, constant(a.type, 63))
                high = code.binary("sub", high, code.binary("and", sign, two))
        return high

    def int_mul(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self.finish(i, self._product(i, bits, signed, vector))

    def int_mul24(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self.finish(i, self._product24(i, signed, vector))

    def int_mad24(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        if "sat" in i.parts:
            raise self.unsupported(i)
        c = self.read(i.operands[3], 32, vector)
        self.finish(i, self.code.binary("add", self._product24(i, signed, vector), c))

    def _product24(self, i: Instruction, signed: bool, vector: bool) -> Value:
        """Of the 48-bit product of two 24-bit numbers the upper or lower 32 bits."""
        code = self.code
        grow = "ashr" if signed else "lshr"
        wide = []
        for operand in i.operands[1:3]:
            value = self.read(operand, 32, vector)
            up = code.binary("shl", value, constant(value.type, 8))
            short = code.binary(grow, up, constant(value.type, 8))
            wide.append(code.cast("sext" if signed else "zext", short, "i64"))
        product = code.binary("mul", wide[0], wide[1])
        if "hi" in i.parts:
            product = code.binary("lshr", product, constant(product.type, 16))
        return code.cast("trunc", product, "i32")

    def int_sad(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        """c + |a - b|."""
        code = self.code
        a, b, c = (self.read(o, bits, vector) for o in i.operands[1:4])
        sign = "s" if signed else "u"
        high = code.intrinsic(f"{sign}max.", a.type, [a, b])
        low = code.intrinsic(f"{sign}min.", a.type, [a, b])
        self.finish(i, code.binary("add", c, code.binary("sub", high, low)))

    def int_mad(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        if "sat" in i.parts:
            raise self.unsupported(i)
        vector = vector or "cc" in i.parts
        product = self._product(i, bits, signed, vector)
        c = self.read(i.operands[3], width(product.type), vector)
        self._sum(i, product, c, carry_in=False)

    def int_madc(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        product = self._product(i, bits, signed, True)
        c = self.read(i.operands[3], width(product.type), True)
        self._sum(i, product, c, carry_in=True)

    def int_div(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self.finish(i, self._quotient(i, bits, signed, vector)[0])

    def int_rem(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        quotient, a, b = self._quotient(i, bits, signed, vector)
        self.finish(i, self.code.binary("sub", a, self.code.binary("mul", quotient, b)))

    def _quotient(
        self, i: Instruction, bits: int, signed: bool, vector: bool
    ) -> tuple[Value, Value, Value]:
        """a / b and the operands. A zero divisor gives all ones, as NVIDIA GPUs do."""
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        zero = code.compare("icmp", "eq", b, constant(b.type, 0))
        safe = code.select(zero, constant(b.type, 1), b)
        if bits <= 32 and vector:
            # Exact: a quotient of 32-bit integers is at least 2^-32 (relative) from the next one.
            to_float, to_int = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
            ratio = code.binary(
                "fdiv", code.cast(to_float, a, "double"), code.cast(to_float, safe, "double")
            )
            wide = code.cast("fptosi" if signed else to_int, ratio, "i64")
            quotient = code.cast("trunc", wide, f"i{bits}")
        else:
            if signed:
                lowest = code.compare("icmp", "eq", a, constant(a.type, -(1 << (bits - 1))))
                minus = code.compare("icmp", "eq", safe, constant(a.type, -1))
                overflow = code.binary("and", lowest, minus)
                safe = code.select(overflow, constant(a.type, 1), safe)
            quotient = code.binary("sdiv" if signed else "udiv", a, safe)
        return code.select(zero, constant(b.type, -1), quotient), a, b

    def int_shl(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._shift(i, "shl", bits, vector)

    def int_shr(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._shift(i, "ashr" if signed else "lshr", bits, vector)

    def _shift(self, i: Instruction, op: str, bits: int, vector: bool) -> None:
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        amount = i.operands[2]
        limit = bits - 1 if op == "ashr" else bits
        if isinstance(amount, Imm):
            count = min(amount.bits & 0xFFFFFFFF, limit)
            if count == bits:
                self.finish(i, code.binary("and", a, constant(a.type, 0)))
            else:
                self.finish(i, code.binary(op, a, constant(a.type, count)))
            return
        b = self.read(amount, 32, vector)
        over = code.compare("icmp", "ugt", b, constant(b.type, bits - 1))
        clipped = code.select(over, constant(b.type, bits - 1), b)
        shifted = code.binary(
            op, a, code.cast("zext" if bits > 32 else "trunc", clipped, f"i{bits}")
        )
        if op != "ashr":
            shifted = code.select(over, constant(a.type, 0), shifted)
        self.finish(i, shifted)
