"""`wide` arithmetic: every float also has a float64 value, the oracle of what the kernel means.

A register carries shadows, one for each of its 16-bit parts: the wide value minus the actual value
of the float that starts there. Moves, shuffles, packing and memory carry shadows along; float
instructions compute in float64 on actual + shadow; integer instructions drop them. Branches, guards
and conversions to integers follow the actual values, so control flow is the same in both; selects
on a float comparison follow the wide comparison. A non-finite value has no shadow.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from kopt.gpu.virtual.ptx import mma_ir, wide_ir
from kopt.gpu.virtual.ptx.compare import COMPARE
from kopt.gpu.virtual.ptx.flow import Block, Flow
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Imm, Instruction, Operand, Reg, Vector
from kopt.gpu.virtual.ptx.ir import LANES, Value, constant, lanes, per_lane
from kopt.gpu.virtual.ptx.math_ir import INFINITY, number
from kopt.gpu.virtual.ptx.memory import CTX, items
from kopt.gpu.virtual.ptx.parse import Entry
from kopt.gpu.virtual.ptx.registers import SiteInfo
from kopt.gpu.virtual.ptx.taint import FLOATS, single_registers, slots, tainted
from kopt.gpu.virtual.ptx.translate import Translator

_ARITHMETIC = {
    "add", "sub", "mul", "div", "fma", "mad", "min", "max", "abs", "neg", "sqrt", "rsqrt", "rcp",
    "ex2", "lg2", "sin", "cos", "tanh", "copysign",
}  # fmt: skip
_EXACT = {
    struct.unpack("<I", struct.pack("<f", sign * value))[0]: sign * value
    for base in (math.log2(math.e), math.log(2), math.log10(2), math.log(10), math.log2(10))
    for value in (base, 2 * base)
    for sign in (1, -1)
}
"""Constants by which compilers turn one base of a logarithm or exponential into another."""
_TO_INTEGER = {"rni", "rzi", "rmi", "rpi"}


@dataclass(frozen=True)
class _Result:
    """A float in part `part` of register `to`, with its wide value."""

    to: Reg
    kind: str
    part: int
    value: Value


@dataclass(frozen=True)
class _Moved:
    """Shadows that go to a register as they are; None is zero."""

    to: Reg
    shadows: list[Value | None]


_Plan = list[_Result | _Moved]


class Wide(Translator):
    """The translator that also writes the shadows."""

    def __init__(self, entry: Entry, flow: Flow, counted: bool) -> None:
        super().__init__(entry, flow, counted)
        self._singles = single_registers(flow)
        self.shadowed = tainted(entry, flow, self._singles)
        self._rows = 0
        for name in sorted(self.shadowed):
            width = WIDTHS[entry.registers[name]]
            for k in range(slots(width)):
                entry.registers[f"{name}#{k}"] = "pred" if width == 1 else "b64"
        self._magic = _rounding_constants(flow)

    # Shadows of registers ---------------------------------------------------------------------

    def _has(self, operand: Operand) -> bool:
        return isinstance(operand, Reg) and operand.name in self.shadowed

    def _shadow(self, operand: Operand, k: int, vector: bool) -> Value | None:
        """Shadow `k` of an operand; None if it has none."""
        if not isinstance(operand, Reg) or operand.name not in self.shadowed:
            return None
        if k >= slots(WIDTHS[self.entry.registers[operand.name]]):
            return None
        bits = self.read(Reg(f"{operand.name}#{k}"), 64, vector)
        return self.code.cast("bitcast", bits, "double")

    def _set(self, to: Reg, shadows: list[Value | None], mask: Value | None) -> None:
        if to.name not in self.shadowed:
            return
        for k in range(slots(WIDTHS[self.entry.registers[to.name]])):
            value = shadows[k] if k < len(shadows) else None
            if value is None:
                value = Value("double", "0.0")
            self.write(Reg(f"{to.name}#{k}"), self.code.bits(value), mask)

    def _actual(self, operand: Operand, kind: str, part: int, vector: bool) -> Value:
        """The float in a part of an operand, as a double."""
        code = self.code
        if kind in {"f16x2", "bf16x2"}:
            return code.cast("fpext", self.half(operand, kind[:-2], part, vector), "double")
        if kind in {"f16", "bf16"}:
            value = self.from_half(self.read(operand, 16, vector), kind)
            return code.cast("fpext", value, "double")
        value = self.read_float(operand, 64 if kind == "f64" else 32, vector)
        return value if kind == "f64" else code.cast("fpext", value, "double")

    def _wide(self, operand: Operand, kind: str, part: int, vector: bool) -> Value:
        """The wide value of the float in a part of an operand."""
        if isinstance(operand, Imm) and kind == "f32" and operand.bits in _EXACT:
            return constant(
                lanes("double") if vector else "double", number(_EXACT[operand.bits], "double")
            )
        value = self._actual(operand, kind, part, vector)
        # A float32 made from a bfloat16 by shifting carries its shadow in the upper half.
        parts = (0, 1) if kind in {"f32", "tf32"} else (part,)
        for k in parts:
            shadow = self._shadow(operand, k, vector)
            if shadow is not None:
                value = self.code.binary("fadd", value, shadow)
        return value

    # Instructions -----------------------------------------------------------------------------

    def instruction(self, block: Block, i: Instruction) -> None:
        if i.parts[0] in {"ld", "ldu", "ldmatrix", "st", "cp", "atom", "red"}:
            # Those write their shadows themselves, where they know the addresses.
            super().instruction(block, i)
            return
        written = [r for r in i.writes if r.name in self.shadowed]
        if not written:
            super().instruction(block, i)
            return
        plan = self._plan(i)
        mask = self.guard(i)
        super().instruction(block, i)
        planned = {item.to.name for item in plan}
        for register in written:
            if register.name not in planned:
                plan.append(_Moved(register, []))
        self._finish(plan, mask)

    def _finish(self, plan: _Plan, mask: Value | None) -> None:
        results: dict[str, list[_Result]] = {}
        for item in plan:
            if isinstance(item, _Result):
                results.setdefault(item.to.name, []).append(item)
            elif WIDTHS[self.entry.registers[item.to.name]] == 1:
                value = item.shadows[0] if item.shadows else None
                if value is None:
                    value = self.read(item.to, 1, self.varies(item.to))
                self.write(Reg(f"{item.to.name}#0"), value, mask)
            else:
                self._set(item.to, item.shadows, mask)
        for parts in results.values():
            to = parts[0].to
            shadows: list[Value | None] = [None, None, None, None]
            for item in parts:
                shadows[item.part] = self._difference(item)
            self._set(to, shadows, mask)

    def _difference(self, item: _Result) -> Value:
        """Wide minus actual where that is finite, else 0."""
        code = self.code
        vector = item.value.vector or self.varies(item.to)
        wide = self.vector(item.value) if vector else item.value
        actual = self._actual(item.to, item.kind, item.part, vector)
        difference = code.binary("fsub", wide, actual)
        size = code.intrinsic("fabs.", difference.type, [difference])
        finite = code.compare("fcmp", "olt", size, constant(size.type, INFINITY))
        return code.select(finite, difference, constant(size.type, "0.0"))

    def _plan(self, i: Instruction) -> _Plan:
        name, kind = i.parts[0], i.parts[-1]
        method = getattr(self, f"_plan_{name}", None)
        if method is not None:
            plan: _Plan = method(i)
            return plan
        if kind in FLOATS and name in _ARITHMETIC:
            return self._plan_float(i, kind)
        if name in {"add", "sub"} and WIDTHS[kind] == 32:
            return self._plan_exponent(i)
        return []

    def _plan_exponent(self, i: Instruction) -> _Plan:
        """Integer arithmetic on a float's bits that only moves its exponent: a power of two."""
        code = self.code
        to, source, other = i.operands
        assert isinstance(to, Reg)
        vector = self.varied(i)
        shadow = self._shadow(source, 0, vector)
        if shadow is None:
            return []
        a, b = (self.read(o, 32, vector) for o in (source, other))
        bits = code.binary(i.parts[0], a, b)
        moved = code.binary("xor", a, bits)
        rest = code.binary("and", moved, constant(moved.type, _signed(0x807FFFFF, 32)))
        same = code.compare("icmp", "eq", rest, constant(rest.type, 0))
        old, new = (code.cast("bitcast", v, "float") for v in (a, bits))
        ratio = code.binary(
            "fdiv", code.cast("fpext", new, "double"), code.cast("fpext", old, "double")
        )
        scaled = code.binary("fmul", shadow, ratio)
        size = code.intrinsic("fabs.", scaled.type, [scaled])
        finite = code.compare("fcmp", "olt", size, constant(size.type, INFINITY))
        fine = code.binary("and", same, finite)
        return [_Moved(to, [code.select(fine, scaled, constant(scaled.type, "0.0"))])]

    def _plan_float(self, i: Instruction, kind: str) -> _Plan:
        to = i.operands[0]
        if not isinstance(to, Reg) or self._is_rounding(i):
            return []
        vector = self.varied(i)
        plan: _Plan = []
        for part in (0, 1) if kind.endswith("x2") else (0,):
            inputs = [self._wide(o, kind, part, vector) for o in i.operands[1:]]
            plan.append(_Result(to, kind, part, self.float_value(i, inputs)))
        return plan

    def _is_rounding(self, i: Instruction) -> bool:
        """Adding 2^23 and taking it away again rounds to an integer in float32: no wide value."""
        if i.parts[0] not in {"add", "sub", "fma"} or i.parts[-1] not in {"f32", "f64"}:
            return False
        width = WIDTHS[i.parts[-1]]
        for operand in i.operands[1:]:
            if isinstance(operand, Imm) and _rounds(operand, width):
                return True
            if isinstance(operand, Reg) and operand.name in self._magic:
                return True
        return False

    def _plan_cvt(self, i: Instruction) -> _Plan:
        to, source = i.parts[-2], i.parts[-1]
        register = i.operands[0]
        assert isinstance(register, Reg)
        vector = self.varied(i)
        if to in {"f16x2", "bf16x2"} and source == "f32":
            high, low = i.operands[1:3]
            return [
                _Result(register, to, part, self._clamped(i, self._wide(o, "f32", 0, vector)))
                for part, o in ((0, low), (1, high))
            ]
        if to in FLOATS and source in FLOATS:
            if _TO_INTEGER & set(i.parts):
                return []
            wide = self._clamped(i, self._wide(i.operands[1], source, 0, vector))
            return [_Result(register, "f32" if to == "tf32" else to, 0, wide)]
        if to in FLOATS:
            code = self.code
            value = self.read(i.operands[1], WIDTHS[source], vector)
            exact = code.cast("sitofp" if source.startswith("s") else "uitofp", value, "double")
            return [_Result(register, to, 0, exact)]
        if source in FLOATS:
            return []
        keep = min(WIDTHS[to], WIDTHS[source]) // 16
        return [_Moved(register, [self._shadow(i.operands[1], k, vector) for k in range(keep)])]

    def _clamped(self, i: Instruction, value: Value) -> Value:
        code = self.code
        if "relu" in i.parts or "sat" in i.parts:
            value = code.intrinsic("maxnum.", value.type, [value, constant(value.type, "0.0")])
        if "sat" in i.parts:
            value = code.intrinsic("minnum.", value.type, [value, constant(value.type, "1.0")])
        return value

    # Moving bits ------------------------------------------------------------------------------

    def _all(self, operand: Operand, width: int, vector: bool) -> list[Value | None]:
        return [self._shadow(operand, k, vector) for k in range(max(1, width // 16))]

    def _plan_mov(self, i: Instruction) -> _Plan:
        to, source = i.operands
        width = WIDTHS[i.parts[-1]]
        if width == 1:
            return self._plan_predicate(i, lambda values: values[0])
        vector = self.varies(to) or self.varies(source)
        if isinstance(source, Vector):
            each = width // len(source.items)
            shadows = [s for item in source.items for s in self._all(item, each, vector)]
            assert isinstance(to, Reg)
            return [_Moved(to, shadows if each >= 16 else [])]
        if isinstance(to, Vector):
            each = width // len(to.items)
            whole = self._all(source, width, vector)
            count = each // 16
            return [
                _Moved(item, whole[n * count : (n + 1) * count])
                for n, item in enumerate(to.items)
                if isinstance(item, Reg)
            ]
        assert isinstance(to, Reg)
        return [_Moved(to, self._all(source, width, vector))]

    def _plan_selp(self, i: Instruction) -> _Plan:
        code = self.code
        to, a, b, p = i.operands
        assert isinstance(to, Reg)
        width = WIDTHS[i.parts[-1]]
        vector = self.varied(i)
        actual = self.read(p, 1, vector)
        zero = constant(lanes("double") if vector else "double", "0.0")
        chosen: list[Value | None] = []
        for x, y in zip(self._all(a, width, vector), self._all(b, width, vector), strict=True):
            chosen.append(code.select(actual, x or zero, y or zero) if x or y else None)
        kind = i.parts[-1] if i.parts[-1] in {"f32", "f64"} else ""
        if i.parts[-1] == "b32" and to.name in self._singles:
            kind = "f32"
        if not kind or not self._has(p):
            return [_Moved(to, chosen)]
        assert isinstance(p, Reg)
        wide = self.read(Reg(f"{p.name}#0"), 1, vector)
        value = code.select(wide, self._wide(a, kind, 0, vector), self._wide(b, kind, 0, vector))
        return [_Result(to, kind, 0, value)]

    def _plan_shfl(self, i: Instruction) -> _Plan:
        both = len(i.operands) == 6
        to, source = i.operands[0], i.operands[2 if both else 1]
        assert isinstance(to, Reg)
        if not self._has(source):
            return []
        move, _ = self.shuffle(i)
        shadows: list[Value | None] = []
        for value in self._all(source, 32, vector=True):
            assert value is not None
            shadows.append(self.code.cast("bitcast", move(self.code.bits(value)), "double"))
        return [_Moved(to, shadows)]

    def _plan_prmt(self, i: Instruction) -> _Plan:
        to, a, b, selector = i.operands
        assert isinstance(to, Reg)
        if not isinstance(selector, Imm) or len(i.parts) > 2:
            return []
        vector = self.varied(i)
        shadows: list[Value | None] = []
        for part in (0, 1):
            low, high = (selector.bits >> (8 * part + 4 * n) & 0xF for n in (0, 1))
            whole = low % 2 == 0 and high == low + 1 and low < 8
            source = a if low < 4 else b
            shadows.append(self._shadow(source, low % 4 // 2, vector) if whole else None)
        return [_Moved(to, shadows)]

    def _plan_and(self, i: Instruction) -> _Plan:
        if i.parts[-1] == "pred":
            return self._plan_logic(i)
        to, source, pattern = _constant_last(i)
        if pattern is None:
            return []
        width, vector = WIDTHS[i.parts[-1]], self.varied(i)
        shadows: list[Value | None] = []
        for k in range(width // 16):
            piece = pattern >> (16 * k) & 0xFFFF
            shadow = self._shadow(source, k, vector)
            if shadow is None or piece not in {0x7FFF, 0xFFFF}:
                shadow = None
            elif piece == 0x7FFF:
                shadow = self._without_sign(shadow, source, width, 16 * k + 15)
            elif width == 32 and pattern == 0x7FFFFFFF:
                shadow = self._without_sign(shadow, source, width, 31)
            shadows.append(shadow)
        return [_Moved(to, shadows)]

    def _without_sign(self, shadow: Value, source: Operand, width: int, bit: int) -> Value:
        """The shadow of a float whose sign bit is cleared."""
        code = self.code
        value = self.read(source, width, shadow.vector)
        sign = code.binary("and", value, constant(value.type, _signed(1 << bit, width)))
        minus = code.compare("icmp", "ne", sign, constant(value.type, 0))
        return code.select(minus, code.emit(shadow.type, f"fneg {shadow}"), shadow)

    def _plan_or(self, i: Instruction) -> _Plan:
        if i.parts[-1] == "pred":
            return self._plan_logic(i)
        to, a, b = i.operands
        assert isinstance(to, Reg)
        width, vector = WIDTHS[i.parts[-1]], self.varied(i)
        shadows: list[Value | None] = []
        for x, y in zip(self._all(a, width, vector), self._all(b, width, vector), strict=True):
            shadows.append(self.code.binary("fadd", x, y) if x and y else x or y)
        return [_Moved(to, shadows)]

    def _plan_xor(self, i: Instruction) -> _Plan:
        if i.parts[-1] == "pred":
            return self._plan_logic(i)
        to, source, pattern = _constant_last(i)
        if pattern is None or pattern & 0x7FFF7FFF7FFF7FFF:
            return []
        width, vector = WIDTHS[i.parts[-1]], self.varied(i)
        shadows: list[Value | None] = []
        for k in range(width // 16):
            shadow = self._shadow(source, k, vector)
            # A float's sign is in its last 16 bits, its shadow at its first.
            flips = pattern >> (16 * k + 15) & 1 or (
                width == 32 and k == 0 and pattern == 0x80000000 and self.is_single(source)
            )
            if shadow is not None and flips:
                shadow = self.code.emit(shadow.type, f"fneg {shadow}")
            shadows.append(shadow)
        return [_Moved(to, shadows)]

    def is_single(self, operand: Operand) -> bool:
        """Whether the operand is known to hold a float32."""
        return isinstance(operand, Reg) and operand.name in self._singles

    def _plan_not(self, i: Instruction) -> _Plan:
        if i.parts[-1] != "pred":
            return []
        ones = lambda values: self.code.binary(  # noqa: E731
            "xor", values[0], constant(values[0].type, "true")
        )
        return self._plan_predicate(i, ones)

    def _plan_shl(self, i: Instruction) -> _Plan:
        return self._plan_shift(i, 1)

    def _plan_shr(self, i: Instruction) -> _Plan:
        return self._plan_shift(i, -1)

    def _plan_shift(self, i: Instruction, direction: int) -> _Plan:
        to, source, amount = i.operands
        assert isinstance(to, Reg)
        if not isinstance(amount, Imm) or amount.bits % 16:
            return []
        count = WIDTHS[i.parts[-1]] // 16
        step = direction * (amount.bits // 16)
        vector = self.varied(i)
        return [
            _Moved(
                to,
                [
                    self._shadow(source, k - step, vector) if 0 <= k - step < count else None
                    for k in range(count)
                ],
            )
        ]

    # Predicates -------------------------------------------------------------------------------

    def _wide_truth(self, operand: Operand, vector: bool) -> Value:
        """A predicate as the wide values have it."""
        if self._has(operand):
            assert isinstance(operand, Reg)
            return self.read(Reg(f"{operand.name}#0"), 1, vector)
        return self.read(operand, 1, vector)

    def _plan_predicate(self, i: Instruction, function: object) -> _Plan:
        to = i.operands[0]
        assert isinstance(to, Reg)
        values = [self._wide_truth(o, self.varied(i)) for o in i.operands[1:]]
        return [_Moved(to, [function(values)])]  # type: ignore[operator]

    def _plan_logic(self, i: Instruction) -> _Plan:
        name = i.parts[0]
        return self._plan_predicate(i, lambda v: self.code.binary(name, v[0], v[1]))

    def _plan_setp(self, i: Instruction) -> _Plan:
        code = self.code
        kind = i.parts[-1]
        if kind not in FLOATS or kind.endswith("x2"):
            return []
        boolean = next((p for p in i.parts[1:] if p in {"and", "or", "xor"}), None)
        outputs = len(i.operands) - 2 - (1 if boolean else 0)
        vector = self.varied(i)
        a, b = (self._wide(o, kind, 0, vector) for o in i.operands[outputs : outputs + 2])
        truth = code.compare("fcmp", COMPARE[i.parts[1]], a, b)
        both = [truth, code.binary("xor", truth, constant(truth.type, "true"))]
        if boolean:
            c = self._wide_truth(i.operands[-1], vector)
            both = [code.binary(boolean, value, c) for value in both]
        return [
            _Moved(to, [value])
            for to, value in zip(i.operands[:outputs], both, strict=False)
            if isinstance(to, Reg)
        ]

    # Matrices -----------------------------------------------------------------------------------

    def _buffer(self, rows: int) -> Value:
        self._rows = max(self._rows, rows)
        return Value("ptr", "%wide")

    @property
    def wide_rows(self) -> int:
        """Rows of 32 doubles that the function needs on its stack."""
        return self._rows

    def _put(self, row: int, value: Value | None) -> None:
        code = self.code
        type_ = lanes("double")
        pointer = code.emit("ptr", f"getelementptr double, ptr %wide, i64 {LANES * row}")
        whole = self.vector(value) if value is not None else constant(type_, "0.0")
        code.raw(f"store {whole}, {pointer}, align 64")

    def _get(self, row: int) -> Value:
        type_ = lanes("double")
        pointer = self.code.emit("ptr", f"getelementptr double, ptr %wide, i64 {LANES * row}")
        return self.code.emit(type_, f"load {type_}, {pointer}, align 64")

    def _plan_mma(self, i: Instruction) -> _Plan:
        variant = mma_ir.shape(i.opcode)
        if variant.accumulate == "s32":
            return []
        kind = variant.a_type + ("x2" if variant.per_register == 2 else "")
        row = 0
        for operand in i.operands[1:3]:
            for register in items(operand):
                for part in range(variant.per_register):
                    self._put(row, self._wide(register, kind, part, vector=True))
                    row += 1
        half = variant.packed
        total = "f16x2" if half else variant.accumulate
        for register in items(i.operands[3]):
            for part in (0, 1) if half else (0,):
                self._put(row, self._wide(register, total, part, vector=True))
                row += 1
        self.code.routine(wide_ir.product(variant), [self._buffer(row)])
        plan: _Plan = []
        for n in range(variant.results):
            register = items(i.operands[0])[n // 2 if half else n]
            assert isinstance(register, Reg)
            plan.append(_Result(register, total, n % 2 if half else 0, self._get(n)))
        return plan

    # Memory ---------------------------------------------------------------------------------------

    def _access(self, site: SiteInfo, where: Value, on: Value, nbytes: int) -> list[Value]:
        room = 16 if site.kind == "ldmatrix" else site.bytes_per_lane
        seg = self.segment(site)
        whole = self.vector(where)
        return [CTX, seg, whole, on, Value("i64", str(room)), Value("i64", str(nbytes))]

    def shadow_load(
        self,
        site: SiteInfo,
        where: Value,
        on: Value,
        targets: list[Operand],
        bits: int,
        mask: Value | None,
    ) -> None:
        each = bits // 16
        rows = each * len(targets)
        if rows:
            buffer = self._buffer(rows)
            access = self._access(site, where, on, 2 * rows)
            self.code.routine(wide_ir.LOAD, [*access, buffer])
        for n, target in enumerate(targets):
            if isinstance(target, Reg):
                self._set(target, [self._get(each * n + k) for k in range(each)], mask)

    def shadow_store(
        self, site: SiteInfo, where: Value, on: Value, sources: list[Operand], bits: int
    ) -> None:
        each = bits // 16
        rows = each * len(sources)
        if not rows:
            return
        for n, source in enumerate(sources):
            for k in range(each):
                self._put(each * n + k, self._shadow(source, k, vector=True))
        access = self._access(site, where, on, 2 * rows)
        self.code.routine(wide_ir.STORE, [*access, self._buffer(rows)])

    def shadow_copy(
        self,
        source: SiteInfo,
        where: Value,
        loaded: Value,
        target: SiteInfo,
        there: Value,
        on: Value,
        kept: Value | None,
    ) -> None:
        code = self.code
        nbytes = source.bytes_per_lane
        buffer = self._buffer(nbytes // 2)
        code.routine(wide_ir.LOAD, [*self._access(source, where, loaded, nbytes), buffer])
        if kept is not None:
            for k in range(nbytes // 2):
                inside = code.compare("icmp", "ugt", kept, constant(kept.type, 2 * k))
                value = self._get(k)
                self._put(k, code.select(inside, value, constant(value.type, "0.0")))
        code.routine(wide_ir.STORE, [*self._access(target, there, on, nbytes), buffer])

    def shadow_ldmatrix(
        self, i: Instruction, site: SiteInfo, where: Value, on: Value, count: int, transposed: bool
    ) -> None:
        code = self.code
        every = Value("i32", "-1")
        mask = self.guard(i)
        for matrix, target in enumerate(items(i.operands[0])):
            assert isinstance(target, Reg)
            shadows: list[Value | None] = []
            for half in (0, 1):
                row = [(2 * (n % 4) + half if transposed else n // 4) for n in range(LANES)]
                column = [(n // 4 if transposed else 2 * (n % 4) + half) for n in range(LANES)]
                start = code.shuffle(where, [8 * matrix + r for r in row])
                address = code.binary("add", start, per_lane("i64", [2 * c for c in column]))
                access = self._access(site, address, every, 2)
                code.routine(wide_ir.LOAD, [*access, self._buffer(1)])
                shadows.append(self._get(0))
            self._set(target, shadows, mask)

    def shadow_atomic(
        self,
        site: SiteInfo,
        where: Value,
        on: Value,
        to: Operand | None,
        source: Operand,
        before: Value,
        mask: Value | None,
    ) -> None:
        i = site.instruction
        kind = i.parts[-1]
        nbytes = WIDTHS[kind] // 8
        if kind in FLOATS:
            parts = self._atomic_add(site, where, on, source, before, kind)
        elif "add" in i.parts or "inc" in i.parts or "dec" in i.parts:
            parts = 0
        else:
            parts = nbytes // 2
            self._atomic_replace(site, where, on, source, before)
        if isinstance(to, Reg):
            self._set(to, [self._get(k) for k in range(parts)], mask)

    def _atomic_add(
        self, site: SiteInfo, where: Value, on: Value, source: Operand, before: Value, kind: str
    ) -> int:
        code = self.code
        parts = 2 if kind.endswith("x2") else 1
        for part in range(parts):
            old, value, new = self._added(before, source, kind, part)
            self._put(part, old)
            self._put(parts + part, value)
            self._put(2 * parts + part, new)
        access = self._access(site, where, on, WIDTHS[kind] // 8)
        buffer = self._buffer(3 * parts)
        code.routine(wide_ir.ADD, [*access, Value("i64", str(parts)), buffer])
        return parts

    def _added(
        self, before: Value, source: Operand, kind: str, part: int
    ) -> tuple[Value, Value, Value]:
        """The value before, the operand's wide value, and the rounded sum, as doubles."""
        code = self.code
        wide = self._wide(source, kind, part, vector=True)
        if kind in {"f32", "f64"}:
            old = code.cast("bitcast", before, "float" if kind == "f32" else "double")
            total = code.binary("fadd", old, self.read_float(source, WIDTHS[kind], True))
            return code.cast("fpext", old, "double"), wide, code.cast("fpext", total, "double")
        base = kind.removesuffix("x2")
        shifted = before
        if part:
            shifted = code.binary("lshr", before, constant(before.type, 16))
        old = self.from_half(code.cast("trunc", shifted, "i16"), base)
        value = self._actual(source, kind, part, vector=True)
        total = code.binary("fadd", old, code.cast("fptrunc", value, "float"))
        new = self.from_half(self.to_half(total, base), base)
        return code.cast("fpext", old, "double"), wide, code.cast("fpext", new, "double")

    def _atomic_replace(
        self, site: SiteInfo, where: Value, on: Value, source: Operand, before: Value
    ) -> None:
        """Exchange, compare-and-swap, minimum and maximum: one of two values stays."""
        code = self.code
        i = site.instruction
        bits = WIDTHS[i.parts[-1]]
        value = self.read(source, bits, vector=True)
        if "exch" in i.parts:
            took = constant(lanes("i1"), "true")
        elif "cas" in i.parts:
            took = code.compare("icmp", "eq", before, self.read(i.operands[-2], bits, True))
        else:
            sign = "s" if i.parts[-1].startswith("s") else "u"
            test = {"min": "lt", "max": "gt"}.get(next(p for p in i.parts if p in _EXTREMES), "")
            if not test:
                took = constant(lanes("i1"), "false")
            else:
                took = code.compare("icmp", sign + test, value, before)
        rows = bits // 16
        for k in range(rows):
            self._put(k, self._shadow(source, k, vector=True))
        access = self._access(site, where, on, bits // 8)
        took_bits = code.emit("i32", f"bitcast {took} to i32")
        code.routine(wide_ir.REPLACE, [*access, took_bits, self._buffer(rows)])


_EXTREMES = {"min", "max", "and", "or", "xor"}


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def _constant_last(i: Instruction) -> tuple[Reg, Operand, int | None]:
    """The destination, the operand that is no constant, and the constant's bits."""
    to, a, b = i.operands
    assert isinstance(to, Reg)
    width = WIDTHS[i.parts[-1]]
    for value, other in ((b, a), (a, b)):
        if isinstance(value, Imm):
            return to, other, value.bits & ((1 << width) - 1)
    return to, a, None


def _rounds(value: Imm, width: int) -> bool:
    """Whether adding the constant rounds small numbers to integers (or halves) in its format."""
    bits = value.bits & ((1 << width) - 1)
    exponent = (bits >> 23 & 0xFF) - 127 if width == 32 else (bits >> 52 & 0x7FF) - 1023
    return 22 <= exponent <= 25 if width == 32 else 51 <= exponent <= 54


def _rounding_constants(flow: Flow) -> frozenset[str]:
    """Registers that only ever hold such a constant."""
    written: dict[str, int] = {}
    magic = set()
    for block in flow.blocks:
        for i in block.instructions:
            for register in i.writes:
                written[register.name] = written.get(register.name, 0) + 1
            if i.parts[0] != "mov" or len(i.operands) != 2:
                continue
            to, value = i.operands
            width = WIDTHS[i.parts[-1]]
            if not isinstance(to, Reg) or not isinstance(value, Imm) or width not in {32, 64}:
                continue
            if _rounds(value, width):
                magic.add(to.name)
    return frozenset(name for name in magic if written[name] == 1)
