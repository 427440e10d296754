"""Lowering of integer, logic, floating-point and comparison instructions."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.instruction import WIDTHS, Imm, Instruction, Operand
from kopt.gpu.virtual.ptx.ir import FLOATS, Value, constant, lanes, width
from kopt.gpu.virtual.ptx.math_ir import routine
from kopt.gpu.virtual.ptx.registers import Registers

FLOAT_TYPES = {"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_SIGNED = {"s8", "s16", "s32", "s64"}
COMPARE = {
    "eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge",
    "equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge",
    "num": "ord", "nan": "uno",
}  # fmt: skip
_UNSIGNED_COMPARE = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


class Arithmetic(Registers):
    """Instructions whose result is a function of their operands in the same lane."""

    def varied(self, instruction: Instruction) -> bool:
        return any(self.varies(o) for o in instruction.operands[1:]) or self.varies(
            instruction.operands[0]
        )

    # Dispatch ------------------------------------------------------------------

    def arithmetic(self, instruction: Instruction) -> bool:
        """Lower the instruction if it is one of this module's; False if it is not."""
        parts = instruction.parts
        name, kind = parts[0], parts[-1]
        method = getattr(self, f"op_{name}", None)
        if method is not None:
            method(instruction)
            return True
        if kind in FLOAT_TYPES and name in {
            "add", "sub", "mul", "div", "fma", "mad", "min", "max", "abs", "neg", "sqrt", "rsqrt",
            "rcp", "ex2", "lg2", "sin", "cos", "tanh", "copysign",
        }:  # fmt: skip
            self._float(instruction)
            return True
        if kind in WIDTHS and hasattr(self, f"int_{name}"):
            vector = self.varied(instruction)
            getattr(self, f"int_{name}")(instruction, WIDTHS[kind], kind in _SIGNED, vector)
            return True
        return False

    def finish(self, instruction: Instruction, value: Value) -> None:
        self.write(instruction.operands[0], value, self.guard(instruction))

    # Floating point --------------------------------------------------------------

    def _float(self, instruction: Instruction) -> None:
        kind = instruction.parts[-1]
        vector = self.varied(instruction)
        operands = instruction.operands[1:]
        if kind.endswith("x2"):
            halves = []
            for part in (0, 1):
                inputs = [self.half(o, kind[:-2], part, vector) for o in operands]
                halves.append(self.to_half(self.float_value(instruction, inputs), kind[:-2]))
            self.finish(instruction, self.pack16(halves[0], halves[1]))
            return
        if kind in {"f16", "bf16"}:
            inputs = [self.from_half(self.read(o, 16, vector), kind) for o in operands]
            self.finish(instruction, self.to_half(self.float_value(instruction, inputs), kind))
            return
        bits = WIDTHS[kind]
        inputs = [self.read_float(o, bits, vector) for o in operands]
        ftz = "ftz" in instruction.parts and bits == 32
        if ftz:
            inputs = [self._flush(v) for v in inputs]
        value = self.float_value(instruction, inputs)
        self.finish(instruction, self._flush(value) if ftz else value)

    def float_value(self, instruction: Instruction, v: list[Value]) -> Value:
        """The result in the precision of the inputs (fp32 for 16-bit types)."""
        code = self.code
        name, parts = instruction.parts[0], instruction.parts
        type_ = v[0].type
        if name in _FLOAT_OPS:
            value = code.binary(_FLOAT_OPS[name], v[0], v[1])
        elif name in {"fma", "mad"}:
            value = code.intrinsic("fma.", type_, v)
        elif name in {"min", "max"}:
            nan = "NaN" in parts
            # The numbers order -0 before +0, as PTX does.
            intrinsic = f"{name}imum{'' if nan else 'num'}."
            value = code.intrinsic(intrinsic, type_, v[:2])
            if len(v) == 3:
                value = code.intrinsic(intrinsic, type_, [value, v[2]])
        elif name == "abs":
            value = code.intrinsic("fabs.", type_, v)
        elif name == "neg":
            value = code.emit(type_, f"fneg {v[0]}")
        elif name == "copysign":
            value = code.intrinsic("copysign.", type_, [v[1], v[0]])
        elif name == "sqrt":
            value = code.intrinsic("sqrt.", type_, v)
        elif name == "rsqrt":
            root = code.intrinsic("sqrt.", type_, v)
            value = code.binary("fdiv", self._one(type_), root)
        elif name == "rcp":
            value = code.binary("fdiv", self._one(type_), v[0])
        else:
            value = self._special_function(name, v[0])
        if "sat" in parts:
            zero, one = constant(type_, "0.0"), self._one(type_)
            value = code.intrinsic(
                "minnum.", type_, [code.intrinsic("maxnum.", type_, [value, zero]), one]
            )
        if "relu" in parts:
            value = code.intrinsic("maxnum.", type_, [value, constant(type_, "0.0")])
        return value

    def _one(self, type_: str) -> Value:
        return constant(type_, "1.0")

    def _special_function(self, name: str, value: Value) -> Value:
        code = self.code
        one = value.element
        if value.vector:
            return code.routine(routine(name, one), [value])
        whole = code.routine(routine(name, one), [code.splat(value)])
        return code.emit(one, f"extractelement {whole}, i32 0")

    def _flush(self, value: Value) -> Value:
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
        whole = self.read(operand, 32, vector)
        if part:
            whole = self.code.binary("lshr", whole, constant(whole.type, 16))
        return self.from_half(self.code.cast("trunc", whole, "i16"), kind)

    def to_half(self, value: Value, kind: str) -> Value:
        """Bits (i16) of fp32 or fp64 rounded to nearest even in a 16-bit float."""
        code = self.code
        if kind == "f16":
            return code.cast("bitcast", code.cast("fptrunc", value, "half"), "i16")
        if width(value.type) == 64:
            value = code.cast("fptrunc", value, "float")
        bits = code.cast("bitcast", value, "i32")
        odd = code.binary(
            "and", code.binary("lshr", bits, constant(bits.type, 16)), constant(bits.type, 1)
        )
        bias = code.binary("add", odd, constant(bits.type, 0x7FFF))
        rounded = code.binary("lshr", code.binary("add", bits, bias), constant(bits.type, 16))
        nan = code.compare("fcmp", "uno", value, value)
        rounded = code.select(nan, constant(bits.type, 0x7FFF), rounded)
        return code.cast("trunc", rounded, "i16")

    def pack16(self, low: Value, high: Value) -> Value:
        code = self.code
        wide = code.cast("zext", high, "i32")
        up = code.binary("shl", wide, constant(wide.type, 16))
        return code.binary("or", code.cast("zext", low, "i32"), up)

    # Integers ------------------------------------------------------------------------

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
        self._add(i, bits, vector, carry_in=False)

    def int_addc(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self._add(i, bits, vector, carry_in=True)

    def int_sub(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        if "cc" in i.parts or "sat" in i.parts:
            raise self.unsupported(i)
        self._simple(i, "sub", bits, vector)

    def _add(self, i: Instruction, bits: int, vector: bool, carry_in: bool) -> None:
        if "sat" in i.parts:
            raise self.unsupported(i)
        vector = vector or carry_in or "cc" in i.parts
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        self._sum(i, a, b, carry_in)

    def _sum(self, i: Instruction, a: Value, b: Value, carry_in: bool) -> None:
        code = self.code
        total = code.binary("add", a, b)
        carry = code.compare("icmp", "ult", total, a) if "cc" in i.parts else None
        if carry_in:
            flag = code.emit(lanes("i1"), f"load {lanes('i1')}, ptr %carry")
            extra = code.cast("zext", flag, total.element)
            more = code.binary("add", total, extra)
            if carry is not None:
                again = code.compare("icmp", "ult", more, total)
                carry = code.binary("or", carry, again)
            total = more
        if carry is not None:
            code.raw(f"store {carry}, ptr %carry")
        if not self.varies(i.operands[0]) and total.vector:
            total = code.emit(total.element, f"extractelement {total}, i32 0")
        self.finish(i, total)

    def _product(self, i: Instruction, bits: int, signed: bool, vector: bool) -> Value:
        """The part of a × b that the mode (`lo`, `hi`, `wide`) keeps."""
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
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

    def int_mul(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        self.finish(i, self._product(i, bits, signed, vector))

    def int_mul24(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        raise self.unsupported(i)

    def int_mad(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
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

    def int_shf(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        low, high, amount = (self.read(o, 32, vector) for o in i.operands[1:4])
        if "clamp" in i.parts:
            amount = code.intrinsic("umin.", amount.type, [amount, constant(amount.type, 32)])
            wide = code.binary(
                "or",
                code.cast("zext", low, "i64"),
                code.binary("shl", code.cast("zext", high, "i64"), constant(_wide(low), 32)),
            )
            count = code.cast("zext", amount, "i64")
            if "l" in i.parts:
                shifted = code.binary("shl", wide, count)
                shifted = code.binary("lshr", shifted, constant(shifted.type, 32))
            else:
                shifted = code.binary("lshr", wide, count)
            self.finish(i, code.cast("trunc", shifted, "i32"))
            return
        name = "fshl." if "l" in i.parts else "fshr."
        self.finish(i, code.intrinsic(name, low.type, [high, low, amount]))

    def int_popc(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        self.finish(i, self.code.cast("trunc", self.code.intrinsic("ctpop.", a.type, [a]), "i32"))

    def int_clz(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        count = self.code.intrinsic("ctlz.", a.type, [a, Value("i1", "false")])
        self.finish(i, self.code.cast("trunc", count, "i32"))

    def int_brev(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        a = self.read(i.operands[1], bits, vector)
        self.finish(i, self.code.intrinsic("bitreverse.", a.type, [a]))

    def int_bfind(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        if signed:
            sign = code.binary("ashr", a, constant(a.type, bits - 1))
            a = code.binary("xor", a, sign)
        zeros = code.intrinsic("ctlz.", a.type, [a, Value("i1", "false")])
        if "shiftamt" not in i.parts:
            found = code.binary("sub", constant(a.type, bits - 1), zeros)
        else:
            found = code.select(
                code.compare("icmp", "eq", zeros, constant(a.type, bits)),
                constant(a.type, -1),
                zeros,
            )
        self.finish(i, code.cast("trunc", found, "i32"))

    def int_bfe(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        a = code.cast(
            "sext" if signed else "zext",
            self.read(i.operands[1], bits, vector),
            "i128" if bits == 64 else "i64",
        )
        start = code.binary(
            "and", self.read(i.operands[2], 32, vector), constant(_word(vector), 255)
        )
        length = code.binary(
            "and", self.read(i.operands[3], 32, vector), constant(_word(vector), 255)
        )
        big = width(a.type)
        start = code.intrinsic("umin.", start.type, [start, constant(start.type, bits)])
        length = code.intrinsic("umin.", length.type, [length, constant(length.type, bits)])
        total = code.binary("add", start, length)
        left = code.binary("sub", constant(total.type, big), total)
        left_wide = code.cast("zext", left, f"i{big}")
        back = code.cast("zext", code.binary("sub", constant(length.type, big), length), f"i{big}")
        empty = code.compare("icmp", "eq", length, constant(length.type, 0))
        back = code.select(empty, constant(back.type, 0), back)
        shifted = code.binary("shl", a, left_wide)
        out = code.binary("ashr" if signed else "lshr", shifted, back)
        out = code.select(empty, constant(out.type, 0), out)
        self.finish(i, code.cast("trunc", out, f"i{bits}"))

    def int_bfi(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        a = code.cast("zext", self.read(i.operands[1], bits, vector), "i128")
        b = code.cast("zext", self.read(i.operands[2], bits, vector), "i128")
        start = code.binary(
            "and", self.read(i.operands[3], 32, vector), constant(_word(vector), 255)
        )
        length = code.binary(
            "and", self.read(i.operands[4], 32, vector), constant(_word(vector), 255)
        )
        start = code.cast(
            "zext", code.intrinsic("umin.", start.type, [start, constant(start.type, bits)]), "i128"
        )
        length = code.cast(
            "zext",
            code.intrinsic("umin.", length.type, [length, constant(length.type, bits)]),
            "i128",
        )
        ones = code.binary(
            "sub", code.binary("shl", constant(a.type, 1), length), constant(a.type, 1)
        )
        field = code.binary("shl", ones, start)
        keep = code.binary("and", b, code.binary("xor", field, constant(field.type, -1)))
        new = code.binary("and", code.binary("shl", a, start), field)
        self.finish(i, code.cast("trunc", code.binary("or", keep, new), f"i{bits}"))

    # Named instructions -----------------------------------------------------------------

    def op_lop3(self, i: Instruction) -> None:
        code = self.code
        vector = self.varied(i)
        a, b, c = (self.read(o, 32, vector) for o in i.operands[1:4])
        table = i.operands[4]
        assert isinstance(table, Imm)
        ones = constant(a.type, -1)
        inverse = {id(v): code.binary("xor", v, ones) for v in (a, b, c)}
        total = constant(a.type, 0)
        for row in range(8):
            if table.bits >> row & 1:
                picks = [
                    v if row >> (2 - k) & 1 else inverse[id(v)] for k, v in enumerate((a, b, c))
                ]
                term = code.binary("and", code.binary("and", picks[0], picks[1]), picks[2])
                total = code.binary("or", total, term)
        self.finish(i, total)

    def op_prmt(self, i: Instruction) -> None:
        if len(i.parts) > 2:
            raise self.unsupported(i)
        code = self.code
        vector = self.varied(i)
        a, b, selector = (self.read(o, 32, vector) for o in i.operands[1:4])
        both = code.binary(
            "or",
            code.cast("zext", a, "i64"),
            code.binary("shl", code.cast("zext", b, "i64"), constant(_wide(a), 32)),
        )
        total = constant(a.type, 0)
        for byte in range(4):
            pick = code.binary("lshr", selector, constant(a.type, 4 * byte))
            which = code.binary("and", pick, constant(a.type, 7))
            amount = code.cast("zext", code.binary("shl", which, constant(a.type, 3)), "i64")
            value = code.cast("trunc", code.binary("lshr", both, amount), "i32")
            value = code.binary("and", value, constant(a.type, 255))
            signed = code.compare(
                "icmp", "ne", code.binary("and", pick, constant(a.type, 8)), constant(a.type, 0)
            )
            spread = code.binary(
                "ashr", code.binary("shl", value, constant(a.type, 24)), constant(a.type, 31)
            )
            value = code.select(signed, code.binary("and", spread, constant(a.type, 255)), value)
            total = code.binary("or", total, code.binary("shl", value, constant(a.type, 8 * byte)))
        self.finish(i, total)

    def op_dp4a(self, i: Instruction) -> None:
        code = self.code
        vector = self.varied(i)
        a, b, total = (self.read(o, 32, vector) for o in i.operands[1:4])
        for byte in range(4):
            items = []
            for value, kind in ((a, i.parts[1]), (b, i.parts[2])):
                left = code.binary("shl", value, constant(value.type, 24 - 8 * byte))
                items.append(
                    code.binary("ashr" if kind == "s32" else "lshr", left, constant(value.type, 24))
                )
            total = code.binary("add", total, code.binary("mul", items[0], items[1]))
        self.finish(i, total)

    def op_selp(self, i: Instruction) -> None:
        code = self.code
        vector = self.varied(i)
        bits = WIDTHS[i.parts[-1]]
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        condition = self.read(i.operands[3], 1, self.varies(i.operands[3]))
        if self.counted:
            self._count_select(i, condition)
        if a.vector and not condition.vector:
            condition = code.splat(condition)
        self.finish(i, code.select(condition, a, b))

    def _count_select(self, i: Instruction, condition: Value) -> None:
        """Executions, and those in which all active lanes agreed."""
        code = self.code
        number = 3 * len(self.selects)
        self.selects.append(i)
        on = self.mask_bits(self.active)
        bits = code.binary("and", self.mask_bits(condition), on)
        self.tally("%selects", number, Value("i64", "1"))
        every = code.compare("icmp", "eq", bits, on)
        self.tally("%selects", number + 1, code.cast("zext", every, "i64"))
        none = code.compare("icmp", "eq", bits, Value("i32", "0"))
        self.tally("%selects", number + 2, code.cast("zext", none, "i64"))

    def op_setp(self, i: Instruction) -> None:
        self._compare(i, predicate=True)

    def op_set(self, i: Instruction) -> None:
        self._compare(i, predicate=False)

    def _compare(self, i: Instruction, predicate: bool) -> None:
        code = self.code
        parts = i.parts
        kind = parts[-1]
        boolean = next((p for p in parts[1:] if p in {"and", "or", "xor"}), None)
        extra = 1 if boolean else 0
        outputs = len(i.operands) - 2 - extra
        a_op, b_op = i.operands[outputs], i.operands[outputs + 1]
        vector = self.varied(i)
        truth = self._truth(parts[1], kind, a_op, b_op, vector, "ftz" in parts)
        inverse = None
        if outputs == 2:
            inverse = code.binary("xor", truth, constant(truth.type, "true"))
        if boolean:
            c = self.read(i.operands[-1], 1, vector)
            truth = code.binary(boolean, truth, c)
            if inverse is not None:
                inverse = code.binary(boolean, inverse, c)
        mask = self.guard(i)
        if predicate:
            self.write(i.operands[0], truth, mask)
            if inverse is not None:
                self.write(i.operands[1], inverse, mask)
            return
        result = parts[-2]
        bits = WIDTHS[result]
        if result == "f32":
            value = code.select(
                truth,
                constant(_like(truth, "float"), "1.0"),
                constant(_like(truth, "float"), "0.0"),
            )
        else:
            value = code.cast("sext", truth, f"i{bits}")
        self.write(i.operands[0], value, mask)

    def _truth(
        self, test: str, kind: str, a_op: Operand, b_op: Operand, vector: bool, ftz: bool
    ) -> Value:
        code = self.code
        if kind in {"f32", "f64", "f16", "bf16"}:
            if kind in {"f16", "bf16"}:
                a, b = (self.from_half(self.read(o, 16, vector), kind) for o in (a_op, b_op))
            else:
                a, b = (self.read_float(o, WIDTHS[kind], vector) for o in (a_op, b_op))
                if ftz and kind == "f32":
                    a, b = self._flush(a), self._flush(b)
            return code.compare("fcmp", COMPARE[test], a, b)
        a, b = (self.read(o, WIDTHS[kind], vector) for o in (a_op, b_op))
        if test in {"eq", "ne"}:
            name = test
        elif test in _UNSIGNED_COMPARE:
            name = _UNSIGNED_COMPARE[test]
        else:
            name = ("s" if kind in _SIGNED else "u") + test
        return code.compare("icmp", name, a, b)

    def op_testp(self, i: Instruction) -> None:
        code = self.code
        bits = WIDTHS[i.parts[-1]]
        vector = self.varied(i)
        a = self.read_float(i.operands[1], bits, vector)
        size = code.intrinsic("fabs.", a.type, [a])
        infinity = constant(a.type, "0x7FF0000000000000")
        tests = {
            "finite": lambda: code.compare("fcmp", "olt", size, infinity),
            "infinite": lambda: code.compare("fcmp", "oeq", size, infinity),
            "number": lambda: code.compare("fcmp", "ord", a, a),
            "notanumber": lambda: code.compare("fcmp", "uno", a, a),
        }
        if i.parts[1] not in tests:
            raise self.unsupported(i)
        self.finish(i, tests[i.parts[1]]())

    def op_mov(self, i: Instruction) -> None:
        self.move(i)

    def move(self, i: Instruction) -> None:
        raise NotImplementedError


def _wide(value: Value) -> str:
    return lanes("i64") if value.vector else "i64"


def _word(vector: bool) -> str:
    return lanes("i32") if vector else "i32"


def _like(value: Value, element: str) -> str:
    return lanes(element) if value.vector else element


__all__ = ["FLOATS", "Arithmetic"]
