"""Lowering of moves and type conversions."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.arithmetic import Arithmetic
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Instruction, Reg, Vector
from kopt.gpu.virtual.ptx.ir import FLOATS, Value, constant, lanes

_ROUND = {"rni": "roundeven.", "rzi": "trunc.", "rmi": "floor.", "rpi": "ceil."}
_FLOAT = {"f16", "bf16", "f32", "f64"}


class Convert(Arithmetic):
    """`mov`, `cvt` and `cvta`."""

    def move(self, instruction: Instruction) -> None:
        code = self.code
        to, source = instruction.operands
        mask = self.guard(instruction)
        bits = WIDTHS[instruction.parts[-1]]
        if isinstance(source, Vector):
            step = bits // len(source.items)
            vector = self.varies(source) or self.varies(to)
            kind = lanes(f"i{bits}") if vector else f"i{bits}"
            total = constant(kind, 0)
            for position, item in enumerate(source.items):
                value = code.cast("zext", self.read(item, step, vector), f"i{bits}")
                if position:
                    value = code.binary("shl", value, constant(value.type, step * position))
                total = code.binary("or", total, value)
            self.write(to, total, mask)
            return
        if isinstance(to, Vector):
            step = bits // len(to.items)
            value = self.read(source, bits, self.varies(source))
            for position, item in enumerate(to.items):
                piece = value
                if position:
                    piece = code.binary("lshr", value, constant(value.type, step * position))
                self.write(item, code.cast("trunc", piece, f"i{step}"), mask)
            return
        self.write(to, self.read(source, bits, self.varies(source)), mask)

    def op_cvta(self, instruction: Instruction) -> None:
        if "shared" in instruction.parts:
            raise self.unsupported(instruction)
        self.finish(instruction, self.read(instruction.operands[1], 64, self.varied(instruction)))

    def op_cvt(self, instruction: Instruction) -> None:
        parts = instruction.parts
        to, source = parts[-2], parts[-1]
        if to in {"f16x2", "bf16x2"} and source == "f32" and "satfinite" not in parts:
            self._pack_floats(instruction, to[:-2])
            return
        if to == "tf32" and source == "f32":
            self._tf32(instruction)
            return
        if to not in WIDTHS or source not in WIDTHS or to.endswith("x2") or source.endswith("x2"):
            raise self.unsupported(instruction)
        vector = self.varied(instruction)
        if source in _FLOAT:
            value = self._float_source(instruction, source, vector)
            if to in _FLOAT:
                self.finish(instruction, self._float_to_float(instruction, value, source, to))
            else:
                self.finish(instruction, self._float_to_integer(instruction, value, to))
            return
        value = self.read(instruction.operands[1], WIDTHS[source], vector)
        if to in _FLOAT:
            self.finish(instruction, self._integer_to_float(instruction, value, source, to))
        else:
            self.finish(instruction, self._integer_to_integer(instruction, value, source, to))

    def _float_source(self, instruction: Instruction, kind: str, vector: bool) -> Value:
        operand = instruction.operands[1]
        if kind in {"f16", "bf16"}:
            return self.from_half(self.read(operand, 16, vector), kind)
        value = self.read_float(operand, WIDTHS[kind], vector)
        return self._flush(value) if "ftz" in instruction.parts and kind == "f32" else value

    def _float_to_float(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        rounding = next((_ROUND[p] for p in i.parts if p in _ROUND), None)
        if rounding:
            value = code.intrinsic(rounding, value.type, [value])
        directed = next((p for p in i.parts if p in {"rz", "rm", "rp"}), None)
        narrower = WIDTHS[to] < WIDTHS[source]
        if "relu" in i.parts:
            value = code.intrinsic("maxnum.", value.type, [value, constant(value.type, "0.0")])
        if directed and narrower and not (directed == "rz" and to == "bf16"):
            raise self.unsupported(i)
        if "sat" in i.parts:
            one, zero = constant(value.type, "1.0"), constant(value.type, "0.0")
            value = code.intrinsic("maxnum.", value.type, [value, zero])
            value = code.intrinsic("minnum.", value.type, [value, one])
        if to == "bf16" and directed == "rz":
            bits = code.cast("bitcast", code.cast("fptrunc", value, "float"), "i32")
            return code.cast("trunc", code.binary("lshr", bits, constant(bits.type, 16)), "i16")
        if to in {"f16", "bf16"}:
            return self.to_half(value, to)
        target = FLOATS[WIDTHS[to]]
        if value.element == target:
            return value
        wider = WIDTHS[to] == 64
        result = code.cast("fpext" if wider else "fptrunc", value, target)
        return self._flush(result) if "ftz" in i.parts and to == "f32" else result

    def _float_to_integer(self, i: Instruction, value: Value, to: str) -> Value:
        code = self.code
        rounding = next((_ROUND[p] for p in i.parts if p in _ROUND), "trunc.")
        value = code.intrinsic(rounding, value.type, [value])
        bits = WIDTHS[to]
        kind = lanes(f"i{bits}") if value.vector else f"i{bits}"
        name = "fptosi.sat" if to.startswith("s") else "fptoui.sat"
        from kopt.gpu.virtual.ptx.ir import suffix

        return code.call(f"llvm.{name}.{suffix(kind)}.{suffix(value.type)}", kind, [value])

    def _integer_to_float(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        if any(p in {"rz", "rm", "rp"} for p in i.parts):
            raise self.unsupported(i)
        op = "sitofp" if source.startswith("s") else "uitofp"
        if to in {"f16", "bf16"}:
            return self.to_half(code.cast(op, value, "float"), to)
        return code.cast(op, value, FLOATS[WIDTHS[to]])

    def _integer_to_integer(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        have, want = WIDTHS[source], WIDTHS[to]
        signed = source.startswith("s")
        if "sat" in i.parts and want < have:
            if not (signed and to.startswith("s")):
                raise self.unsupported(i)
            high = constant(value.type, (1 << (want - 1)) - 1)
            low = constant(value.type, -(1 << (want - 1)))
            value = code.intrinsic("smin.", value.type, [value, high])
            value = code.intrinsic("smax.", value.type, [value, low])
        if want < have:
            value = code.cast("trunc", value, f"i{want}")
        elif want > have:
            value = code.cast("sext" if signed else "zext", value, f"i{want}")
        to_register = i.operands[0]
        if isinstance(to_register, Reg):
            full = WIDTHS[self.entry.registers[to_register.name]]
            if full > want and to.startswith("s"):
                value = code.cast("sext", value, f"i{full}")
        return value

    def _pack_floats(self, i: Instruction, kind: str) -> None:
        vector = self.varied(i)
        high, low = (self.read_float(o, 32, vector) for o in i.operands[1:3])
        if "relu" in i.parts:
            zero = constant(high.type, "0.0")
            high = self.code.intrinsic("maxnum.", high.type, [high, zero])
            low = self.code.intrinsic("maxnum.", low.type, [low, zero])
        if any(p in {"rz", "rm", "rp"} for p in i.parts):
            raise self.unsupported(i)
        self.finish(i, self.pack16(self.to_half(low, kind), self.to_half(high, kind)))

    def _tf32(self, i: Instruction) -> None:
        """Round to 10 mantissa bits, ties away from zero (`rna`) or to even (`rn`)."""
        code = self.code
        bits = self.read(i.operands[1], 32, self.varied(i))
        if "rna" in i.parts:
            rounded = code.binary("add", bits, constant(bits.type, 0x1000))
        else:
            odd = code.binary(
                "and", code.binary("lshr", bits, constant(bits.type, 13)), constant(bits.type, 1)
            )
            bias = code.binary("add", odd, constant(bits.type, 0xFFF))
            rounded = code.binary("add", bits, bias)
        kept = code.binary("and", rounded, constant(bits.type, -8192))
        value = code.cast("bitcast", bits, "float")
        infinity = constant(value.type, "0x7FF0000000000000")
        finite = code.compare("fcmp", "olt", code.intrinsic("fabs.", value.type, [value]), infinity)
        self.finish(i, code.select(finite, kept, bits))
