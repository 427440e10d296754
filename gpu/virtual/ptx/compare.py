"""Lowering of comparisons and selections, and the dispatch of arithmetic."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.instruction import WIDTHS, Instruction, Operand
from kopt.gpu.virtual.ptx.integer import SIGNED, Integer
from kopt.gpu.virtual.ptx.ir import Value, constant

COMPARE = {
    "eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge",
    "equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge",
    "num": "ord", "nan": "uno",
}  # fmt: skip
_UNSIGNED_COMPARE = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


class Compare(Integer):
    """`setp`, `selp` and their kin."""

    def arithmetic(self, instruction: Instruction) -> bool:
        """Lower an instruction that has a method here; False if none has it."""
        method = getattr(self, f"op_{instruction.parts[0]}", None)
        if method is not None:
            method(instruction)
            return True
        return self.floating(instruction) or self.integer(instruction)

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
                constant(self.like(truth, "float"), "1.0"),
                constant(self.like(truth, "float"), "0.0"),
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
                    a, b = self.flush(a), self.flush(b)
            return code.compare("fcmp", COMPARE[test], a, b)
        a, b = (self.read(o, WIDTHS[kind], vector) for o in (a_op, b_op))
        if test in {"eq", "ne"}:
            name = test
        elif test in _UNSIGNED_COMPARE:
            name = _UNSIGNED_COMPARE[test]
        else:
            name = ("s" if kind in SIGNED else "u") + test
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

    def op_slct(self, i: Instruction) -> None:
        """a where c is not negative, else b."""
        code = self.code
        bits = WIDTHS[i.parts[-2]]
        vector = self.varied(i)
        a, b = (self.read(o, bits, vector) for o in i.operands[1:3])
        if i.parts[-1] == "f32":
            c = self.read_float(i.operands[3], 32, vector)
            truth = code.compare("fcmp", "oge", c, constant(c.type, "0.0"))
        else:
            c = self.read(i.operands[3], 32, vector)
            truth = code.compare("icmp", "sge", c, constant(c.type, 0))
        self.finish(i, code.select(truth, a, b))
