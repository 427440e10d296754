"""LLVM routines for warp-wide memory access: find the buffer, check the bounds, move the bytes.

Every routine takes the context, the site's cached segment (`lo`, `hi`, `delta`: virtual addresses
in [lo, hi) live at host address + delta), 32 addresses and the mask of active lanes. Contiguous
accesses become one vector access; the rest gathers and scatters. An address outside every segment
is recorded as a finding; the load gives 0 and the store is dropped.
"""

from __future__ import annotations

from kopt.gpu.virtual.ptx.ir import LANES

# Slots of the context, in units of 8 bytes.
PARAMS, CTAID, NCTAID, NTID = 0, 1, 4, 7
SHARED, SHARED_BYTES, LOCAL, CTA = 10, 11, 12, 13
SEGMENTS, SEGMENT_COUNT, FINDINGS, FINDING_LIMIT = 14, 15, 16, 17
STATE, WARP, BLOCKS, LOG, LOG_LIMIT, LOG_COUNT = 18, 19, 20, 21, 22, 23
TABLE, TABLE_LIMIT, TABLE_COUNT, ORDER, SELECTS, ACTIVE = 24, 25, 26, 27, 28, 29
CACHE, WARPS, STATE_BYTES, LOG_FULL = 30, 31, 32, 33
SHARED_LIMIT, SHARED_FULL, SHARED_STOP = 34, 35, 36
CONTEXT_SLOTS = 40

FINDING_SLOTS = 4
"""A finding is: site, address, CTA, lane."""
LOG_SLOTS = 4
"""A log record is: cta | site << 32, mask | order << 32, warp | shape << 16 | word << 32, address.

The shape is 0 for lanes side by side, 1 for 32 addresses from `word` of the table on, 2 for four
addresses there, each of eight lanes side by side.
"""

FIND = """
define internal fastcc i1 @find(ptr %ctx, ptr %seg, i64 %first, i64 %last) noinline {
entry:
  %sp = getelementptr i64, ptr %ctx, i64 14
  %segs.i = load i64, ptr %sp
  %segs = inttoptr i64 %segs.i to ptr
  %np = getelementptr i64, ptr %ctx, i64 15
  %n = load i64, ptr %np
  %none = icmp eq i64 %n, 0
  br i1 %none, label %no, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %off = mul i64 %i, 3
  %lop = getelementptr i64, ptr %segs, i64 %off
  %lo = load i64, ptr %lop
  %hip = getelementptr i64, ptr %lop, i64 1
  %hi = load i64, ptr %hip
  %a = icmp uge i64 %first, %lo
  %b = icmp ule i64 %last, %hi
  %c = and i1 %a, %b
  br i1 %c, label %hit, label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %loop, label %no
hit:
  %dp = getelementptr i64, ptr %lop, i64 2
  %d = load i64, ptr %dp
  store i64 %lo, ptr %seg
  %s1 = getelementptr i64, ptr %seg, i64 1
  store i64 %hi, ptr %s1
  %s2 = getelementptr i64, ptr %seg, i64 2
  store i64 %d, ptr %s2
  ret i1 true
no:
  ret i1 false
}

define internal fastcc void @record(ptr %ctx, i64 %addr, i32 %lane, i32 %site) noinline cold {
entry:
  %fp = getelementptr i64, ptr %ctx, i64 16
  %f.i = load i64, ptr %fp
  %f = inttoptr i64 %f.i to ptr
  %n = load i64, ptr %f
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %f
  %lp = getelementptr i64, ptr %ctx, i64 17
  %limit = load i64, ptr %lp
  %room = icmp ult i64 %n, %limit
  br i1 %room, label %write, label %done
write:
  %o = mul i64 %n, 4
  %o1 = add i64 %o, 1
  %p = getelementptr i64, ptr %f, i64 %o1
  %site64 = zext i32 %site to i64
  store i64 %site64, ptr %p
  %p1 = getelementptr i64, ptr %p, i64 1
  store i64 %addr, ptr %p1
  %cp = getelementptr i64, ptr %ctx, i64 13
  %cta = load i64, ptr %cp
  %p2 = getelementptr i64, ptr %p, i64 2
  store i64 %cta, ptr %p2
  %lane64 = zext i32 %lane to i64
  %p3 = getelementptr i64, ptr %p, i64 3
  store i64 %lane64, ptr %p3
  br label %done
done:
  ret void
}

; Host addresses of the lanes that are inside some segment; `good` gets their mask.
define internal fastcc <32 x i64> @each(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i64 %bytes, i64 %align, i32 %site, ptr %good) noinline cold {
entry:
  %in = alloca <32 x i64>, align 64
  %out = alloca <32 x i64>, align 64
  store <32 x i64> %addr, ptr %in, align 64
  store <32 x i64> zeroinitializer, ptr %out, align 64
  store i32 0, ptr %good
  br label %loop
loop:
  %lane = phi i32 [ 0, %entry ], [ %lane1, %next ]
  %bit = shl i32 1, %lane
  %on = and i32 %mask, %bit
  %active = icmp ne i32 %on, 0
  br i1 %active, label %check, label %next
check:
  %ip = getelementptr i64, ptr %in, i32 %lane
  %a = load i64, ptr %ip
  %e = add i64 %a, %bytes
  %am = sub i64 %align, 1
  %mis = and i64 %a, %am
  %aligned = icmp eq i64 %mis, 0
  br i1 %aligned, label %look, label %bad
look:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %a, i64 %e)
  br i1 %ok, label %fine, label %bad
fine:
  %dp = getelementptr i64, ptr %seg, i64 2
  %d = load i64, ptr %dp
  %h = add i64 %a, %d
  %op = getelementptr i64, ptr %out, i32 %lane
  store i64 %h, ptr %op
  %g = load i32, ptr %good
  %g1 = or i32 %g, %bit
  store i32 %g1, ptr %good
  br label %next
bad:
  call fastcc void @record(ptr %ctx, i64 %a, i32 %lane, i32 %site)
  br label %next
next:
  %lane1 = add i32 %lane, 1
  %more = icmp ult i32 %lane1, 32
  br i1 %more, label %loop, label %done
done:
  %r = load <32 x i64>, ptr %out, align 64
  ret <32 x i64> %r
}

; Host addresses for a non-contiguous access; in `good` the lanes that may be accessed.
define internal fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i64 %bytes, i64 %align, i32 %site, ptr %good) noinline {
entry:
  %m = bitcast i32 %mask to <32 x i1>
  %low = select <32 x i1> %m, <32 x i64> %addr, <32 x i64> splat (i64 -1)
  %high = select <32 x i1> %m, <32 x i64> %addr, <32 x i64> zeroinitializer
  %first = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %low)
  %top = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %high)
  %bitsor = call i64 @llvm.vector.reduce.or.v32i64(<32 x i64> %high)
  %am = sub i64 %align, 1
  %mis = and i64 %bitsor, %am
  %aligned = icmp eq i64 %mis, 0
  %last = add i64 %top, %bytes
  br i1 %aligned, label %check, label %slow
check:
  %lo = load i64, ptr %seg
  %hp = getelementptr i64, ptr %seg, i64 1
  %hi = load i64, ptr %hp
  %a = icmp uge i64 %first, %lo
  %b = icmp ule i64 %last, %hi
  %c = and i1 %a, %b
  br i1 %c, label %hit, label %search
search:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %first, i64 %last)
  br i1 %ok, label %hit, label %slow
hit:
  %dp = getelementptr i64, ptr %seg, i64 2
  %d = load i64, ptr %dp
  %d0 = insertelement <32 x i64> poison, i64 %d, i32 0
  %dv = shufflevector <32 x i64> %d0, <32 x i64> poison, <32 x i32> zeroinitializer
  %h = add <32 x i64> %addr, %dv
  store i32 %mask, ptr %good
  ret <32 x i64> %h
slow:
  %s = call fastcc <32 x i64> @each(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i64 %bytes, i64 %align, i32 %site, ptr %good)
  ret <32 x i64> %s
}
declare i64 @llvm.vector.reduce.umin.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.umax.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.or.v32i64(<32 x i64>)
declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @llvm.ctlz.i32(i32, i1)
"""


def _iota(step: int) -> str:
    return "<" + ", ".join(f"i64 {i * step}" for i in range(LANES)) + ">"


def _head(bits: int, count: int) -> str:
    size = bits // 8 * count
    return f"""
entry:
  %good = alloca i32
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %empty, label %start
start:
  %a0 = extractelement <32 x i64> %addr, i32 0
  %s0 = insertelement <32 x i64> poison, i64 %a0, i32 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %want = add <32 x i64> %s, {_iota(size)}
  %eq = icmp eq <32 x i64> %addr, %want
  %eqm = bitcast <32 x i1> %eq to i32
  %off = xor i32 %mask, -1
  %both = or i32 %eqm, %off
  %contiguous = icmp eq i32 %both, -1
  br i1 %contiguous, label %line, label %spread
line:
  %f32 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l32 = call i32 @llvm.ctlz.i32(i32 %mask, i1 true)
  %f = zext i32 %f32 to i64
  %l = zext i32 %l32 to i64
  %fo = mul i64 %f, {size}
  %first = add i64 %a0, %fo
  %lr = sub i64 32, %l
  %lo.o = mul i64 %lr, {size}
  %last = add i64 %a0, %lo.o
  %lo = load i64, ptr %seg
  %hp = getelementptr i64, ptr %seg, i64 1
  %hi = load i64, ptr %hp
  %c1 = icmp uge i64 %first, %lo
  %c2 = icmp ule i64 %last, %hi
  %mis = and i64 %a0, {size - 1}
  %c3 = icmp eq i64 %mis, 0
  %c4 = and i1 %c1, %c2
  %c5 = and i1 %c4, %c3
  br i1 %c5, label %fast, label %spread
fast:
  %dp = getelementptr i64, ptr %seg, i64 2
  %d = load i64, ptr %dp
  %h = add i64 %a0, %d
  %hostp = inttoptr i64 %h to ptr
  %full = icmp eq i32 %mask, -1
  br i1 %full, label %whole, label %part
"""


def _pack(bits: int, count: int) -> str:
    return f"<32 x i{bits}>" if count == 1 else "{" + ", ".join([f"<32 x i{bits}>"] * count) + "}"


def load(bits: int, count: int) -> str:
    """`@ld_<bits>_<count>`: each lane loads `count` elements of `bits` bits."""
    one = f"<32 x i{bits}>"
    pack = _pack(bits, count)
    size = bits // 8
    text = [
        f"define internal fastcc {pack} @ld_{bits}_{count}(ptr %ctx, ptr %seg, <32 x i64> %addr,"
        f" i32 %mask, i32 %site) noinline {{",
        _head(bits, count),
        "whole:",
    ]
    if count == 1:
        text.append(f"  %w = load {one}, ptr %hostp, align {size}\n  ret {one} %w")
        text.append(
            f"part:\n  %pm = bitcast i32 %mask to <32 x i1>\n  %pv = call {one} "
            f"@llvm.masked.load.v32i{bits}.p0(ptr %hostp, i32 {size}, <32 x i1> %pm, {one} "
            f"zeroinitializer)\n  ret {one} %pv"
        )
    else:
        wide = f"<{32 * count} x i{bits}>"
        text.append(f"  %w = load {wide}, ptr %hostp, align {size}")
        last = "poison"
        for j in range(count):
            picks = ", ".join(f"i32 {i * count + j}" for i in range(LANES))
            text.append(
                f"  %e{j} = shufflevector {wide} %w, {wide} poison, <32 x i32> <{picks}>\n"
                f"  %r{j} = insertvalue {pack} {last}, {one} %e{j}, {j}"
            )
            last = f"%r{j}"
        text.append(f"  ret {pack} {last}\npart:\n  br label %spread")
    text.append(
        f"""spread:
  %hv = call fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i64 {size * count}, i64 {size * count}, i32 %site, ptr %good)
  %gm = load i32, ptr %good
  %gmask = bitcast i32 %gm to <32 x i1>"""
    )
    last = "poison"
    for j in range(count):
        offset = "<" + ", ".join([f"i64 {j * size}"] * LANES) + ">"
        text.append(
            f"  %ho{j} = add <32 x i64> %hv, {offset}\n"
            f"  %hp{j} = inttoptr <32 x i64> %ho{j} to <32 x ptr>\n"
            f"  %g{j} = call {one} @llvm.masked.gather.v32i{bits}.v32p0(<32 x ptr> %hp{j}, i32 {size},"
            f" <32 x i1> %gmask, {one} zeroinitializer)"
        )
        if count > 1:
            text.append(f"  %q{j} = insertvalue {pack} {last}, {one} %g{j}, {j}")
            last = f"%q{j}"
    text.append(f"  ret {pack} {last if count > 1 else '%g0'}")
    text.append(f"empty:\n  ret {pack} zeroinitializer\n}}")
    return "\n".join(text)


def store(bits: int, count: int) -> str:
    """`@st_<bits>_<count>`: each lane stores `count` elements of `bits` bits."""
    one = f"<32 x i{bits}>"
    size = bits // 8
    arguments = ", ".join(f"{one} %v{j}" for j in range(count))
    text = [
        f"define internal fastcc void @st_{bits}_{count}(ptr %ctx, ptr %seg, <32 x i64> %addr,"
        f" i32 %mask, i32 %site, {arguments}) noinline {{",
        _head(bits, count),
        "whole:",
    ]
    if count == 1:
        text.append(f"  store {one} %v0, ptr %hostp, align {size}\n  ret void")
        text.append(
            f"part:\n  %pm = bitcast i32 %mask to <32 x i1>\n  call void @llvm.masked.store.v32i{bits}.p0("
            f"{one} %v0, ptr %hostp, i32 {size}, <32 x i1> %pm)\n  ret void"
        )
    else:
        names, length = [f"%v{j}" for j in range(count)], LANES
        while len(names) > 1:
            joined = []
            for a in range(0, len(names), 2):
                name = f"%j{length}_{a}"
                picks = ", ".join(f"i32 {i}" for i in range(2 * length))
                text.append(
                    f"  {name} = shufflevector <{length} x i{bits}> {names[a]}, <{length} x i{bits}>"
                    f" {names[a + 1]}, <{2 * length} x i32> <{picks}>"
                )
                joined.append(name)
            names, length = joined, length * 2
        picks = ", ".join(f"i32 {j * LANES + i}" for i in range(LANES) for j in range(count))
        wide = f"<{length} x i{bits}>"
        text.append(
            f"  %w = shufflevector {wide} {names[0]}, {wide} poison, <{length} x i32> <{picks}>\n"
            f"  store {wide} %w, ptr %hostp, align {size}\n  ret void\npart:\n  br label %spread"
        )
    text.append(
        f"""spread:
  %hv = call fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i64 {size * count}, i64 {size * count}, i32 %site, ptr %good)
  %gm = load i32, ptr %good
  %gmask = bitcast i32 %gm to <32 x i1>"""
    )
    for j in range(count):
        offset = "<" + ", ".join([f"i64 {j * size}"] * LANES) + ">"
        text.append(
            f"  %ho{j} = add <32 x i64> %hv, {offset}\n"
            f"  %hp{j} = inttoptr <32 x i64> %ho{j} to <32 x ptr>\n"
            f"  call void @llvm.masked.scatter.v32i{bits}.v32p0({one} %v{j}, <32 x ptr> %hp{j},"
            f" i32 {size}, <32 x i1> %gmask)"
        )
    text.append("  ret void\nempty:\n  ret void\n}")
    return "\n".join(text)


def declarations(bits: int) -> str:
    """Declarations that `load(bits, …)` and `store(bits, …)` need."""
    one = f"<32 x i{bits}>"
    return f"""
declare {one} @llvm.masked.load.v32i{bits}.p0(ptr, i32, <32 x i1>, {one})
declare void @llvm.masked.store.v32i{bits}.p0({one}, ptr, i32, <32 x i1>)
declare {one} @llvm.masked.gather.v32i{bits}.v32p0(<32 x ptr>, i32, <32 x i1>, {one})
declare void @llvm.masked.scatter.v32i{bits}.v32p0({one}, <32 x ptr>, i32, <32 x i1>)
"""


ATOMIC_LOOP = """
define internal fastcc <32 x i{bits}> @{name}(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i32 %site, <32 x i{bits}> %b, <32 x i{bits}> %c) noinline {{
entry:
  %good = alloca i32
  %host = alloca <32 x i64>, align 64
  %bs = alloca <32 x i{bits}>, align 64
  %cs = alloca <32 x i{bits}>, align 64
  %old = alloca <32 x i{bits}>, align 64
  store <32 x i{bits}> %b, ptr %bs, align 64
  store <32 x i{bits}> %c, ptr %cs, align 64
  store <32 x i{bits}> zeroinitializer, ptr %old, align 64
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %done, label %begin
begin:
  %hv = call fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %addr, i32 %mask, i64 {bytes}, i64 {bytes}, i32 %site, ptr %good)
  store <32 x i64> %hv, ptr %host, align 64
  %gm = load i32, ptr %good
  br label %loop
loop:
  %lane = phi i32 [ 0, %begin ], [ %lane1, %next ]
  %bit = shl i32 1, %lane
  %on = and i32 %gm, %bit
  %active = icmp ne i32 %on, 0
  br i1 %active, label %do, label %next
do:
  %ap = getelementptr i64, ptr %host, i32 %lane
  %ai = load i64, ptr %ap
  %p = inttoptr i64 %ai to ptr
  %bp = getelementptr i{bits}, ptr %bs, i32 %lane
  %vb = load i{bits}, ptr %bp
  %cp = getelementptr i{bits}, ptr %cs, i32 %lane
  %vc = load i{bits}, ptr %cp
{body}
  %op = getelementptr i{bits}, ptr %old, i32 %lane
  store i{bits} %was, ptr %op
  br label %next
next:
  %lane1 = add i32 %lane, 1
  %more = icmp ult i32 %lane1, 32
  br i1 %more, label %loop, label %done
done:
  %r = load <32 x i{bits}>, ptr %old, align 64
  ret <32 x i{bits}> %r
}}
"""

SHARED_LOGGER = """
; Shared-memory accesses get a part of the log, so that they do not crowd out the global ones.
define internal fastcc void @log_shared(ptr %ctx, <32 x i64> %addr, i32 %mask, i32 %site, i64 %bytes) noinline {
entry:
  %cp = getelementptr i64, ptr %ctx, i64 23
  %n = load i64, ptr %cp
  %lp = getelementptr i64, ptr %ctx, i64 34
  %limit = load i64, ptr %lp
  %fp = getelementptr i64, ptr %ctx, i64 35
  %full = load i64, ptr %fp
  %tcp = getelementptr i64, ptr %ctx, i64 26
  %tn = load i64, ptr %tcp
  %tlp = getelementptr i64, ptr %ctx, i64 25
  %tlimit = load i64, ptr %tlp
  %tpart = lshr i64 %tlimit, 2
  %room1 = icmp ult i64 %n, %limit
  %room2 = icmp ult i64 %tn, %tpart
  %room = and i1 %room1, %room2
  %open = icmp eq i64 %full, 0
  %go = and i1 %room, %open
  br i1 %go, label %write, label %check
check:
  br i1 %open, label %stop, label %out
stop:
  store i64 1, ptr %fp
  %ctap = getelementptr i64, ptr %ctx, i64 13
  %cta = load i64, ptr %ctap
  %sp = getelementptr i64, ptr %ctx, i64 36
  store i64 %cta, ptr %sp
  br label %out
write:
  call fastcc void @log(ptr %ctx, <32 x i64> %addr, i32 %mask, i32 %site, i64 %bytes)
  br label %out
out:
  ret void
}
"""

LOGGER = """
; One record for the access log of a counted launch.
define internal fastcc void @log(ptr %ctx, <32 x i64> %addr, i32 %mask, i32 %site, i64 %bytes) noinline {
entry:
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %out, label %room
room:
  %cp = getelementptr i64, ptr %ctx, i64 23
  %n = load i64, ptr %cp
  %lp = getelementptr i64, ptr %ctx, i64 22
  %limit = load i64, ptr %lp
  %tcp = getelementptr i64, ptr %ctx, i64 26
  %tn = load i64, ptr %tcp
  %tlp = getelementptr i64, ptr %ctx, i64 25
  %tlimit = load i64, ptr %tlp
  %r1 = icmp ult i64 %n, %limit
  %r2 = icmp ult i64 %tn, %tlimit
  %r3 = and i1 %r1, %r2
  br i1 %r3, label %write, label %full
full:
  %fp = getelementptr i64, ptr %ctx, i64 33
  store i64 1, ptr %fp
  br label %out
write:
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %cp
  %bp = getelementptr i64, ptr %ctx, i64 21
  %base.i = load i64, ptr %bp
  %base = inttoptr i64 %base.i to ptr
  %o = mul i64 %n, 4
  %p = getelementptr i64, ptr %base, i64 %o
  %ctap = getelementptr i64, ptr %ctx, i64 13
  %cta = load i64, ptr %ctap
  %site64 = zext i32 %site to i64
  %siteh = shl i64 %site64, 32
  %w0 = or i64 %cta, %siteh
  store i64 %w0, ptr %p
  %orp = getelementptr i64, ptr %ctx, i64 27
  %or.i = load i64, ptr %orp
  %orders = inttoptr i64 %or.i to ptr
  %wp = getelementptr i64, ptr %ctx, i64 19
  %warp = load i64, ptr %wp
  %myp = getelementptr i64, ptr %orders, i64 %warp
  %ord = load i64, ptr %myp
  %ord1 = add i64 %ord, 1
  store i64 %ord1, ptr %myp
  %ordh = shl i64 %ord, 32
  %mask64 = zext i32 %mask to i64
  %w1 = or i64 %mask64, %ordh
  %p1 = getelementptr i64, ptr %p, i64 1
  store i64 %w1, ptr %p1
  %a0 = extractelement <32 x i64> %addr, i32 0
  %p3 = getelementptr i64, ptr %p, i64 3
  store i64 %a0, ptr %p3
  %s0 = insertelement <32 x i64> poison, i64 %a0, i32 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %b0 = insertelement <32 x i64> poison, i64 %bytes, i32 0
  %bv = shufflevector <32 x i64> %b0, <32 x i64> poison, <32 x i32> zeroinitializer
  %step = mul <32 x i64> %bv, IOTA
  %want = add <32 x i64> %s, %step
  %eq = icmp eq <32 x i64> %addr, %want
  %eqm = bitcast <32 x i1> %eq to i32
  %off = xor i32 %mask, -1
  %both = or i32 %eqm, %off
  %contiguous = icmp eq i32 %both, -1
  %p2 = getelementptr i64, ptr %p, i64 2
  br i1 %contiguous, label %line, label %rows
line:
  store i64 %warp, ptr %p2
  br label %out
rows:
  ; Eight lanes side by side, as in a row of a two-dimensional tile: four addresses say it all.
  %heads = shufflevector <32 x i64> %addr, <32 x i64> poison, <32 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 8, i32 8, i32 8, i32 8, i32 8, i32 8, i32 8, i32 8, i32 16, i32 16, i32 16, i32 16, i32 16, i32 16, i32 16, i32 16, i32 24, i32 24, i32 24, i32 24, i32 24, i32 24, i32 24, i32 24>
  %in8 = mul <32 x i64> %bv, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>
  %want8 = add <32 x i64> %heads, %in8
  %eq8 = icmp eq <32 x i64> %addr, %want8
  %eq8m = bitcast <32 x i1> %eq8 to i32
  %both8 = or i32 %eq8m, %off
  %grouped = icmp eq i32 %both8, -1
  %tp = getelementptr i64, ptr %ctx, i64 24
  %tb.i = load i64, ptr %tp
  %tb = inttoptr i64 %tb.i to ptr
  %dst = getelementptr i64, ptr %tb, i64 %tn
  br i1 %grouped, label %groups, label %table
groups:
  %four = shufflevector <32 x i64> %addr, <32 x i64> poison, <4 x i32> <i32 0, i32 8, i32 16, i32 24>
  store <4 x i64> %four, ptr %dst, align 8
  %tn4 = add i64 %tn, 4
  store i64 %tn4, ptr %tcp
  %w2g = or i64 %warp, 131072
  %w2gi = shl i64 %tn, 32
  %w2g1 = or i64 %w2g, %w2gi
  store i64 %w2g1, ptr %p2
  br label %out
table:
  store <32 x i64> %addr, ptr %dst, align 8
  %tn32 = add i64 %tn, 32
  store i64 %tn32, ptr %tcp
  %w2t = or i64 %warp, 65536
  %w2ti = shl i64 %tn, 32
  %w2t1 = or i64 %w2t, %w2ti
  store i64 %w2t1, ptr %p2
  br label %out
out:
  ret void
}
""".replace("IOTA", _iota(1))
