"""Lowering of instructions on bits: shifts of pairs, fields, permutations, tables."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.floating import Floating
from kopt.gpu.virtual.ptx.instruction import Imm, Instruction
from kopt.gpu.virtual.ptx.ir import Value, constant


class Bits(Floating):
    """Bit manipulation within a lane."""

    def int_shf(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        low, high, amount = (self.read(o, 32, vector) for o in i.operands[1:4])
        if "clamp" in i.parts:
            amount = code.intrinsic("umin.", amount.type, [amount, constant(amount.type, 32)])
            wide = code.binary(
                "or",
                code.cast("zext", low, "i64"),
                code.binary(
                    "shl", code.cast("zext", high, "i64"), constant(self.like(low, "i64"), 32)
                ),
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

    def _pair(self, low: Value, high: Value) -> Value:
        """Two i32 as one i64."""
        code = self.code
        wide = code.cast("zext", high, "i64")
        up = code.binary("shl", wide, constant(wide.type, 32))
        return code.binary("or", code.cast("zext", low, "i64"), up)

    def _field(self, i: Instruction, first: int, vector: bool, bits: int) -> tuple[Value, Value]:
        """Position and length operands as numbers of `bits` bits; only their last 8 bits count."""
        code = self.code
        found = []
        for operand in i.operands[first : first + 2]:
            value = self.read(operand, 32, vector)
            value = code.binary("and", value, constant(value.type, 255))
            found.append(code.cast("zext", value, f"i{bits}"))
        return found[0], found[1]

    def _ones(self, length: Value, bits: int) -> Value:
        """2^length - 1, all ones from `bits` on."""
        code = self.code
        last = constant(length.type, bits - 1)
        inside = code.compare("icmp", "ule", length, last)
        power = code.binary("shl", constant(length.type, 1), self._at_most(length, bits))
        ones = code.binary("sub", power, constant(length.type, 1))
        return code.select(inside, ones, constant(length.type, -1))

    def _at_most(self, amount: Value, bits: int) -> Value:
        """A shift amount that LLVM defines: less than `bits`."""
        return self.code.intrinsic("umin.", amount.type, [amount, constant(amount.type, bits - 1)])

    def int_bfe(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        start, length = self._field(i, 2, vector, bits)
        beyond = code.compare("icmp", "ugt", start, constant(start.type, bits - 1))
        clipped = self._at_most(start, bits)
        if not signed:
            shifted = code.binary("lshr", a, clipped)
            shifted = code.select(beyond, constant(a.type, 0), shifted)
            self.finish(i, code.binary("and", shifted, self._ones(length, bits)))
            return
        shifted = code.binary("ashr", a, clipped)
        whole = code.compare("icmp", "ugt", length, constant(length.type, bits - 1))
        rest = code.binary("sub", constant(length.type, bits), length)
        rest = code.select(whole, constant(length.type, 0), self._at_most(rest, bits))
        value = code.binary("ashr", code.binary("shl", shifted, rest), rest)
        empty = code.compare("icmp", "eq", length, constant(length.type, 0))
        self.finish(i, code.select(empty, constant(a.type, 0), value))

    def int_bfi(self, i: Instruction, bits: int, signed: bool, vector: bool) -> None:
        code = self.code
        a = self.read(i.operands[1], bits, vector)
        b = self.read(i.operands[2], bits, vector)
        start, length = self._field(i, 3, vector, bits)
        beyond = code.compare("icmp", "ugt", start, constant(start.type, bits - 1))
        clipped = self._at_most(start, bits)
        zero = constant(a.type, 0)
        field = code.select(beyond, zero, code.binary("shl", self._ones(length, bits), clipped))
        new = code.binary("and", code.binary("shl", a, clipped), field)
        keep = code.binary("and", b, code.binary("xor", field, constant(a.type, -1)))
        self.finish(i, code.binary("or", keep, new))

    def op_bmsk(self, i: Instruction) -> None:
        """A mask of b ones from bit a on."""
        code = self.code
        vector = self.varied(i)
        start, length = (self.read(o, 32, vector) for o in i.operands[1:3])
        if "wrap" in i.parts:
            start, length = (code.binary("and", v, constant(v.type, 31)) for v in (start, length))
        beyond = code.compare("icmp", "ugt", start, constant(start.type, 31))
        shifted = code.binary("shl", self._ones(length, 32), self._at_most(start, 32))
        self.finish(i, code.select(beyond, constant(start.type, 0), shifted))

    def op_szext(self, i: Instruction) -> None:
        """Sign- or zero-extend from bit b on."""
        code = self.code
        vector = self.varied(i)
        a, count = (self.read(o, 32, vector) for o in i.operands[1:3])
        if "wrap" in i.parts:
            count = code.binary("and", count, constant(count.type, 31))
        ones = self._ones(count, 32)
        low = code.binary("and", a, ones)
        if i.parts[-1] == "u32":
            self.finish(i, low)
            return
        before = code.binary("sub", count, constant(count.type, 1))
        sign = code.binary(
            "and", code.binary("lshr", a, self._at_most(before, 32)), constant(a.type, 1)
        )
        empty = code.compare("icmp", "eq", count, constant(count.type, 0))
        minus = code.compare("icmp", "ne", sign, constant(sign.type, 0))
        high = code.binary("or", low, code.binary("xor", ones, constant(ones.type, -1)))
        value = code.select(minus, high, low)
        self.finish(i, code.select(empty, constant(a.type, 0), value))

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
        """Four bytes of the eight in a and b; a mode picks them by rules instead of a selector."""
        code = self.code
        vector = self.varied(i)
        a, b, selector = (self.read(o, 32, vector) for o in i.operands[1:4])
        word = a.type
        both = self._pair(a, b)
        mode = i.parts[2] if len(i.parts) > 2 else ""
        total = constant(word, 0)
        for byte in range(4):
            if mode:
                pick = self._mode_pick(i, mode, byte, selector)
            else:
                pick = code.binary("lshr", selector, constant(word, 4 * byte))
            which = code.binary("and", pick, constant(word, 7))
            amount = code.cast("zext", code.binary("shl", which, constant(word, 3)), "i64")
            value = code.cast("trunc", code.binary("lshr", both, amount), "i32")
            value = code.binary("and", value, constant(word, 255))
            if not mode:
                signed = code.compare(
                    "icmp", "ne", code.binary("and", pick, constant(word, 8)), constant(word, 0)
                )
                spread = code.binary(
                    "ashr", code.binary("shl", value, constant(word, 24)), constant(word, 31)
                )
                spread = code.binary("and", spread, constant(word, 255))
                value = code.select(signed, spread, value)
            total = code.binary("or", total, code.binary("shl", value, constant(word, 8 * byte)))
        self.finish(i, total)

    def _mode_pick(self, i: Instruction, mode: str, byte: int, selector: Value) -> Value:
        code = self.code
        n = code.binary("and", selector, constant(selector.type, 3))
        here = constant(selector.type, byte)
        if mode == "f4e":
            return code.binary("add", n, here)
        if mode == "b4e":
            return code.binary("and", code.binary("sub", n, here), constant(n.type, 7))
        if mode == "rc8":
            return n
        if mode == "ecl":
            return code.intrinsic("umax.", n.type, [n, here])
        if mode == "ecr":
            return code.intrinsic("umin.", n.type, [n, here])
        if mode == "rc16":
            high = code.binary("and", n, constant(n.type, 1))
            twice = code.binary("shl", high, constant(n.type, 1))
            return code.binary("add", twice, constant(n.type, byte % 2))
        raise self.unsupported(i)

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

    def op_dp2a(self, i: Instruction) -> None:
        """Two 16-bit halves of a times two bytes of b, added to c."""
        code = self.code
        vector = self.varied(i)
        a, b, total = (self.read(o, 32, vector) for o in i.operands[1:4])
        first = 2 if "hi" in i.parts else 0
        kinds = [p for p in i.parts if p in {"s32", "u32"}]
        for k in range(2):
            left = code.binary("shl", a, constant(a.type, 16 - 16 * k))
            one = code.binary("ashr" if kinds[0] == "s32" else "lshr", left, constant(a.type, 16))
            left = code.binary("shl", b, constant(b.type, 24 - 8 * (first + k)))
            two = code.binary("ashr" if kinds[1] == "s32" else "lshr", left, constant(b.type, 24))
            total = code.binary("add", total, code.binary("mul", one, two))
        self.finish(i, total)
