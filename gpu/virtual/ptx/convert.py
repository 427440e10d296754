"""Lowering of moves and type conversions."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.compare import Compare
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Instruction, Reg, Vector
from kopt.gpu.virtual.ptx.integer import SIGNED
from kopt.gpu.virtual.ptx.ir import FLOATS, Value, constant, lanes, suffix, width
from kopt.gpu.virtual.ptx.registers import LOCAL_WINDOW, SHARED_WINDOW
from kopt.gpu.virtual.ptx.rounding import direction

_TO_INTEGER = {"rni": "roundeven.", "rzi": "trunc.", "rmi": "floor.", "rpi": "ceil."}
_FLOAT = {"f16", "bf16", "f32", "f64"}
_EIGHT = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}


class Convert(Compare):
    """`mov`, `cvt` and `cvta`."""

    def op_mov(self, i: Instruction) -> None:
        code = self.code
        to, source = i.operands
        mask = self.guard(i)
        bits = WIDTHS[i.parts[-1]]
        if isinstance(source, Vector):
            step = bits // len(source.items)
            vector = self.varies(source) or self.varies(to)
            total = constant(lanes(f"i{bits}") if vector else f"i{bits}", 0)
            for position, item in enumerate(source.items):
                value = code.cast("zext", self.read(item, step, vector), f"i{bits}")
                if position:
                    value = code.binary("shl", value, constant(value.type, step * position))
                total = code.binary("or", total, value) if position else value
            self.write(to, total, mask)
        elif isinstance(to, Vector):
            step = bits // len(to.items)
            value = self.read(source, bits, self.varies(source))
            for position, item in enumerate(to.items):
                piece = value
                if position:
                    piece = code.binary("lshr", value, constant(value.type, step * position))
                self.write(item, code.cast("trunc", piece, f"i{step}"), mask)
        else:
            value = self.read(source, bits, self.varies(source))
            self.write(to, value, mask)

    def op_cvta(self, i: Instruction) -> None:
        """Generic addresses: shared and local memory are windows of the address space."""
        code = self.code
        value = self.read(i.operands[1], 64, self.varied(i))
        base = 0
        if "shared" in i.parts or "shared::cta" in i.parts:
            base = SHARED_WINDOW
        elif "local" in i.parts:
            base = LOCAL_WINDOW
        if base:
            back = -base if "to" in i.parts else base
            value = code.binary("add", value, constant(value.type, back))
        self.finish(i, value)

    def op_cvt(self, i: Instruction) -> None:
        to, source = i.parts[-2], i.parts[-1]
        if "pack" in i.parts:
            self._pack_integers(i)
        elif to in _EIGHT:
            self._to_eight(i, _EIGHT[to], source)
        elif source in _EIGHT and to == "f16x2":
            self._from_eight(i, _EIGHT[source])
        elif to in {"f16x2", "bf16x2"} and source == "f32":
            self._pack_floats(i, to[:-2])
        elif to == "tf32" and source == "f32":
            self._tf32(i)
        elif to not in WIDTHS or source not in WIDTHS or "x2" in to or "x2" in source:
            raise self.unsupported(i)
        elif source in _FLOAT:
            value = self._source(i, source)
            if to in _FLOAT:
                self.finish(i, self._float_to_float(i, value, source, to))
            else:
                self.finish(i, self._float_to_integer(i, value, source, to))
        else:
            value = self.read(i.operands[1], WIDTHS[source], self.varied(i))
            if to in _FLOAT:
                self.finish(i, self._integer_to_float(i, value, source, to))
            else:
                self.finish(i, self._integer_to_integer(i, value, source, to))

    # Between floats -----------------------------------------------------------------

    def _source(self, i: Instruction, kind: str) -> Value:
        operand, vector = i.operands[1], self.varied(i)
        if kind in {"f16", "bf16"}:
            return self.from_half(self.read(operand, 16, vector), kind)
        value = self.read_float(operand, WIDTHS[kind], vector)
        return self.flush(value) if "ftz" in i.parts and kind == "f32" else value

    def _limits(self, i: Instruction, value: Value) -> Value:
        code = self.code
        if "relu" in i.parts:
            value = code.intrinsic("maximum.", value.type, [value, constant(value.type, "0.0")])
        if "sat" in i.parts:
            one, zero = constant(value.type, "1.0"), constant(value.type, "0.0")
            value = code.intrinsic("maxnum.", value.type, [value, zero])
            value = code.intrinsic("minnum.", value.type, [value, one])
        return value

    def _float_to_float(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        rounding = next((_TO_INTEGER[p] for p in i.parts if p in _TO_INTEGER), None)
        if rounding:
            value = code.intrinsic(rounding, value.type, [value])
        value = self._limits(i, value)
        toward = direction(i)
        if to in {"f16", "bf16"}:
            return self.to_half(value, to, toward)
        target = FLOATS[WIDTHS[to]]
        if value.element == target:
            result = value
        elif to == "f64":
            result = code.cast("fpext", value, target)
        else:
            result = self.narrow(value, toward)
        return self.flush(result) if "ftz" in i.parts and to == "f32" else result

    def _pack_floats(self, i: Instruction, kind: str) -> None:
        if "satfinite" in i.parts:
            raise self.unsupported(i)
        vector = self.varied(i)
        high, low = (self._limits(i, self.read_float(o, 32, vector)) for o in i.operands[1:3])
        toward = direction(i)
        self.finish(
            i, self.pack16(self.to_half(low, kind, toward), self.to_half(high, kind, toward))
        )

    def _tf32(self, i: Instruction) -> None:
        """Round to 10 mantissa bits, ties away from zero (`rna`) or to even (`rn`)."""
        code = self.code
        value = self._limits(i, self.read_float(i.operands[1], 32, self.varied(i)))
        bits = code.bits(value)
        if "rna" in i.parts:
            rounded = code.binary("add", bits, constant(bits.type, 0x1000))
        elif "rz" in i.parts:
            rounded = bits
        else:
            high = code.binary("lshr", bits, constant(bits.type, 13))
            odd = code.binary("and", high, constant(bits.type, 1))
            bias = code.binary("add", odd, constant(bits.type, 0xFFF))
            rounded = code.binary("add", bits, bias)
        kept = code.binary("and", rounded, constant(bits.type, -8192))
        infinity = constant(value.type, "0x7FF0000000000000")
        finite = code.compare("fcmp", "olt", code.intrinsic("fabs.", value.type, [value]), infinity)
        self.finish(i, code.select(finite, kept, bits))

    # 8-bit floats ----------------------------------------------------------------------

    def _to_eight(self, i: Instruction, kind: str, source: str) -> None:
        """Two floats to a pair of 8-bit ones; too large ones become the largest finite number."""
        code = self.code
        vector = self.varied(i)
        if source == "f16x2":
            low, high = (self.half(i.operands[1], "f16", part, vector) for part in (0, 1))
        elif source == "f32":
            high, low = (self.read_float(o, 32, vector) for o in i.operands[1:3])
        else:
            raise self.unsupported(i)
        pair = [self._eight(self._limits(i, value), kind) for value in (low, high)]
        up = code.binary("shl", pair[1], constant(pair[1].type, 8))
        self.finish(i, code.binary("or", pair[0], up))

    def _eight(self, value: Value, kind: str) -> Value:
        code = self.code
        # An e4m3 has the exponents of a float16 that is 2^8 times smaller.
        scale, drop, largest = ("0.00390625", 7, 0x7E) if kind == "e4m3" else ("1.0", 8, 0x7B)
        scaled = code.binary("fmul", value, constant(value.type, scale))
        short = self.to_half(scaled, "f16", "odd")
        word = short.type
        magnitude = code.binary("and", short, constant(word, 0x7FFF))
        odd = code.binary(
            "and", code.binary("lshr", magnitude, constant(word, drop)), constant(word, 1)
        )
        bias = code.binary("add", odd, constant(word, (1 << (drop - 1)) - 1))
        rounded = code.binary("lshr", code.binary("add", magnitude, bias), constant(word, drop))
        rounded = code.intrinsic("umin.", word, [rounded, constant(word, largest)])
        nan = code.compare("fcmp", "uno", value, value)
        sign = code.binary(
            "and", code.binary("lshr", short, constant(word, 8)), constant(word, 128)
        )
        whole = code.binary("or", rounded, sign)
        return code.select(nan, constant(word, 0x7F), whole)

    def _from_eight(self, i: Instruction, kind: str) -> None:
        code = self.code
        pair = self.read(i.operands[1], 16, self.varied(i))
        halves = []
        for part in (0, 1):
            byte = code.binary("lshr", pair, constant(pair.type, 8 * part))
            byte = code.binary("and", byte, constant(pair.type, 255))
            if kind == "e5m2":
                halves.append(code.binary("shl", byte, constant(pair.type, 8)))
                continue
            magnitude = code.binary("and", byte, constant(pair.type, 127))
            small = code.binary("shl", magnitude, constant(pair.type, 7))
            value = self.from_half(small, "f16")
            scaled = self.to_half(code.binary("fmul", value, constant(value.type, "256.0")), "f16")
            sign = code.binary(
                "shl", code.binary("and", byte, constant(pair.type, 128)), constant(pair.type, 8)
            )
            nan = code.compare("icmp", "eq", magnitude, constant(pair.type, 127))
            whole = code.binary("or", scaled, sign)
            halves.append(code.select(nan, constant(pair.type, 0x7FFF), whole))
        self.finish(i, self.pack16(halves[0], halves[1]))

    # Integers ------------------------------------------------------------------------------

    def _float_to_integer(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        rounding = next((_TO_INTEGER[p] for p in i.parts if p in _TO_INTEGER), "trunc.")
        whole = code.intrinsic(rounding, value.type, [value])
        bits = WIDTHS[to]
        type_ = lanes(f"i{bits}") if value.vector else f"i{bits}"
        name = "fptosi.sat" if to in SIGNED else "fptoui.sat"
        result = code.call(f"llvm.{name}.{suffix(type_)}.{suffix(whole.type)}", type_, [whole])
        if source == "f64" or bits == 64:
            # PTX ISA, cvt: what NaN becomes.
            nan = code.compare("fcmp", "uno", value, value)
            result = code.select(nan, constant(type_, -(1 << (bits - 1))), result)
        return self._extended(i, result, to)

    def _integer_to_float(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        op = "sitofp" if source in SIGNED else "uitofp"
        toward = direction(i)
        exact = WIDTHS[source] <= 32
        if toward is not None and not (exact and to != "f64"):
            raise self.unsupported(i)
        if to == "f64" or (to == "f32" and toward is None):
            return code.cast(op, value, FLOATS[WIDTHS[to]])
        wide = code.cast(op, value, "double")
        return self.narrow(wide, toward) if to == "f32" else self.to_half(wide, to, toward)

    def _integer_to_integer(self, i: Instruction, value: Value, source: str, to: str) -> Value:
        code = self.code
        have, want = WIDTHS[source], WIDTHS[to]
        if "sat" in i.parts:
            value = self._saturated(value, source, to)
        if want < have:
            value = code.cast("trunc", value, f"i{want}")
        elif want > have:
            value = code.cast("sext" if source in SIGNED else "zext", value, f"i{want}")
        return self._extended(i, value, to)

    def _saturated(self, value: Value, source: str, to: str) -> Value:
        """The value clipped to what the target can hold, still in the source's type."""
        code = self.code
        have, want = WIDTHS[source], WIDTHS[to]
        signed = source in SIGNED
        low = -(1 << (want - 1)) if to in SIGNED else 0
        high = (1 << (want - 1 if to in SIGNED else want)) - 1
        limit = (1 << (have - 1 if signed else have)) - 1
        if signed and low > -(1 << (have - 1)):
            value = code.intrinsic("smax.", value.type, [value, constant(value.type, low)])
        if high < limit:
            name = "smin." if signed else "umin."
            value = code.intrinsic(name, value.type, [value, constant(value.type, high)])
        return value

    def _extended(self, i: Instruction, value: Value, kind: str) -> Value:
        """A signed result fills a wider register with its sign."""
        to = i.operands[0]
        if kind in SIGNED and isinstance(to, Reg):
            full = WIDTHS[self.entry.registers[to.name]]
            if full > width(value.type):
                return self.code.cast("sext", value, f"i{full}")
        return value

    def _pack_integers(self, i: Instruction) -> None:
        """`cvt.pack.sat`: two clipped integers, above them what c has below."""
        code = self.code
        kind = i.parts[3]
        if kind not in {"s8", "u8", "s16", "u16"} or i.parts[4] != "s32":
            raise self.unsupported(i)
        bits = WIDTHS[kind]
        vector = self.varied(i)
        total = None
        for operand in i.operands[1:3]:
            value = self._saturated(self.read(operand, 32, vector), "s32", kind)
            part = code.binary("and", value, constant(value.type, (1 << bits) - 1))
            if total is None:
                total = code.binary("shl", part, constant(part.type, bits))
            else:
                total = code.binary("or", total, part)
        assert total is not None
        if len(i.operands) > 3:
            c = self.read(i.operands[3], 32, vector)
            up = (
                code.binary("shl", c, constant(c.type, 2 * bits))
                if bits < 16
                else constant(c.type, 0)
            )
            total = code.binary("or", total, up)
        self.finish(i, total)
