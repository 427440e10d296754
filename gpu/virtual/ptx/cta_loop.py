# ruff: noqa: E501 (LLVM's text form has long lines)
"""The loop over CTAs and warps, in LLVM IR: one call from Python runs many CTAs."""

from __future__ import annotations

from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx.ir import load_pointers, load_slots

CTA_LOOP = f"""
; Runs the CTAs listed in %ctas[0..%n). In each round every warp that is not at the barrier runs
; until a barrier, its end, or until it has spun for long; when all wait, the barrier opens.
define void @run_ctas(ptr %ctx, ptr %ctas, i64 %n) #0 {{
entry:
{load_pointers(cache=ctx.CACHE, states=ctx.STATES, resumes=ctx.RESUMES, orders=ctx.ORDERS, shared=ctx.SHARED, shade=ctx.SHARED_SHADOW)}
{load_slots(warps=ctx.WARPS, sb=ctx.STATE_BYTES, shb=ctx.SHARED_BYTES, nx=ctx.NCTAID, ny=ctx.NCTAID + 1)}
  %some = icmp ne i64 %n, 0
  br i1 %some, label %cta, label %out
cta:
  %i = phi i64 [ 0, %entry ], [ %i1, %cta.done ]
  %idp = getelementptr i64, ptr %ctas, i64 %i
  %id = load i64, ptr %idp
  %idslot = getelementptr i64, ptr %ctx, i64 {ctx.CTA}
  store i64 %id, ptr %idslot
  %x = urem i64 %id, %nx
  %yz = udiv i64 %id, %nx
  %y = urem i64 %yz, %ny
  %z = udiv i64 %yz, %ny
  %xp = getelementptr i64, ptr %ctx, i64 {ctx.CTAID}
  store i64 %x, ptr %xp
  %yp = getelementptr i64, ptr %ctx, i64 {ctx.CTAID + 1}
  store i64 %y, ptr %yp
  %zp = getelementptr i64, ptr %ctx, i64 {ctx.CTAID + 2}
  store i64 %z, ptr %zp
  call void @llvm.memset.p0.i64(ptr %shared, i8 0, i64 %shb, i1 false)
  %shaded = icmp ne ptr %shade, null
  %sh4 = shl i64 %shb, 2
  %shadow.bytes = select i1 %shaded, i64 %sh4, i64 0
  call void @llvm.memset.p0.i64(ptr %shade, i8 0, i64 %shadow.bytes, i1 false)
  %ob = mul i64 %warps, 8
  call void @llvm.memset.p0.i64(ptr %orders, i8 0, i64 %ob, i1 false)
  call void @llvm.memset.p0.i64(ptr %resumes, i8 0, i64 %ob, i1 false)
  br label %round
round:
  %idle = phi i64 [ 0, %cta ], [ 0, %open ], [ %idle1, %again ]
  br label %warp
warp:
  %w = phi i64 [ 0, %round ], [ %w1, %warp.next ]
  %alive = phi i64 [ 0, %round ], [ %alive1, %warp.next ]
  %waits = phi i64 [ 0, %round ], [ %waits1, %warp.next ]
  %moved = phi i1 [ false, %round ], [ %moved1, %warp.next ]
  %rp = getelementptr i64, ptr %resumes, i64 %w
  %r = load i64, ptr %rp
  %dead = icmp slt i64 %r, 0
  %held = icmp uge i64 %r, {ctx.WAITING}
  %skip = or i1 %dead, %held
  br i1 %skip, label %warp.next, label %run
run:
  %wslot = getelementptr i64, ptr %ctx, i64 {ctx.WARP}
  store i64 %w, ptr %wslot
  %so = mul i64 %w, %sb
  %state = getelementptr i8, ptr %states, i64 %so
  %r32 = trunc i64 %r to i32
  %new = call fastcc i32 @run_warp(ptr %ctx, ptr %cache, ptr %state, i32 %r32)
  %new64 = sext i32 %new to i64
  store i64 %new64, ptr %rp
  %ended = icmp slt i32 %new, 0
  %stopped = icmp sge i32 %new, {ctx.WAITING}
  %progress = or i1 %ended, %stopped
  br label %warp.next
warp.next:
  %now = phi i64 [ %r, %warp ], [ %new64, %run ]
  %did = phi i1 [ false, %warp ], [ %progress, %run ]
  %moved1 = or i1 %moved, %did
  %lives = icmp sge i64 %now, 0
  %l64 = zext i1 %lives to i64
  %alive1 = add i64 %alive, %l64
  %at.barrier = icmp sge i64 %now, {ctx.WAITING}
  %b64 = zext i1 %at.barrier to i64
  %waits1 = add i64 %waits, %b64
  %w1 = add i64 %w, 1
  %more = icmp ult i64 %w1, %warps
  br i1 %more, label %warp, label %round.end
round.end:
  %none = icmp eq i64 %alive1, 0
  br i1 %none, label %cta.done, label %check
check:
  %all = icmp eq i64 %waits1, %alive1
  br i1 %all, label %open, label %again
again:
  %idle.more = add i64 %idle, 1
  %idle1 = select i1 %moved1, i64 0, i64 %idle.more
  %stuck = icmp ugt i64 %idle1, {ctx.PATIENCE}
  br i1 %stuck, label %give.up, label %round
give.up:
  %stuck.p = getelementptr i64, ptr %ctx, i64 {ctx.STUCK}
  store i64 1, ptr %stuck.p
  br label %out
open:
  %v = phi i64 [ 0, %check ], [ %v1, %open ]
  %op = getelementptr i64, ptr %resumes, i64 %v
  %o = load i64, ptr %op
  %oheld = icmp sge i64 %o, {ctx.WAITING}
  %less = sub i64 %o, {ctx.WAITING}
  %o1 = select i1 %oheld, i64 %less, i64 %o
  store i64 %o1, ptr %op
  %v1 = add i64 %v, 1
  %vmore = icmp ult i64 %v1, %warps
  br i1 %vmore, label %open, label %round
cta.done:
  %i1 = add i64 %i, 1
  %left = icmp ult i64 %i1, %n
  br i1 %left, label %cta, label %out
out:
  ret void
}}
"""
