"""`mma.sync` as shared routines over fragments.

Fragment layouts: PTX ISA 8.8, section 9.7.14.5 (figures of `mma.m16n8k*` and `mma.m8n8k4`). Lane l
is row group g = l / 4 and column group t = l % 4. Products are summed into the accumulator in k
order with one rounding per step (fused multiply-add).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx.ir import LANES, Code, Routine, Value, constant, lanes

I32 = lanes("i32")
_PER_REGISTER = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4, "f64": 1}
_ACCUMULATORS = {
    "f16": {"f16", "f32"}, "bf16": {"f32"}, "tf32": {"f32"}, "s8": {"s32"}, "u8": {"s32"},
    "f64": {"f64"},
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """One variant of `mma.sync`: D = A × B + C, where C has the type of D."""

    rows: int
    """16 or 8; there are always 8 columns."""
    k: int
    a_type: str
    b_type: str
    accumulate: str
    saturates: bool

    @property
    def per_register(self) -> int:
        """Elements of A or B in one register of a lane."""
        return _PER_REGISTER[self.a_type]

    @property
    def a_registers(self) -> int:
        """Registers of A in a lane."""
        return self.rows // 8 * self.b_registers

    @property
    def b_registers(self) -> int:
        """Registers of B in a lane."""
        return self.k // (4 * self.per_register)

    @property
    def results(self) -> int:
        """Elements of C in a lane."""
        return self.rows // 4

    @property
    def packed(self) -> bool:
        """Whether C has two elements in a register."""
        return self.accumulate == "f16"

    @property
    def bits(self) -> int:
        """Width of every register."""
        return 64 if self.a_type == "f64" else 32

    @property
    def name(self) -> str:
        """Of the routine."""
        tail = "_sat" if self.saturates else ""
        return f"mma_m{self.rows}k{self.k}_{self.a_type}_{self.b_type}_{self.accumulate}{tail}"


def shape(opcode: str) -> Shape:
    """The variant that a full opcode names: shape, then types of D, A, B and C."""
    parts = opcode.split(".")
    tile = next((p for p in parts if p.startswith(("m16n8k", "m8n8k4"))), "")
    types = [p for p in parts if p in {*_PER_REGISTER, "f32", "s32"}]
    wrong = Unsupported(f"the virtual GPU does not execute {opcode}")
    if not tile or len(types) != 4:
        raise wrong
    total, a_type, b_type, c_type = types
    rows, k = (int(n) for n in tile[1:].split("n8k"))
    if total != c_type or total not in _ACCUMULATORS.get(a_type, set()):
        raise wrong
    mixed = {a_type, b_type} == {"s8", "u8"}
    if (a_type != b_type and not mixed) or (rows == 8) != (a_type == "f64"):
        raise wrong
    if k % (4 * _PER_REGISTER[a_type]):
        raise wrong
    return Shape(rows, k, a_type, b_type, total, "satfinite" in parts)


def _unpack(code: Code, register: Value, part: int, kind: str) -> Value:
    """Element `part` of each lane's register, as float, double or i32."""
    if kind == "f64":
        return code.cast("bitcast", register, "double")
    if kind == "tf32":
        kept = code.binary("and", register, constant(I32, -8192))
        return code.cast("bitcast", kept, "float")
    if kind in {"s8", "u8"}:
        left = code.binary("shl", register, constant(I32, 24 - 8 * part))
        return code.binary("ashr" if kind == "s8" else "lshr", left, constant(I32, 24))
    if kind == "bf16":
        if part:
            bits = code.binary("and", register, constant(I32, -65536))
        else:
            bits = code.binary("shl", register, constant(I32, 16))
        return code.cast("bitcast", bits, "float")
    shifted = code.binary("lshr", register, constant(I32, 16)) if part else register
    half = code.cast("bitcast", code.cast("trunc", shifted, "i16"), "half")
    return code.cast("fpext", half, "float")


def multiply(
    code: Code, variant: Shape, a: list[list[Value]], b: list[list[Value]], total: list[Value]
) -> list[Value]:
    """The accumulators after all steps; `a` and `b` by register and part."""
    per = variant.per_register
    groups = variant.rows // 8
    for k in range(variant.k):
        block, inside = divmod(k, 4 * per)
        quad, part = divmod(inside, per)
        rows = [
            code.shuffle(
                a[groups * block + high][part], [lane // 4 * 4 + quad for lane in range(LANES)]
            )
            for high in range(groups)
        ]
        columns = [
            code.shuffle(
                b[block][part], [(2 * (lane % 4) + odd) * 4 + quad for lane in range(LANES)]
            )
            for odd in (0, 1)
        ]
        total = [_step(code, rows[n // 2], columns[n % 2], value) for n, value in enumerate(total)]
    return total


def _step(code: Code, row: Value, column: Value, total: Value) -> Value:
    if total.element == "i32":
        return code.binary("add", total, code.binary("mul", row, column))
    return code.intrinsic("fma.", total.type, [row, column, total])


@cache
def routine(variant: Shape) -> Routine:
    """Multiplies fragments A and B and adds fragment C."""
    code = Code()
    word = lanes(f"i{variant.bits}")
    parts = range(variant.per_register)
    a = [
        [_unpack(code, Value(word, f"%a{r}"), p, variant.a_type) for p in parts]
        for r in range(variant.a_registers)
    ]
    b = [
        [_unpack(code, Value(word, f"%b{r}"), p, variant.b_type) for p in parts]
        for r in range(variant.b_registers)
    ]
    registers = variant.results // (2 if variant.packed else 1)
    element = {"s32": "i32", "f64": "double"}.get(variant.accumulate, "float")
    if variant.packed:
        c = [_unpack(code, Value(word, f"%c{r}"), p, "f16") for r in range(2) for p in range(2)]
    else:
        c = [code.cast("bitcast", Value(word, f"%c{i}"), element) for i in range(registers)]
    if variant.saturates and element == "i32":
        zero = [constant(word, 0)] * len(c)
        sums = multiply(code, variant, a, b, zero)
        total = [code.intrinsic("sadd.sat.", word, [x, y]) for x, y in zip(c, sums, strict=True)]
    else:
        total = multiply(code, variant, a, b, c)
    if variant.packed:
        results = [_repack(code, total[:2]), _repack(code, total[2:])]
    else:
        results = [code.bits(value) for value in total]
    pack = "{" + ", ".join([word] * len(results)) + "}"
    last = "poison"
    for index, value in enumerate(results):
        last = code.emit(pack, f"insertvalue {pack} {last}, {value}, {index}").ref
    names = [f"%a{i}" for i in range(variant.a_registers)]
    names += [f"%b{i}" for i in range(variant.b_registers)]
    names += [f"%c{i}" for i in range(registers)]
    body = "\n".join(code.lines)
    text = (
        f"define fastcc {pack} @{variant.name}({', '.join(f'{word} {n}' for n in names)})"
        f" #0 noinline {{\n{body}\n  ret {pack} {last}\n}}"
    )
    return Routine(variant.name, pack, (word,) * len(names), text)


def _repack(code: Code, pair: list[Value]) -> Value:
    """Two floats as halves of one register."""
    low, high = (code.cast("zext", code.bits(code.cast("fptrunc", v, "half")), "i32") for v in pair)
    return code.binary("or", low, code.binary("shl", high, constant(I32, 16)))
