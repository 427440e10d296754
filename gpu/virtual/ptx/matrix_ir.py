"""Matrix instructions as shared routines: `mma.sync` over fragments, and `ldmatrix`.

Fragment layouts: PTX ISA 8.8, section 9.7.14.5 (figures of `mma.m16n8k*`). Lane l is row group
g = l / 4 and column group t = l % 4. Products are summed into the accumulator in k order with one
rounding per step (fused multiply-add in fp32).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx.ir import LANES, Code, Routine, Value, constant, lanes
from kopt.gpu.virtual.ptx.memory_ir import ADDRESSES, RESOLVE, lane_pointers

I32, F32 = lanes("i32"), lanes("float")


@dataclass(frozen=True)
class Shape:
    """One `mma.sync` variant: registers per lane of A and B, and elements per register."""

    a_registers: int
    b_registers: int
    per_register: int
    a_type: str
    accumulate: str
    """`f32`, `f16` or `s32`."""

    @property
    def k(self) -> int:
        return self.b_registers * self.per_register * 4

    @property
    def name(self) -> str:
        return f"mma_k{self.k}_{self.a_type}_{self.accumulate}"


_PER_REGISTER = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}


def shape(opcode: str) -> Shape:
    """The variant that a full opcode names: shape, then types of D, A, B and C."""
    parts = opcode.split(".")
    tile = next((p for p in parts if p.startswith("m16n8k")), "")
    types = [p for p in parts if p in {"f16", "bf16", "tf32", "f32", "s8", "u8", "s32"}]
    if not tile or len(types) != 4 or "satfinite" in parts:
        raise Unsupported(f"the virtual GPU does not execute {opcode}")
    accumulate, a_type, b_type, _ = types
    k = int(tile[6:])
    per = _PER_REGISTER.get(a_type)
    if per is None or a_type != b_type or types[3] != accumulate or k % (4 * per):
        raise Unsupported(f"the virtual GPU does not execute {opcode}")
    return Shape(k // (4 * per) * 2, k // (4 * per), per, a_type, accumulate)


def _unpack(code: Code, register: Value, part: int, kind: str) -> Value:
    """Element `part` of each lane's register, as float or as i32."""
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


@cache
def routine(variant: Shape) -> Routine:
    """Multiplies fragments A and B and adds fragment C."""
    code = Code()
    a = [
        [
            _unpack(code, Value(I32, f"%a{r}"), p, variant.a_type)
            for p in range(variant.per_register)
        ]
        for r in range(variant.a_registers)
    ]
    b = [
        [
            _unpack(code, Value(I32, f"%b{r}"), p, variant.a_type)
            for p in range(variant.per_register)
        ]
        for r in range(variant.b_registers)
    ]
    integer = variant.accumulate == "s32"
    kind = "i32" if integer else "float"
    if variant.accumulate == "f16":
        registers = [
            _unpack(code, Value(I32, f"%c{r}"), p, "f16") for r in range(2) for p in range(2)
        ]
    else:
        registers = [code.cast("bitcast", Value(I32, f"%c{i}"), kind) for i in range(4)]
    total = registers
    for k in range(variant.k):
        block, inside = divmod(k, 4 * variant.per_register)
        quad, part = divmod(inside, variant.per_register)
        rows = [
            code.shuffle(a[2 * block + high][part], [lane // 4 * 4 + quad for lane in range(LANES)])
            for high in (0, 1)
        ]
        columns = [
            code.shuffle(
                b[block][part], [(2 * (lane % 4) + odd) * 4 + quad for lane in range(LANES)]
            )
            for odd in (0, 1)
        ]
        new = []
        for index in range(4):
            row, column = rows[index // 2], columns[index % 2]
            if integer:
                new.append(code.binary("add", total[index], code.binary("mul", row, column)))
            else:
                new.append(code.intrinsic("fma.", F32, [row, column, total[index]]))
        total = new
    if variant.accumulate == "f16":
        halves = [
            code.cast("zext", code.bits(code.cast("fptrunc", value, "half")), "i32")
            for value in total
        ]
        results = [
            code.binary(
                "or", halves[2 * r], code.binary("shl", halves[2 * r + 1], constant(I32, 16))
            )
            for r in range(2)
        ]
    else:
        results = [code.cast("bitcast", value, "i32") for value in total]
    pack = "{" + ", ".join([I32] * len(results)) + "}"
    last = "poison"
    for index, value in enumerate(results):
        last = code.emit(pack, f"insertvalue {pack} {last}, {value}, {index}").ref
    names = [f"%a{i}" for i in range(variant.a_registers)]
    names += [f"%b{i}" for i in range(variant.b_registers)]
    names += [f"%c{i}" for i in range(len(results))]
    body = "\n".join(code.lines)
    text = (
        f"define fastcc {pack} @{variant.name}({', '.join(f'{I32} {n}' for n in names)})"
        f" #0 noinline {{\n{body}\n  ret {pack} {last}\n}}"
    )
    return Routine(variant.name, pack, (I32,) * len(names), text)


@cache
def ldmatrix(count: int, transposed: bool) -> Routine:
    """Lane 8·j + r gives the address of row r of the j-th 8×8 matrix of 16-bit elements."""
    code = Code()
    name = f"ldmatrix_{count}{'t' if transposed else ''}"
    pack = "{" + ", ".join([I32] * count) + "}" if count > 1 else I32
    code.raw("%good = alloca i32")
    code.raw("%spare = alloca <16 x i8>, align 16")
    code.raw("store <16 x i8> zeroinitializer, ptr %spare")
    code.raw(
        "%hv = call fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask,"
        " i64 16, i32 %site, ptr %good)"
    )
    code.raw("%gm = load i32, ptr %good")
    code.lines += lane_pointers(8 * count)
    last = "poison"
    for matrix in range(count):
        rows = [
            code.emit("<4 x i32>", f"load <4 x i32>, ptr %p{8 * matrix + row}, align 16")
            for row in range(8)
        ]
        while len(rows) > 1:
            rows = [
                code.shuffle(rows[i], list(range(2 * _length(rows[i]))), rows[i + 1])
                for i in range(0, len(rows), 2)
            ]
        value = rows[0]
        if transposed:
            halves = code.emit("<64 x i16>", f"bitcast {value} to <64 x i16>")
            picks = [
                (2 * (lane % 4) + half) * 8 + lane // 4 for lane in range(LANES) for half in (0, 1)
            ]
            value = code.emit(I32, f"bitcast {code.shuffle(halves, picks)} to {I32}")
        if count == 1:
            last = value.ref
        else:
            last = code.emit(pack, f"insertvalue {pack} {last}, {value}, {matrix}").ref
    body = "\n".join(code.lines)
    text = (
        f"define fastcc {pack} @{name}(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask,"
        f" i32 %site) #0 noinline {{\n{body}\n  ret {pack} {last}\n}}"
    )
    return Routine(name, pack, ("ptr", "ptr", ADDRESSES, "i32", "i32"), text, (RESOLVE,))


def _length(value: Value) -> int:
    return int(value.type[1 : value.type.index(" ")])
