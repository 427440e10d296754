"""The routine behind `match`: which lanes hold the same value."""

from __future__ import annotations

from functools import cache

from kopt.gpu.virtual.ptx.ir import Routine, lanes


@cache
def match(bits: int) -> Routine:
    """For each lane of the mask, the lanes of the mask with its value."""
    one = lanes(f"i{bits}")
    name = f"match_{bits}"
    text = f"""
define fastcc <32 x i32> @{name}({one} %value, i32 %mask) #0 noinline {{
entry:
  %p = alloca {one}, align 64
  store {one} %value, ptr %p, align 64
  br label %loop
loop:
  %rest = phi i32 [ %mask, %entry ], [ %rest1, %next ]
  %out = phi <32 x i32> [ zeroinitializer, %entry ], [ %out1, %next ]
  %some = icmp ne i32 %rest, 0
  br i1 %some, label %next, label %done
next:
  %lane = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %my.p = getelementptr i{bits}, ptr %p, i32 %lane
  %my = load i{bits}, ptr %my.p
  %my0 = insertelement {one} poison, i{bits} %my, i32 0
  %my.v = shufflevector {one} %my0, {one} poison, <32 x i32> zeroinitializer
  %same = icmp eq {one} %value, %my.v
  %same.m = bitcast <32 x i1> %same to i32
  %hit = and i32 %same.m, %rest
  %hit.v = bitcast i32 %hit to <32 x i1>
  %h0 = insertelement <32 x i32> poison, i32 %hit, i32 0
  %hv = shufflevector <32 x i32> %h0, <32 x i32> poison, <32 x i32> zeroinitializer
  %out1 = select <32 x i1> %hit.v, <32 x i32> %hv, <32 x i32> %out
  %gone = xor i32 %hit, -1
  %rest1 = and i32 %rest, %gone
  br label %loop
done:
  ret <32 x i32> %out
}}
"""
    return Routine(name, lanes("i32"), (one, "i32"), text)
