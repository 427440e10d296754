# ruff: noqa: E501 (LLVM's text form has long lines)
"""Routines for warp-wide memory access: find the buffer, check the bounds, move the bytes.

Every routine takes the context, the site's cached segment, 32 addresses and the mask of active
lanes. Lanes side by side become one vector access; the rest gathers and scatters. An address
outside every segment is recorded as a finding; the load gives 0 and the store is dropped.
"""

from __future__ import annotations

from functools import cache

from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx.ir import LANES, Routine, iota, lanes, load_pointers, load_slots

ADDRESSES = lanes("i64")

FIND = Routine(
    "find",
    "i1",
    ("ptr", "ptr", "i64", "i64", "i64"),
    f"""
; Looks for the segment that holds accesses of %bytes at both %first and %last.
define fastcc i1 @find(ptr %ctx, ptr %seg, i64 %first, i64 %last, i64 %bytes) #0 noinline {{
entry:
{load_pointers(segments=ctx.SEGMENTS)}
{load_slots(n=ctx.SEGMENT_COUNT)}
  %none = icmp eq i64 %n, 0
  br i1 %none, label %no, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %row = getelementptr [4 x i64], ptr %segments, i64 %i
  %lo = load i64, ptr %row
  %nbytes.p = getelementptr i64, ptr %row, i64 1
  %nbytes = load i64, ptr %nbytes.p
  %room = sub i64 %nbytes, %bytes
  %limit1 = add i64 %room, 1
  %small = icmp ult i64 %nbytes, %bytes
  %limit = select i1 %small, i64 0, i64 %limit1
  %from = sub i64 %first, %lo
  %to = sub i64 %last, %lo
  %a = icmp ult i64 %from, %limit
  %b = icmp ult i64 %to, %limit
  %both = and i1 %a, %b
  br i1 %both, label %hit, label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %loop, label %no
hit:
  %delta.p = getelementptr i64, ptr %row, i64 2
  %delta = load i64, ptr %delta.p
  %shadow.p = getelementptr i64, ptr %row, i64 3
  %shadow = load i64, ptr %shadow.p
  store i64 %lo, ptr %seg
  %s1 = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  store i64 %limit, ptr %s1
  %s2 = getelementptr i64, ptr %seg, i64 {ctx.SEG_DELTA}
  store i64 %delta, ptr %s2
  %s3 = getelementptr i64, ptr %seg, i64 {ctx.SEG_SHADOW}
  store i64 %shadow, ptr %s3
  %s4 = getelementptr i64, ptr %seg, i64 {ctx.SEG_SEEN}
  %seen = load i64, ptr %s4
  %place = and i64 %i, 63
  %bit = shl i64 1, %place
  %old = and i64 %seen, %bit
  %fresh = icmp eq i64 %old, 0
  br i1 %fresh, label %note, label %yes
note:
  %grown = or i64 %seen, %bit
  store i64 %grown, ptr %s4
{load_pointers(touched=ctx.TOUCHED)}
{load_slots(count=ctx.TOUCHED_COUNT)}
  %count1 = add i64 %count, 1
  store i64 %count1, ptr %count.p
{load_pointers(caches=ctx.CACHE)}
  %seg.i = ptrtoint ptr %seg to i64
  %caches.i2 = ptrtoint ptr %caches to i64
  %offset = sub i64 %seg.i, %caches.i2
  %site = udiv i64 %offset, {8 * ctx.CACHE_SLOTS}
  %pair = getelementptr [2 x i64], ptr %touched, i64 %count
  store i64 %site, ptr %pair
  %pair1 = getelementptr i64, ptr %pair, i64 1
  store i64 %i, ptr %pair1
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}
""",
)

RECORD = Routine(
    "record",
    "void",
    ("ptr", "i64", "i32", "i32"),
    f"""
define fastcc void @record(ptr %ctx, i64 %address, i32 %lane, i32 %site) #0 noinline cold {{
entry:
{load_pointers(findings=ctx.FINDINGS)}
{load_slots(limit=ctx.FINDING_LIMIT, cta=ctx.CTA)}
  %n = load i64, ptr %findings
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %findings
  %room = icmp ult i64 %n, %limit
  br i1 %room, label %write, label %done
write:
  %first = getelementptr i64, ptr %findings, i64 1
  %row = getelementptr [{ctx.FINDING_SLOTS} x i64], ptr %first, i64 %n
  %site64 = zext i32 %site to i64
  store i64 %site64, ptr %row
  %p1 = getelementptr i64, ptr %row, i64 1
  store i64 %address, ptr %p1
  %p2 = getelementptr i64, ptr %row, i64 2
  store i64 %cta, ptr %p2
  %lane64 = zext i32 %lane to i64
  %p3 = getelementptr i64, ptr %row, i64 3
  store i64 %lane64, ptr %p3
  br label %done
done:
  ret void
}}
""",
)

EDGE = Routine(
    "edge",
    "i64",
    ("ptr", "ptr", "i64"),
    f"""
; A copy of the word at %address if a buffer holds its lower half: its address, else 0.
define fastcc i64 @edge(ptr %ctx, ptr %seg, i64 %address) #0 noinline cold {{
entry:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %address, i64 %address, i64 2)
  ; What was found is for accesses of 2 bytes.
  %limit.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  store i64 0, ptr %limit.p
  br i1 %ok, label %have, label %no
have:
  %delta.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_DELTA}
  %delta = load i64, ptr %delta.p
  %host = add i64 %address, %delta
{load_pointers(edges=ctx.HALVES)}
{load_slots(count=ctx.HALF_COUNT)}
  br label %loop
loop:
  %i = phi i64 [ 0, %have ], [ %i1, %next ]
  %cell = getelementptr [2 x i64], ptr %edges, i64 %i
  %value.p = getelementptr i64, ptr %cell, i64 1
  %fresh = icmp uge i64 %i, %count
  br i1 %fresh, label %make, label %look
look:
  %old = load i64, ptr %cell
  %same = icmp eq i64 %old, %host
  br i1 %same, label %done, label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
make:
  store i64 %host, ptr %cell
  %host.p = inttoptr i64 %host to ptr
  %half = load i16, ptr %host.p
  %wide = zext i16 %half to i64
  store i64 %wide, ptr %value.p
  %count1 = add i64 %count, 1
  store i64 %count1, ptr %count.p
  br label %done
done:
  %r = ptrtoint ptr %value.p to i64
  ret i64 %r
no:
  ret i64 0
}}
""",
    (FIND,),
)

SETTLE = Routine(
    "settle",
    "void",
    ("ptr",),
    f"""
; Puts the words that `edge` copied back.
define fastcc void @settle(ptr %ctx) #0 noinline cold {{
entry:
{load_pointers(edges=ctx.HALVES)}
{load_slots(count=ctx.HALF_COUNT)}
  store i64 0, ptr %count.p
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %put, label %done
put:
  %cell = getelementptr [2 x i64], ptr %edges, i64 %i
  %host = load i64, ptr %cell
  %host.p = inttoptr i64 %host to ptr
  %value.p = getelementptr i64, ptr %cell, i64 1
  %value = load i64, ptr %value.p
  %half = trunc i64 %value to i16
  store i16 %half, ptr %host.p
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret void
}}
""",
)

SETTLING = f"""
{load_slots(edge_count=ctx.HALF_COUNT)}
  %edged = icmp ne i64 %edge_count, 0
  br i1 %edged, label %settle, label %settled
settle:
  call fastcc void @settle(ptr %ctx)
  br label %settled
settled:"""
"""Text to put after an access that may have used `edge`."""

EACH = Routine(
    "each",
    ADDRESSES,
    ("ptr", "ptr", ADDRESSES, "i32", "i64", "i32", "ptr"),
    f"""
; Host addresses of the lanes that are inside some segment and aligned; %good gets their mask.
define fastcc <32 x i64> @each(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i64 %bytes, i32 %site, ptr %good) #0 noinline cold {{
entry:
  %in = alloca <32 x i64>, align 64
  %out = alloca <32 x i64>, align 64
  store <32 x i64> %address, ptr %in, align 64
  store <32 x i64> zeroinitializer, ptr %out, align 64
  store i32 0, ptr %good
  %low = sub i64 %bytes, 1
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
  %odd = and i64 %a, %low
  %aligned = icmp eq i64 %odd, 0
  br i1 %aligned, label %look, label %bad
look:
  %lo = load i64, ptr %seg
  %limit.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  %limit = load i64, ptr %limit.p
  %from = sub i64 %a, %lo
  %inside = icmp ult i64 %from, %limit
  br i1 %inside, label %fine, label %search
search:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %a, i64 %a, i64 %bytes)
  br i1 %ok, label %fine, label %odd.word
odd.word:
  %flag = and i32 %site, {ctx.EMULATES}
  %emulates = icmp ne i32 %flag, 0
  br i1 %emulates, label %half, label %bad
half:
  %cell = call fastcc i64 @edge(ptr %ctx, ptr %seg, i64 %a)
  %none = icmp eq i64 %cell, 0
  br i1 %none, label %bad, label %keep
fine:
  %delta.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_DELTA}
  %delta = load i64, ptr %delta.p
  %host.a = add i64 %a, %delta
  br label %keep
keep:
  %host = phi i64 [ %host.a, %fine ], [ %cell, %half ]
  %op = getelementptr i64, ptr %out, i32 %lane
  store i64 %host, ptr %op
  %g = load i32, ptr %good
  %g1 = or i32 %g, %bit
  store i32 %g1, ptr %good
  br label %next
bad:
  %number = and i32 %site, {ctx.EMULATES - 1}
  call fastcc void @record(ptr %ctx, i64 %a, i32 %lane, i32 %number)
  br label %next
next:
  %lane1 = add i32 %lane, 1
  %more = icmp ult i32 %lane1, 32
  br i1 %more, label %loop, label %done
done:
  %r = load <32 x i64>, ptr %out, align 64
  ret <32 x i64> %r
}}
""",
    (FIND, RECORD, EDGE),
)

RESOLVE = Routine(
    "resolve",
    ADDRESSES,
    ("ptr", "ptr", ADDRESSES, "i32", "i64", "i32", "ptr"),
    f"""
; Host addresses for any pattern; in %good the lanes that may be accessed. %mask is not 0.
define fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i64 %bytes, i32 %site, ptr %good) #0 noinline {{
entry:
  %m = bitcast i32 %mask to <32 x i1>
  %low = select <32 x i1> %m, <32 x i64> %address, <32 x i64> splat (i64 -1)
  %high = select <32 x i1> %m, <32 x i64> %address, <32 x i64> zeroinitializer
  %first = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %low)
  %last = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %high)
  %any = call i64 @llvm.vector.reduce.or.v32i64(<32 x i64> %high)
  %ones = sub i64 %bytes, 1
  %odd = and i64 %any, %ones
  %aligned = icmp eq i64 %odd, 0
  br i1 %aligned, label %check, label %slow
check:
  %lo = load i64, ptr %seg
  %limit.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  %limit = load i64, ptr %limit.p
  %from = sub i64 %first, %lo
  %to = sub i64 %last, %lo
  %a = icmp ult i64 %from, %limit
  %b = icmp ult i64 %to, %limit
  %both = and i1 %a, %b
  br i1 %both, label %hit, label %search
search:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %first, i64 %last, i64 %bytes)
  br i1 %ok, label %hit, label %slow
hit:
  %delta.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_DELTA}
  %delta = load i64, ptr %delta.p
  %d0 = insertelement <32 x i64> poison, i64 %delta, i32 0
  %dv = shufflevector <32 x i64> %d0, <32 x i64> poison, <32 x i32> zeroinitializer
  %h = add <32 x i64> %address, %dv
  store i32 %mask, ptr %good
  ret <32 x i64> %h
slow:
  %s = call fastcc <32 x i64> @each(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i64 %bytes, i32 %site, ptr %good)
  ret <32 x i64> %s
}}
""",
    (FIND, EACH),
)


def contiguous(size: int) -> str:
    """Text that branches to `line` if the active lanes are `size` bytes apart, else to `spread`."""
    return f"""
  %a0 = extractelement <32 x i64> %address, i32 0
  %s0 = insertelement <32 x i64> poison, i64 %a0, i32 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %want = add <32 x i64> %s, {iota(size)}
  %eq = icmp eq <32 x i64> %address, %want
  %eqm = bitcast <32 x i1> %eq to i32
  %off = xor i32 %mask, -1
  %side = or i32 %eqm, %off
  %contiguous = icmp eq i32 %side, -1
  br i1 %contiguous, label %line, label %spread"""


def _head(size: int, masked: bool) -> str:
    """Goes to `whole` (every lane, side by side), `part` (some lanes, side by side; if `masked`),
    `spread` or `empty`. `%hostp` is the host address of lane 0."""
    part = "part" if masked else "spread"
    return f"""
entry:
  %good = alloca i32
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %empty, label %start
start:{contiguous(size)}
line:
  %f32 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l32 = call i32 @llvm.ctlz.i32(i32 %mask, i1 true)
  %f = zext i32 %f32 to i64
  %l = zext i32 %l32 to i64
  %lo = load i64, ptr %seg
  %limit.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  %limit = load i64, ptr %limit.p
  %delta.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_DELTA}
  %delta = load i64, ptr %delta.p
  %base = sub i64 %a0, %lo
  %fo = mul i64 %f, {size}
  %from = add i64 %base, %fo
  %lr = sub i64 31, %l
  %lo.o = mul i64 %lr, {size}
  %to = add i64 %base, %lo.o
  %c1 = icmp ult i64 %from, %limit
  %c2 = icmp ult i64 %to, %limit
  %mis = and i64 %a0, {size - 1}
  %c3 = icmp eq i64 %mis, 0
  %c4 = and i1 %c1, %c2
  %c5 = and i1 %c4, %c3
  br i1 %c5, label %fast, label %spread
fast:
  %h = add i64 %a0, %delta
  %hostp = inttoptr i64 %h to ptr
  %full = icmp eq i32 %mask, -1
  br i1 %full, label %whole, label %{part}
"""


_HEAD_CALLS = (RESOLVE, SETTLE)


def pack_type(bits: int, count: int) -> str:
    """What `load(bits, count)` returns."""
    one = lanes(f"i{bits}")
    return one if count == 1 else "{" + ", ".join([one] * count) + "}"


def _picks(values: list[int]) -> str:
    return f"<{len(values)} x i32> <" + ", ".join(f"i32 {v}" for v in values) + ">"


def _split(source: str, bits: int, count: int, tag: str) -> tuple[list[str], str]:
    """Text that returns the elements of a vector of `count`-tuples as a pack."""
    wide = f"<{LANES * count} x i{bits}>"
    pack, one = pack_type(bits, count), lanes(f"i{bits}")
    text, last = [], "poison"
    for j in range(count):
        picks = _picks([lane * count + j for lane in range(LANES)])
        text.append(f"  %{tag}e{j} = shufflevector {wide} {source}, {wide} poison, {picks}")
        text.append(f"  %{tag}r{j} = insertvalue {pack} {last}, {one} %{tag}e{j}, {j}")
        last = f"%{tag}r{j}"
    return text, f"  ret {pack} {last}"


def _tree(names: list[str], width: int, element: str, tag: str) -> tuple[list[str], str]:
    """Text that joins equally long vectors into one, and its name."""
    text: list[str] = []
    level = 0
    while len(names) > 1:
        joined = []
        for a in range(0, len(names), 2):
            name = f"%{tag}j{level}_{a}"
            type_ = f"<{width} x {element}>"
            picks = _picks(list(range(2 * width)))
            text.append(
                f"  {name} = shufflevector {type_} {names[a]}, {type_} {names[a + 1]}, {picks}"
            )
            joined.append(name)
        names, width, level = joined, 2 * width, level + 1
    return text, names[0]


def lane_pointers(count: int, first: int = 0) -> list[str]:
    """Text: `%p<lane>` is the host address of a lane, or of 16 spare bytes where it is not good."""
    text = []
    for lane in range(first, first + count):
        bit = 1 << lane if lane < 31 else -(1 << 31)
        text += [
            f"  %h{lane} = extractelement <32 x i64> %hv, i32 {lane}",
            f"  %b{lane} = and i32 %gm, {bit}",
            f"  %o{lane} = icmp ne i32 %b{lane}, 0",
            f"  %q{lane} = inttoptr i64 %h{lane} to ptr",
            f"  %p{lane} = select i1 %o{lane}, ptr %q{lane}, ptr %spare",
        ]
    return text


def _resolved(size: int) -> str:
    return f"""
  %hv = call fastcc <32 x i64> @resolve(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask, i64 {size}, i32 %site, ptr %good)
  %gm = load i32, ptr %good
  %gmask = bitcast i32 %gm to <32 x i1>"""


@cache
def load(bits: int, count: int) -> Routine:
    """Each lane loads `count` elements of `bits` bits."""
    one, pack, size = lanes(f"i{bits}"), pack_type(bits, count), bits // 8
    whole = size * count
    name = f"ld_{bits}_{count}"
    text = [
        f"define fastcc {pack} @{name}(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask,"
        f" i32 %site) #0 noinline {{",
        _head(whole, masked=count == 1).replace(
            "%good = alloca i32", "%good = alloca i32\n  %spare = alloca <16 x i8>, align 16"
        ),
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
        wide = f"<{LANES * count} x i{bits}>"
        text.append(f"  %w = load {wide}, ptr %hostp, align {size}")
        lines, end = _split("%w", bits, count, "w")
        text += [*lines, end]
    text.append("spread:" + _resolved(whole))
    if whole == 16 and count > 1:
        text.append("  store <16 x i8> zeroinitializer, ptr %spare")
        text += lane_pointers(LANES)
        text += [
            f"  %v{k} = load <{count} x i{bits}>, ptr %p{k}, align {size}" for k in range(LANES)
        ]
        lines, joined = _tree([f"%v{k}" for k in range(LANES)], count, f"i{bits}", "s")
        text += lines
        lines, end = _split(joined, bits, count, "s")
        text += [*lines, end]
    else:
        last = "poison"
        for j in range(count):
            offset = f"splat (i64 {j * size})"
            text.append(
                f"  %ho{j} = add <32 x i64> %hv, {offset}\n"
                f"  %hp{j} = inttoptr <32 x i64> %ho{j} to <32 x ptr>\n"
                f"  %g{j} = call {one} @llvm.masked.gather.v32i{bits}.v32p0(<32 x ptr>"
                f" %hp{j}, i32 {size}, <32 x i1> %gmask, {one} zeroinitializer)"
            )
            if count > 1:
                text.append(f"  %q{j} = insertvalue {pack} {last}, {one} %g{j}, {j}")
                last = f"%q{j}"
        if (bits, count) == (32, 1):
            text.append(SETTLING)
        text.append(f"  ret {pack} {last if count > 1 else '%g0'}")
    text.append(f"empty:\n  ret {pack} zeroinitializer\n}}")
    return Routine(
        name, pack, ("ptr", "ptr", ADDRESSES, "i32", "i32"), "\n".join(text), _HEAD_CALLS
    )


@cache
def store(bits: int, count: int) -> Routine:
    """Each lane stores `count` elements of `bits` bits; where lanes collide the last one wins."""
    one, size = lanes(f"i{bits}"), bits // 8
    whole = size * count
    name = f"st_{bits}_{count}"
    arguments = ", ".join(f"{one} %v{j}" for j in range(count))
    text = [
        f"define fastcc void @{name}(ptr %ctx, ptr %seg, <32 x i64> %address, i32 %mask,"
        f" i32 %site, {arguments}) #0 noinline {{",
        _head(whole, masked=count == 1).replace(
            "%good = alloca i32", "%good = alloca i32\n  %spare = alloca <16 x i8>, align 16"
        ),
        "whole:",
    ]
    if count == 1:
        text.append(f"  store {one} %v0, ptr %hostp, align {size}\n  ret void")
        text.append(
            "part:\n  %pm = bitcast i32 %mask to <32 x i1>\n  call void "
            f"@llvm.masked.store.v32i{bits}.p0({one} %v0, ptr %hostp, i32 {size}, <32 x i1> %pm)\n"
            "  ret void"
        )
    else:
        wide = f"<{LANES * count} x i{bits}>"
        for label in ("w", "s") if whole == 16 else ("w",):
            if label == "s":
                text.append("spread:" + _resolved(whole))
            lines, joined = _tree([f"%v{j}" for j in range(count)], LANES, f"i{bits}", label)
            text += lines
            picks = _picks([j * LANES + i for i in range(LANES) for j in range(count)])
            text.append(f"  %{label}v = shufflevector {wide} {joined}, {wide} poison, {picks}")
            if label == "w":
                text.append(f"  store {wide} %wv, ptr %hostp, align {size}\n  ret void")
        if whole == 16:
            text += lane_pointers(LANES)
            for lane in range(LANES):
                picks = _picks([lane * count + j for j in range(count)])
                text.append(
                    f"  %x{lane} = shufflevector {wide} %sv, {wide} poison, {picks}\n"
                    f"  store <{count} x i{bits}> %x{lane}, ptr %p{lane}, align {size}"
                )
            text.append("  ret void")
    if whole != 16 or count == 1:
        text.append("spread:" + _resolved(whole))
        for j in range(count):
            text.append(
                f"  %ho{j} = add <32 x i64> %hv, splat (i64 {j * size})\n"
                f"  %hp{j} = inttoptr <32 x i64> %ho{j} to <32 x ptr>\n"
                f"  call void @llvm.masked.scatter.v32i{bits}.v32p0({one} %v{j}, <32 x ptr>"
                f" %hp{j}, i32 {size}, <32 x i1> %gmask)"
            )
        text.append("  ret void")
    text.append("empty:\n  ret void\n}")
    return Routine(
        name,
        "void",
        ("ptr", "ptr", ADDRESSES, "i32", "i32", *[one] * count),
        "\n".join(text),
        _HEAD_CALLS,
    )


@cache
def load_uniform(bits: int, count: int) -> Routine:
    """All lanes load `count` elements of `bits` bits from one address."""
    size = bits // 8
    whole = size * count
    pack = f"i{bits}" if count == 1 else "{" + ", ".join([f"i{bits}"] * count) + "}"
    loads, last = [], "poison"
    for j in range(count):
        loads.append(
            f"  %p{j} = getelementptr i8, ptr %host, i64 {j * size}\n"
            f"  %v{j} = load i{bits}, ptr %p{j}, align {size}"
        )
        if count > 1:
            loads.append(f"  %r{j} = insertvalue {pack} {last}, i{bits} %v{j}, {j}")
            last = f"%r{j}"
    result = last if count > 1 else "%v0"
    edge = "br label %empty"
    if (bits, count) == (32, 1):
        edge = f"""
  %gm = load i32, ptr %good
  %some = icmp ne i32 %gm, 0
  br i1 %some, label %half, label %empty
half:
  %lane = call i32 @llvm.cttz.i32(i32 %gm, i1 true)
  %cell = extractelement <32 x i64> %hosts, i32 %lane
  %cell.p = inttoptr i64 %cell to ptr
  %word = load i32, ptr %cell.p{SETTLING}
  ret i32 %word"""
    text = f"""
define fastcc {pack} @ldu_{bits}_{count}(ptr %ctx, ptr %seg, i64 %address, i32 %mask, i32 %site) #0 noinline {{
entry:
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %empty, label %start
start:
  %lo = load i64, ptr %seg
  %limit.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_LIMIT}
  %limit = load i64, ptr %limit.p
  %from = sub i64 %address, %lo
  %inside = icmp ult i64 %from, %limit
  %odd = and i64 %address, {whole - 1}
  %aligned = icmp eq i64 %odd, 0
  %fine = and i1 %inside, %aligned
  br i1 %fine, label %fast, label %search
search:
  %ok = call fastcc i1 @find(ptr %ctx, ptr %seg, i64 %address, i64 %address, i64 {whole})
  %fine2 = and i1 %ok, %aligned
  br i1 %fine2, label %fast, label %bad
fast:
  %delta.p = getelementptr i64, ptr %seg, i64 {ctx.SEG_DELTA}
  %delta = load i64, ptr %delta.p
  %h = add i64 %address, %delta
  %host = inttoptr i64 %h to ptr
{chr(10).join(loads)}
  ret {pack} {result}
bad:
  %good = alloca i32
  %a0 = insertelement <32 x i64> poison, i64 %address, i32 0
  %a = shufflevector <32 x i64> %a0, <32 x i64> poison, <32 x i32> zeroinitializer
  %hosts = call fastcc <32 x i64> @each(ptr %ctx, ptr %seg, <32 x i64> %a, i32 %mask, i64 {whole}, i32 %site, ptr %good)
  {edge}
empty:
  ret {pack} zeroinitializer
}}
"""
    return Routine(
        f"ldu_{bits}_{count}", pack, ("ptr", "ptr", "i64", "i32", "i32"), text, (FIND, EACH, SETTLE)
    )
