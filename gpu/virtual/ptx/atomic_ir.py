# ruff: noqa: E501 (LLVM's text form has long lines)
"""Routines for atomics: lanes one after the other, in lane order.

Kernels with float atomics or with atomics whose result is used run on one thread, CTA after CTA,
so that results repeat; others may run on several, hence the atomic instructions for integers.
"""

from __future__ import annotations

from functools import cache

from kopt.gpu.virtual.ptx.ir import Routine, lanes
from kopt.gpu.virtual.ptx.memory_ir import ADDRESSES, RESOLVE, SETTLE, SETTLING

_SIMPLE = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg"}
_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}


def supported(op: str, kind: str) -> bool:
    """Whether there is a routine for this operation on this PTX type."""
    if kind in _WIDTH:
        return op == "add"
    return op in {*_SIMPLE, "min", "max", "inc", "dec", "cas"} and kind[0] in "sub"


@cache
def atomic(op: str, kind: str, bits: int) -> Routine:
    """Every lane does `op` and returns what was there before."""
    one = lanes(f"i{bits}")
    name = f"atom_{op}_{kind}"
    text = f"""
define fastcc {one} @{name}(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i32 %site, {one} %b, {one} %c) #0 noinline {{
entry:
  %good = alloca i32
  %host = alloca <32 x i64>, align 64
  %bs = alloca {one}, align 64
  %cs = alloca {one}, align 64
  %old = alloca {one}, align 64
  store {one} %b, ptr %bs, align 64
  store {one} %c, ptr %cs, align 64
  store {one} zeroinitializer, ptr %old, align 64
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %done, label %begin
begin:
  %hv = call fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i64 {bits // 8}, i32 %site, ptr %good)
  store <32 x i64> %hv, ptr %host, align 64
  %gm = load i32, ptr %good
  br label %loop
loop:
  %rest = phi i32 [ %gm, %begin ], [ %rest1, %next ]
  %some = icmp ne i32 %rest, 0
  br i1 %some, label %do, label %done
do:
  %lane = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %ap = getelementptr i64, ptr %host, i32 %lane
  %ai = load i64, ptr %ap
  %p = inttoptr i64 %ai to ptr
  %bp = getelementptr i{bits}, ptr %bs, i32 %lane
  %vb = load i{bits}, ptr %bp
  %cp = getelementptr i{bits}, ptr %cs, i32 %lane
  %vc = load i{bits}, ptr %cp
{_body(op, kind, bits)}
  %op = getelementptr i{bits}, ptr %old, i32 %lane
  store i{bits} %was, ptr %op
  br label %next
next:
  %less = sub i32 %rest, 1
  %rest1 = and i32 %rest, %less
  br label %loop
done:{SETTLING if (op, bits) == ("cas", 32) else ""}
  %r = load {one}, ptr %old, align 64
  ret {one} %r
}}
"""
    arguments = ("ptr", "ptr", ADDRESSES, "i32", "i32", one, one)
    return Routine(name, one, arguments, text, (RESOLVE, SETTLE))


def _body(op: str, kind: str, bits: int) -> str:
    if kind in _WIDTH:
        return _float_add(kind, bits)
    if op == "cas":
        return (
            f"  %pair = cmpxchg ptr %p, i{bits} %vb, i{bits} %vc seq_cst seq_cst\n"
            f"  %was = extractvalue {{i{bits}, i1}} %pair, 0"
        )
    if op in {"inc", "dec"}:
        name = "uinc_wrap" if op == "inc" else "udec_wrap"
        return f"  %was = atomicrmw {name} ptr %p, i{bits} %vb seq_cst"
    if op in {"min", "max"}:
        name = op if kind.startswith("s") else "u" + op
    else:
        name = _SIMPLE[op]
    return f"  %was = atomicrmw {name} ptr %p, i{bits} %vb seq_cst"


def _float_add(kind: str, bits: int) -> str:
    """A plain read and write is enough: such kernels run on one thread."""
    if kind in {"f32", "f64"}:
        real = "float" if bits == 32 else "double"
        return f"""
  %was = load i{bits}, ptr %p
  %wf = bitcast i{bits} %was to {real}
  %bf = bitcast i{bits} %vb to {real}
  %sf = fadd {real} %wf, %bf
  %si = bitcast {real} %sf to i{bits}
  store i{bits} %si, ptr %p"""
    parts = bits // 16
    vector = f"<{parts} x i16>"
    lines = [
        f"  %was = load i{bits}, ptr %p",
        f"  %wv = bitcast i{bits} %was to {vector}",
        f"  %bv = bitcast i{bits} %vb to {vector}",
    ]
    if kind.startswith("f16"):
        half, real = f"<{parts} x half>", f"<{parts} x float>"
        lines += [
            f"  %wh = bitcast {vector} %wv to {half}\n  %wf = fpext {half} %wh to {real}",
            f"  %bh = bitcast {vector} %bv to {half}\n  %bf = fpext {half} %bh to {real}",
            f"  %sf = fadd {real} %wf, %bf\n  %sh = fptrunc {real} %sf to {half}",
            f"  %sv = bitcast {half} %sh to {vector}",
        ]
    else:
        word, real = f"<{parts} x i32>", f"<{parts} x float>"
        for tag in "wb":
            lines += [
                f"  %{tag}z = zext {vector} %{tag}v to {word}",
                f"  %{tag}y = shl {word} %{tag}z, splat (i32 16)",
                f"  %{tag}f = bitcast {word} %{tag}y to {real}",
            ]
        # Round to nearest even; a NaN stays one.
        lines += [
            f"  %sf = fadd {real} %wf, %bf",
            f"  %si = bitcast {real} %sf to {word}",
            f"  %so = lshr {word} %si, splat (i32 16)",
            f"  %sq = and {word} %so, splat (i32 1)",
            f"  %sp = add {word} %sq, splat (i32 32767)",
            f"  %sn = add {word} %si, %sp",
            f"  %sm = lshr {word} %sn, splat (i32 16)",
            f"  %nan = fcmp uno {real} %sf, %sf",
            f"  %sk = select <{parts} x i1> %nan, {word} splat (i32 32767), {word} %sm",
            f"  %sv = trunc {word} %sk to {vector}",
        ]
    return "\n".join(
        [*lines, f"  %si.n = bitcast {vector} %sv to i{bits}", f"  store i{bits} %si.n, ptr %p"]
    )
