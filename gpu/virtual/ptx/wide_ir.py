"""Routines of `wide` arithmetic: shadows in memory, and matrix products in float64.

A shadow is a double for every two bytes of memory: the wide value minus the stored value of the
float that starts there. These routines go lane by lane; only small inputs run in this arithmetic.
"""

from __future__ import annotations

from functools import cache

from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx.ir import LANES, Code, Routine, Value, lanes
from kopt.gpu.virtual.ptx.memory_ir import ADDRESSES, FIND
from kopt.gpu.virtual.ptx.mma_ir import Shape, multiply

_SETUP = f"""
  %in = alloca <32 x i64>, align 64
  store <32 x i64> %address, ptr %in, align 64
  %slack = sub i64 %room, %bytes
  br label %loop
loop:
  %rest = phi i32 [ %mask, %entry ], [ %rest1, %next ]
  %some = icmp ne i32 %rest, 0
  br i1 %some, label %look, label %done
look:
  %lane = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %ap = getelementptr i64, ptr %in, i32 %lane
  %a = load i64, ptr %ap
  %lo = load i64, ptr %seg
  %limit.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  %limit = load i64, ptr %limit.p
  %from = sub i64 %a, %lo
  ; The cached limit is for accesses of %room bytes.
  %closed = icmp eq i64 %limit, 0
  %wider = add i64 %limit, %slack
  %open = select i1 %closed, i64 0, i64 %wider
  %inside = icmp ult i64 %from, %open
  br i1 %inside, label %hit, label %search
search:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %a, i64 %a, i64 %room)
  br i1 %ok, label %hit, label %next
hit:
  %origin.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_SHADOW}
  %origin = load i64, ptr %origin.p
  %none = icmp eq i64 %origin, 0
  br i1 %none, label %next, label %have
have:
  %four = shl i64 %a, 2
  %sp.i = add i64 %origin, %four
  %sp = inttoptr i64 %sp.i to ptr"""

_NEXT = """
next:
  %less = sub i32 %rest, 1
  %rest1 = and i32 %rest, %less
  br label %loop
done:
  ret void
}
"""
_HEAD = "ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i64 %room, i64 %bytes"
_TYPES = ("ptr", "ptr", ADDRESSES, "i32", "i64", "i64")


def _each_part(body: str, count: str) -> str:
    """A loop over the shadows of one access: `%k` counts, `%o` is the lane's place in an array."""
    return f"""
  br label %part
part:
  %k = phi i64 [ 0, %have ], [ %k1, %part.next ]
  %more = icmp ult i64 %k, {count}
  br i1 %more, label %part.do, label %next
part.do:
  %row = mul i64 %k, {LANES}
  %lane64 = zext i32 %lane to i64
  %o = add i64 %row, %lane64
  %dp = getelementptr double, ptr %sp, i64 %k
{body}
  br label %part.next
part.next:
  %k1 = add i64 %k, 1
  br label %part"""


LOAD = Routine(
    "wide_load",
    "void",
    (*_TYPES, "ptr"),
    f"""
; %out gets the shadows of %bytes at each address: one row of 32 for every two bytes.
define fastcc void @wide_load({_HEAD}, ptr %out) #0 noinline {{
entry:
  %size = mul i64 %bytes, {LANES * 4}
  call void @llvm.memset.p0.i64(ptr %out, i8 0, i64 %size, i1 false)
  %halves = lshr i64 %bytes, 1{_SETUP}{
        _each_part(
            '''  %v = load double, ptr %dp, align 4
  %op = getelementptr double, ptr %out, i64 %o
  store double %v, ptr %op''',
            "%halves",
        )
    }{_NEXT}""",
    (FIND,),
)

STORE = Routine(
    "wide_store",
    "void",
    (*_TYPES, "ptr"),
    f"""
define fastcc void @wide_store({_HEAD}, ptr %values) #0 noinline {{
entry:
  %halves = lshr i64 %bytes, 1{_SETUP}{
        _each_part(
            '''  %vp = getelementptr double, ptr %values, i64 %o
  %v = load double, ptr %vp
  store double %v, ptr %dp, align 4''',
            "%halves",
        )
    }{_NEXT}""",
    (FIND,),
)

REPLACE = Routine(
    "wide_replace",
    "void",
    (*_TYPES, "i32", "ptr"),
    f"""
; Atomics that put their operand there (in the lanes of %took) or leave what is there.
define fastcc void @wide_replace({_HEAD}, i32 %took, ptr %values) #0 noinline {{
entry:
  %halves = lshr i64 %bytes, 1{_SETUP}
  %bit = shl i32 1, %lane
  %hit.bit = and i32 %took, %bit
  %takes = icmp ne i32 %hit.bit, 0{
        _each_part(
            '''  %vp = getelementptr double, ptr %values, i64 %o
  %v = load double, ptr %vp
  %old = load double, ptr %dp, align 4
  store double %old, ptr %vp
  %new = select i1 %takes, double %v, double %old
  store double %new, ptr %dp, align 4''',
            "%halves",
        )
    }{_NEXT}""",
    (FIND,),
)

ADD = Routine(
    "wide_add",
    "void",
    (*_TYPES, "i64", "ptr"),
    f"""
; Float additions: %values holds rows of values before, operands (wide) and values after, and gets
; the shadows before in the first rows.
define fastcc void @wide_add({_HEAD}, i64 %parts, ptr %values) #0 noinline {{
entry:
  %block = mul i64 %parts, {LANES}{_SETUP}{
        _each_part(
            '''  %bp = getelementptr double, ptr %values, i64 %o
  %b = load double, ptr %bp
  %vp = getelementptr double, ptr %bp, i64 %block
  %v = load double, ptr %vp
  %np = getelementptr double, ptr %vp, i64 %block
  %n = load double, ptr %np
  %old = load double, ptr %dp, align 4
  store double %old, ptr %bp
  %was = fadd double %b, %old
  %now = fadd double %was, %v
  %d = fsub double %now, %n
  %size = call double @llvm.fabs.f64(double %d)
  %finite = fcmp olt double %size, 0x7FF0000000000000
  %kept = select i1 %finite, double %d, double 0.0
  store double %kept, ptr %dp, align 4''',
            "%parts",
        )
    }{_NEXT}""",
    (FIND,),
)


@cache
def product(variant: Shape) -> Routine:
    """The variant's matrix product on doubles. The argument points to rows of 32 doubles: elements
    of A (by register, then by part), of B, of C; the results replace the first rows."""
    code = Code()
    type_ = lanes("double")
    row = 0

    def load() -> Value:
        nonlocal row
        pointer = code.emit("ptr", f"getelementptr double, ptr %values, i64 {LANES * row}")
        row += 1
        return code.emit(type_, f"load {type_}, {pointer}, align 64")

    per = variant.per_register
    a = [[load() for _ in range(per)] for _ in range(variant.a_registers)]
    b = [[load() for _ in range(per)] for _ in range(variant.b_registers)]
    total = multiply(code, variant, a, b, [load() for _ in range(variant.results)])
    for index, value in enumerate(total):
        pointer = code.emit("ptr", f"getelementptr double, ptr %values, i64 {LANES * index}")
        code.raw(f"store {value}, {pointer}, align 64")
    name = f"wide_{variant.name}"
    body = "\n".join(code.lines)
    text = f"define fastcc void @{name}(ptr %values) #0 noinline {{\n{body}\n  ret void\n}}"
    return Routine(name, "void", ("ptr",), text)
