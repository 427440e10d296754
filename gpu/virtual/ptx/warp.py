"""Lowering of instructions in which the lanes of a warp talk to each other."""

from __future__ import annotations

from collections.abc import Callable

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Imm, Instruction, Operand
from kopt.gpu.virtual.ptx.ir import LANES, Value, constant, lanes, per_lane
from kopt.gpu.virtual.ptx.match_ir import match
from kopt.gpu.virtual.ptx.matrix import Matrix


class Warp(Matrix):
    """Shuffles, votes and reductions over a warp."""

    def op_shfl(self, i: Instruction) -> None:
        both = len(i.operands) == 6
        move, good = self.shuffle(i)
        mask = self.guard(i)
        result = move(self.read(i.operands[2 if both else 1], 32, vector=True))
        self.write(i.operands[0], result, mask)
        if both:
            self.write(i.operands[1], good, mask)

    def shuffle(self, i: Instruction) -> tuple[Callable[[Value], Value], Value]:
        """How `shfl` moves 32 values, and in which lanes its source lane is in range."""
        mode = i.parts[2] if i.parts[1] == "sync" else i.parts[1]
        amount, clamp = i.operands[3:5] if len(i.operands) == 6 else i.operands[2:4]
        if isinstance(amount, Imm) and isinstance(clamp, Imm):
            picks, inside = _shuffle(mode, amount.bits & 31, clamp.bits)
            good = per_lane("i1", [int(x) for x in inside])
            return lambda value: self.code.shuffle(value, picks), good
        return self._dynamic_shuffle(mode, amount, clamp)

    def _dynamic_shuffle(
        self, mode: str, amount_op: Operand, clamp_op: Operand
    ) -> tuple[Callable[[Value], Value], Value]:
        code = self.code
        word = lanes("i32")
        amount = code.binary("and", self.read(amount_op, 32, vector=True), constant(word, 31))
        clamp_value = self.read(clamp_op, 32, vector=True)
        clamp = code.binary("and", clamp_value, constant(word, 31))
        segment = code.binary(
            "and", code.binary("lshr", clamp_value, constant(word, 8)), constant(word, 31)
        )
        other = code.binary("xor", segment, constant(word, 31))
        lane = per_lane("i32", range(LANES))
        low = code.binary("and", lane, segment)
        high = code.binary("or", low, code.binary("and", clamp, other))
        if mode == "up":
            target = code.binary("sub", lane, amount)
            inside = code.compare("icmp", "sge", target, high)
        else:
            if mode == "down":
                target = code.binary("add", lane, amount)
            elif mode == "bfly":
                target = code.binary("xor", lane, amount)
            elif mode == "idx":
                target = code.binary("or", low, code.binary("and", amount, other))
            else:
                raise Unsupported(f"the virtual GPU does not execute shfl.{mode}")
            inside = code.compare("icmp", "sle", target, high)
        picked = code.select(inside, target, lane)
        return lambda value: self._pick(value, picked), inside

    def _pick(self, value: Value, picked: Value) -> Value:
        """Lane `picked[i]` of the value for each lane i."""
        code = self.code
        bits = value.element[1:]
        code.raw(f"store {value}, ptr %scratch, align 64")
        pointers = code.emit(lanes("ptr"), f"getelementptr {value.element}, ptr %scratch, {picked}")
        alignment = Value("i32", str(int(bits) // 8))
        every = constant(lanes("i1"), "true")
        arguments = [pointers, alignment, every, constant(value.type, 0)]
        return code.call(f"llvm.masked.gather.v32i{bits}.v32p0", value.type, arguments)

    def op_vote(self, i: Instruction) -> None:
        code = self.code
        mode = next((p for p in i.parts if p in {"all", "any", "uni", "ballot"}), "")
        if not mode:
            raise self.unsupported(i)
        bits = self.mask_bits(self.read(i.operands[1], 1, vector=True))
        on = self.mask_bits(self.active)
        bits = code.binary("and", bits, on)
        if mode == "ballot":
            self.finish(i, bits)
            return
        every = code.compare("icmp", "eq", bits, on)
        none = code.compare("icmp", "eq", bits, Value("i32", "0"))
        result = {
            "all": lambda: every,
            "any": lambda: code.binary("xor", none, Value("i1", "true")),
            "uni": lambda: code.binary("or", every, none),
        }[mode]()
        self.finish(i, result)

    def op_match(self, i: Instruction) -> None:
        code = self.code
        bits = WIDTHS[i.parts[-1]]
        both = len(i.operands) == 4
        value = self.read(i.operands[2 if both else 1], bits, vector=True)
        on = self.mask_bits(self.active)
        same = code.routine(match(bits), [value, on])
        mask = self.guard(i)
        if "any" in i.parts:
            self.write(i.operands[0], same, mask)
            return
        every = code.compare("icmp", "eq", same, code.splat(on))
        self.write(i.operands[0], code.select(every, same, constant(same.type, 0)), mask)
        if both:
            self.write(i.operands[1], every, mask)

    def op_activemask(self, i: Instruction) -> None:
        self.finish(i, self.mask_bits(self.active))

    def op_elect(self, i: Instruction) -> None:
        code = self.code
        on = self.mask_bits(self.active)
        first = code.emit("i32", f"call i32 @llvm.cttz.i32(i32 {on.ref}, i1 true)")
        chosen = code.compare("icmp", "eq", per_lane("i32", range(LANES)), code.splat(first))
        self.write(i.operands[0], first, self.guard(i))
        self.write(i.operands[1], chosen, self.guard(i))

    def op_redux(self, i: Instruction) -> None:
        code = self.code
        op = i.parts[2]
        names = {
            "add": "add", "and": "and", "or": "or", "xor": "xor",
            "min": "smin" if i.parts[-1] == "s32" else "umin",
            "max": "smax" if i.parts[-1] == "s32" else "umax",
        }  # fmt: skip
        if op not in names or i.parts[-1] not in {"s32", "u32", "b32"}:
            raise self.unsupported(i)
        value = self.read(i.operands[1], 32, vector=True)
        if self.active is not None:
            neutral = {"and": -1, "smin": 0x7FFFFFFF, "umin": -1, "smax": -(1 << 31)}
            idle = constant(value.type, neutral.get(names[op], 0))
            value = code.select(self.active, value, idle)
        total = code.call(f"llvm.vector.reduce.{names[op]}.v32i32", "i32", [value])
        self.finish(i, total)

    def op_isspacep(self, i: Instruction) -> None:
        self.finish(i, Value("i1", "true" if "global" in i.parts else "false"))


def _shuffle(mode: str, amount: int, clamp_value: int) -> tuple[list[int], list[bool]]:
    """Source lane and validity for each lane (PTX ISA, shfl.sync)."""
    clamp, segment = clamp_value & 31, clamp_value >> 8 & 31
    picks, inside = [], []
    for lane in range(LANES):
        high = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        if mode == "up":
            target = lane - amount
            good = target >= high
        elif mode == "down":
            target = lane + amount
            good = target <= high
        elif mode == "bfly":
            target = lane ^ amount
            good = target <= high
        elif mode == "idx":
            target = low | (amount & ~segment & 31)
            good = target <= high
        else:
            raise Unsupported(f"the virtual GPU does not execute shfl.{mode}")
        picks.append(target if good else lane)
        inside.append(good)
    return picks, inside
