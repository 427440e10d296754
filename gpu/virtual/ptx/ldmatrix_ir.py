"""`ldmatrix` as a shared routine (PTX ISA 8.8, section 9.7.14.5.15)."""

from __future__ import annotations

from functools import cache

from kopt.gpu.virtual.ptx.ir import LANES, Code, Routine, Value, lanes
from kopt.gpu.virtual.ptx.memory_ir import ADDRESSES, RESOLVE, lane_pointers

I32 = lanes("i32")


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
