# ruff: noqa: E501 (LLVM's text form has long lines)
"""Routines that count what a memory access costs, called before it in counted code.

Global memory: distinct 32-byte sectors and 128-byte lines of a warp's request, each line a row of
the line log. Shared memory: passes over 32 banks of 4 bytes; 8-byte accesses go in two halves of
the warp, 16-byte ones in four quarters (CUDA C++ Programming Guide, shared memory).
"""

from __future__ import annotations

from functools import cache

from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx.ir import (
    LANES,
    Routine,
    lanes,
    load_pointers,
    load_slots,
)
from kopt.gpu.virtual.ptx.memory_ir import ADDRESSES, contiguous

# A row is kept when the hash's lowest bits, those of the sampling rate, are all zero.
THIN = Routine(
    "thin",
    "void",
    ("ptr",),
    f"""
; Halves the line log: doubles the sampling rate and drops the rows it does not keep.
define fastcc void @thin(ptr %ctx) #0 noinline cold {{
entry:
{load_pointers(rows=ctx.LINES)}
{load_slots(n=ctx.LINE_COUNT, sample=ctx.SAMPLE)}
  %twice = shl i64 %sample, 1
  %next.sample = or i64 %twice, 1
  store i64 %next.sample, ptr %sample.p
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %kept = phi i64 [ 0, %entry ], [ %kept2, %next ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %done
look:
  %row = getelementptr [{ctx.LINE_BYTES} x i8], ptr %rows, i64 %i
  %line.p = getelementptr i8, ptr %row, i64 8
  %line = load i64, ptr %line.p, align 1
  %product = mul i64 %line, {ctx.HASH - (1 << 64)}
  %hash = lshr i64 %product, 40
  %bits = and i64 %hash, %next.sample
  %keep = icmp eq i64 %bits, 0
  br i1 %keep, label %move, label %next
move:
  %to = getelementptr [{ctx.LINE_BYTES} x i8], ptr %rows, i64 %kept
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %row, i64 {ctx.LINE_BYTES}, i1 false)
  %kept1 = add i64 %kept, 1
  br label %next
next:
  %kept2 = phi i64 [ %kept, %look ], [ %kept1, %move ]
  %i1 = add i64 %i, 1
  br label %loop
done:
  store i64 %kept, ptr %n.p
  ret void
}}
""",
)

EMIT = Routine(
    "emit",
    "void",
    ("ptr", "i64", "i32", "i32", "i32"),
    f"""
; One row of the line log.
define fastcc void @emit(ptr %ctx, i64 %line, i32 %sectors, i32 %order, i32 %kind) #0 noinline {{
entry:
  %product = mul i64 %line, {ctx.HASH - (1 << 64)}
  %hash = lshr i64 %product, 40
  br label %try
try:
{load_slots(sample=ctx.SAMPLE, n=ctx.LINE_COUNT, limit=ctx.LINE_LIMIT)}
  %bits = and i64 %hash, %sample
  %keep = icmp eq i64 %bits, 0
  br i1 %keep, label %room, label %done
room:
  %fits = icmp ult i64 %n, %limit
  br i1 %fits, label %write, label %full
full:
  call fastcc void @thin(ptr %ctx)
  br label %try
write:
{load_pointers(rows=ctx.LINES)}
{load_slots(cta=ctx.CTA)}
  %row = getelementptr [{ctx.LINE_BYTES} x i8], ptr %rows, i64 %n
  %cta32 = trunc i64 %cta to i32
  store i32 %cta32, ptr %row, align 1
  %p1 = getelementptr i8, ptr %row, i64 4
  store i32 %order, ptr %p1, align 1
  %p2 = getelementptr i8, ptr %row, i64 8
  store i64 %line, ptr %p2, align 1
  %p3 = getelementptr i8, ptr %row, i64 16
  %sector.mask = trunc i32 %sectors to i8
  store i8 %sector.mask, ptr %p3
  %p4 = getelementptr i8, ptr %row, i64 17
  %kind8 = trunc i32 %kind to i8
  store i8 %kind8, ptr %p4
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %n.p
  br label %done
done:
  ret void
}}
""",
    (THIN,),
)


def _add(slot: int, value: str, tag: str) -> str:
    """Text that adds to a slot of `%tally`."""
    return f"""
  %{tag}.p = getelementptr i64, ptr %tally, i64 {slot}
  %{tag}.o = load i64, ptr %{tag}.p
  %{tag}.n = add i64 %{tag}.o, {value}
  store i64 %{tag}.n, ptr %{tag}.p"""


def _start() -> str:
    """Counts the request and its lanes; `%wide.mask` is the mask as i64."""
    return f"""
entry:
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %done, label %start
start:
  %ones = call i32 @llvm.ctpop.i32(i32 %mask)
  %ones64 = zext i32 %ones to i64{_add(ctx.REQUESTS, "1", "req")}{_add(ctx.LANES, "%ones64", "lan")}"""


PLAIN = Routine(
    "count_plain",
    "void",
    ("ptr", "i32"),
    f"""
define fastcc void @count_plain(ptr %tally, i32 %mask) #0 {{{_start()}
  br label %done
done:
  ret void
}}
""",
)


@cache
def count_global(size: int) -> Routine:
    """A request to global memory in which each lane moves `size` bytes."""
    grain = max(2, size)
    grains = 128 // grain
    quarter = grains // 4
    sectors = []
    for q in range(4):
        sectors.append(
            f"""
  %sh{q} = lshr i64 %g, {q * quarter}
  %sq{q} = and i64 %sh{q}, {(1 << quarter) - 1}
  %sn{q} = icmp ne i64 %sq{q}, 0
  %sb{q} = select i1 %sn{q}, i32 {1 << q}, i32 0"""
        )
    shift = grain.bit_length() - 1
    text = f"""
define fastcc void @count_global_{size}(ptr %ctx, ptr %tally, <32 x i64> %address, i32 %mask, i32 %kind) #0 noinline {{
{_start()}
{load_pointers(orders=ctx.ORDERS)}
{load_slots(warp=ctx.WARP, warps=ctx.WARPS)}
  %mine.p = getelementptr i64, ptr %orders, i64 %warp
  %mine = load i64, ptr %mine.p
  %mine1 = add i64 %mine, 1
  store i64 %mine1, ptr %mine.p
  %in.turn = mul i64 %mine, %warps
  %order64 = add i64 %in.turn, %warp
  %order = trunc i64 %order64 to i32
{contiguous(size)}
line:
  %f32 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l32 = call i32 @llvm.ctlz.i32(i32 %mask, i1 true)
  %down = lshr i32 %mask, %f32
  %up = add i32 %down, 1
  %holes = and i32 %down, %up
  %solid = icmp eq i32 %holes, 0
  br i1 %solid, label %run, label %spread
run:
  %f = zext i32 %f32 to i64
  %l = zext i32 %l32 to i64
  %fo = mul i64 %f, {size}
  %first = add i64 %a0, %fo
  %count.end = sub i64 32, %l
  %eo = mul i64 %count.end, {size}
  %end = add i64 %a0, %eo
  %last = sub i64 %end, 1
  %s.first = lshr i64 %first, 5
  %s.last = lshr i64 %last, 5
  %s.diff = sub i64 %s.last, %s.first
  %s.count = add i64 %s.diff, 1
  %bytes = sub i64 %end, %first
  %rounded = add i64 %bytes, 31
  %least = lshr i64 %rounded, 5{_add(ctx.SECTORS, "%s.count", "sec")}{_add(ctx.IDEAL, "%least", "ide")}
  %line.first = lshr i64 %s.first, 2
  %line.last = lshr i64 %s.last, 2
  br label %lines
lines:
  %at = phi i64 [ %line.first, %run ], [ %at1, %lines ]
  %base = shl i64 %at, 2
  %under = icmp ugt i64 %s.first, %base
  %low64 = sub i64 %s.first, %base
  %low = select i1 %under, i64 %low64, i64 0
  %high64 = sub i64 %s.last, %base
  %over = icmp ugt i64 %high64, 3
  %high = select i1 %over, i64 3, i64 %high64
  %high1 = add i64 %high, 1
  %hi.bit = shl i64 1, %high1
  %lo.bit = shl i64 1, %low
  %bits64 = sub i64 %hi.bit, %lo.bit
  %bits = trunc i64 %bits64 to i32
  call fastcc void @emit(ptr %ctx, i64 %at, i32 %bits, i32 %order, i32 %kind)
  %at1 = add i64 %at, 1
  %again = icmp ule i64 %at1, %line.last
  br i1 %again, label %lines, label %done
spread:
  %lanes.p = alloca <32 x i64>, align 64
  %line.v = lshr <32 x i64> %address, splat (i64 7)
  store <32 x i64> %line.v, ptr %lanes.p, align 64
  %grain0 = lshr <32 x i64> %address, splat (i64 {shift})
  %grain = and <32 x i64> %grain0, splat (i64 {grains - 1})
  %grain.bit = shl <32 x i64> splat (i64 1), %grain
  br label %each
each:
  %rest = phi i32 [ %mask, %spread ], [ %rest1, %each ]
  %all.sectors = phi i32 [ 0, %spread ], [ %all.sectors1, %each ]
  %all.grains = phi i64 [ 0, %spread ], [ %all.grains1, %each ]
  %lane = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %my.p = getelementptr i64, ptr %lanes.p, i32 %lane
  %my = load i64, ptr %my.p
  %my0 = insertelement <32 x i64> poison, i64 %my, i32 0
  %my.v = shufflevector <32 x i64> %my0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %line.v, %my.v
  %same.m = bitcast <32 x i1> %same to i32
  %hit.m = and i32 %same.m, %rest
  %hit = bitcast i32 %hit.m to <32 x i1>
  %hit.bits = select <32 x i1> %hit, <32 x i64> %grain.bit, <32 x i64> zeroinitializer
  %g = call i64 @llvm.vector.reduce.or.v32i64(<32 x i64> %hit.bits){"".join(sectors)}
  %s01 = or i32 %sb0, %sb1
  %s23 = or i32 %sb2, %sb3
  %s.mask = or i32 %s01, %s23
  call fastcc void @emit(ptr %ctx, i64 %my, i32 %s.mask, i32 %order, i32 %kind)
  %s.n = call i32 @llvm.ctpop.i32(i32 %s.mask)
  %all.sectors1 = add i32 %all.sectors, %s.n
  %g.n = call i64 @llvm.ctpop.i64(i64 %g)
  %all.grains1 = add i64 %all.grains, %g.n
  %gone = xor i32 %hit.m, -1
  %rest1 = and i32 %rest, %gone
  %left = icmp ne i32 %rest1, 0
  br i1 %left, label %each, label %sum
sum:
  %sum.s = zext i32 %all.sectors1 to i64
  %sum.b = mul i64 %all.grains1, {grain}
  %sum.r = add i64 %sum.b, 31
  %sum.i = lshr i64 %sum.r, 5{_add(ctx.SECTORS, "%sum.s", "se2")}{_add(ctx.IDEAL, "%sum.i", "id2")}
  br label %done
done:
  ret void
}}
"""
    return Routine(
        f"count_global_{size}", "void", ("ptr", "ptr", ADDRESSES, "i32", "i32"), text, (EMIT,)
    )


CONFLICTS = Routine(
    "count_conflicts",
    "void",
    ("ptr", ADDRESSES, "i32"),
    f"""
; Lanes of an atomic that hit one address go one after the other.
define fastcc void @count_conflicts(ptr %tally, <32 x i64> %address, i32 %mask) #0 noinline {{
entry:
  %p = alloca <32 x i64>, align 64
  store <32 x i64> %address, ptr %p, align 64
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %done, label %each
each:
  %rest = phi i32 [ %mask, %entry ], [ %rest1, %each ]
  %worst = phi i32 [ 0, %entry ], [ %worst1, %each ]
  %lane = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %my.p = getelementptr i64, ptr %p, i32 %lane
  %my = load i64, ptr %my.p
  %my0 = insertelement <32 x i64> poison, i64 %my, i32 0
  %my.v = shufflevector <32 x i64> %my0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %address, %my.v
  %same.m = bitcast <32 x i1> %same to i32
  %hit = and i32 %same.m, %rest
  %n = call i32 @llvm.ctpop.i32(i32 %hit)
  %worst1 = call i32 @llvm.umax.i32(i32 %worst, i32 %n)
  %gone = xor i32 %hit, -1
  %rest1 = and i32 %rest, %gone
  %left = icmp ne i32 %rest1, 0
  br i1 %left, label %each, label %sum
sum:
  %worst64 = zext i32 %worst1 to i64
  %extra = sub i64 %worst64, 1{_add(ctx.CONFLICTS, "%extra", "con")}
  %most.p = getelementptr i64, ptr %tally, i64 {ctx.MOST}
  %most = load i64, ptr %most.p
  %most1 = call i64 @llvm.umax.i64(i64 %most, i64 %worst64)
  store i64 %most1, ptr %most.p
  br label %done
done:
  ret void
}}
""",
)

WORDS = lanes("i32")

PASSES = Routine(
    "passes",
    "i32",
    (WORDS, "i32"),
    """
; Passes that 32 words of shared memory take: in each one every bank serves one word.
define fastcc i32 @passes(<32 x i32> %word, i32 %mask) #0 noinline {
entry:
  %banks = alloca <32 x i32>, align 64
  %bank = and <32 x i32> %word, splat (i32 31)
  %bit = shl <32 x i32> splat (i32 1), %bank
  %m = bitcast i32 %mask to <32 x i1>
  %on = select <32 x i1> %m, <32 x i32> %bit, <32 x i32> zeroinitializer
  %used = call i32 @llvm.vector.reduce.or.v32i32(<32 x i32> %on)
  %used.n = call i32 @llvm.ctpop.i32(i32 %used)
  %mask.n = call i32 @llvm.ctpop.i32(i32 %mask)
  %free = icmp eq i32 %used.n, %mask.n
  br i1 %free, label %one, label %prepare
one:
  %some = icmp ne i32 %mask, 0
  %r = zext i1 %some to i32
  ret i32 %r
prepare:
  %where = getelementptr i32, ptr %banks, <32 x i32> %bank
  br label %loop
loop:
  %rest = phi i32 [ %mask, %prepare ], [ %rest1, %loop ]
  %n = phi i32 [ 0, %prepare ], [ %n1, %loop ]
  %rm = bitcast i32 %rest to <32 x i1>
  call void @llvm.masked.scatter.v32i32.v32p0(<32 x i32> %word, <32 x ptr> %where, i32 4, <32 x i1> %rm)
  %got = call <32 x i32> @llvm.masked.gather.v32i32.v32p0(<32 x ptr> %where, i32 4, <32 x i1> %rm, <32 x i32> %word)
  %served = icmp eq <32 x i32> %got, %word
  %sm = bitcast <32 x i1> %served to i32
  %gone = xor i32 %sm, -1
  %rest1 = and i32 %rest, %gone
  %n1 = add i32 %n, 1
  %left = icmp ne i32 %rest1, 0
  br i1 %left, label %loop, label %done
done:
  ret i32 %n1
}
""",
)


@cache
def count_shared(size: int) -> Routine:
    """A request to shared memory in which each lane moves `size` bytes."""
    words = max(1, size // 4)
    part = LANES // words
    body = [
        "  %address32 = trunc <32 x i64> %address to <32 x i32>",
        "  %word = lshr <32 x i32> %address32, splat (i32 2)",
        "  %on = bitcast i32 %mask to <32 x i1>",
    ]
    total, ideal = "0", "0"
    for group in range(words):
        picks = ", ".join(
            f"i32 {group * part + lane}" for lane in range(part) for _ in range(words)
        )
        steps = ", ".join(f"i32 {k}" for _ in range(part) for k in range(words))
        body.append(
            f"""
  %w{group} = shufflevector <32 x i32> %word, <32 x i32> poison, <32 x i32> <{picks}>
  %a{group} = add <32 x i32> %w{group}, <{steps}>
  %v{group} = shufflevector <32 x i1> %on, <32 x i1> poison, <32 x i32> <{picks}>
  %m{group} = bitcast <32 x i1> %v{group} to i32
  %n{group} = call fastcc i32 @passes(<32 x i32> %a{group}, i32 %m{group})
  %t{group} = add i32 {total}, %n{group}
  %s{group} = icmp ne i32 %m{group}, 0
  %z{group} = zext i1 %s{group} to i32
  %i{group} = add i32 {ideal}, %z{group}"""
        )
        total, ideal = f"%t{group}", f"%i{group}"
    text = f"""
define fastcc void @count_shared_{size}(ptr %tally, <32 x i64> %address, i32 %mask) #0 noinline {{
{_start()}
{chr(10).join(body)}
  %total64 = zext i32 {total} to i64
  %ideal64 = zext i32 {ideal} to i64{_add(ctx.WAVEFRONTS, "%total64", "wav")}{_add(ctx.IDEAL, "%ideal64", "ide")}
  br label %done
done:
  ret void
}}
"""
    return Routine(f"count_shared_{size}", "void", ("ptr", ADDRESSES, "i32"), text, (PASSES,))
