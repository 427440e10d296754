"""Puts `@run_warp` and the CTA loop together as the text of one LLVM module."""

from __future__ import annotations

import re

from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx.cta_loop import CTA_LOOP
from kopt.gpu.virtual.ptx.ir import LANES, constant, lanes, load_pointers, load_slots, per_lane
from kopt.gpu.virtual.ptx.registers import Registers

EXITED = 0x7FFFFFFF
ATTRIBUTES = (
    'attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'
)
_MASKED = re.compile(r"@llvm\.masked\.(load|store|gather|scatter)\.v(\d+)i(\d+)\.(?:v\d+)?p0\(")


def masked_declarations(text: str) -> str:
    """Declarations of the masked memory intrinsics in the form that LLVM 20 and 22 both read."""
    found = set()
    for kind, count, bits in _MASKED.findall(text):
        value, mask = f"<{count} x i{bits}>", f"<{count} x i1>"
        pointers = f"<{count} x ptr>"
        found.add(
            {
                "load": f"declare {value} @llvm.masked.load.v{count}i{bits}.p0"
                f"(ptr, i32, {mask}, {value})",
                "store": f"declare void @llvm.masked.store.v{count}i{bits}.p0"
                f"({value}, ptr, i32, {mask})",
                "gather": f"declare {value} @llvm.masked.gather.v{count}i{bits}.v{count}p0"
                f"({pointers}, i32, {mask}, {value})",
                "scatter": f"declare void @llvm.masked.scatter.v{count}i{bits}.v{count}p0"
                f"({value}, {pointers}, i32, {mask})",
            }[kind]
        )
    return "\n".join(sorted(found))


def module(worker: Registers, resumes: list[int]) -> str:
    """The module's text: `@run_warp` from the blocks that `worker` wrote, and `@run_ctas`."""
    body = "\n".join(worker.code.lines)
    declared = [routine.declaration for routine in worker.code.routines.values()]
    head = [*_entry(worker), *_start(worker, resumes)]
    whole = "\n".join([*head, body, "end:", "  ret i32 -1", "}", CTA_LOOP, ATTRIBUTES])
    return "\n".join([*declared, masked_declarations(whole), whole])


def _entry(worker: Registers) -> list[str]:
    """The function's head: its stack slots."""
    head = [
        "define internal fastcc i32 @run_warp(ptr noalias %ctx, ptr noalias %cache,"
        " ptr %state, i32 %resume) #0 {",
        "entry:",
    ]
    for register, (name, offset) in worker.slots.items():
        head.append(f"  {name} = getelementptr i8, ptr %state, i64 {offset} ; {register}")
    head += [
        f"  %carry = alloca {lanes('i1')}",
        f"  store {lanes('i1')} zeroinitializer, ptr %carry",
        f"  %scratch = alloca {lanes('i64')}, align 64",
        "  %fuel = alloca i32",
        f"  store i32 {ctx.FUEL}, ptr %fuel",
        "  %floor = alloca i32",
    ]
    if worker.wide_rows:
        head.append(f"  %wide = alloca [{LANES * worker.wide_rows} x double], align 64")
    if worker.counted:
        head.append(
            load_pointers(
                blocks=ctx.BLOCKS,
                edges=ctx.EDGES,
                guards=ctx.GUARDS,
                selects=ctx.SELECTS,
                tallies=ctx.TALLIES,
            )
        )
    return head


def _start(worker: Registers, resumes: list[int]) -> list[str]:
    if not worker.flow.divergent:
        cases = " ".join(f"i32 {b}, label %b{b}" for b in resumes)
        return [f"  switch i32 %resume, label %b0 [ {cases} ]"]
    word, bits = lanes("i32"), lanes("i1")
    return [
        f"  %active = alloca {bits}",
        f"  store {constant(bits, 'true')}, ptr %active",
        "  %fresh = icmp eq i32 %resume, 0",
        "  br i1 %fresh, label %first, label %dispatch",
        "first:",
        load_slots(ntx=ctx.NTID, nty=ctx.NTID + 1, ntz=ctx.NTID + 2, mine=ctx.WARP),
        "  %ntxy = mul i64 %ntx, %nty",
        "  %threads = mul i64 %ntxy, %ntz",
        "  %base = mul i64 %mine, 32",
        "  %left = sub i64 %threads, %base",
        f"  %left0 = insertelement {lanes('i64')} poison, i64 %left, i32 0",
        f"  %lefts = shufflevector {lanes('i64')} %left0, {lanes('i64')} poison,"
        f" {word} zeroinitializer",
        f"  %live = icmp slt {per_lane('i64', range(LANES))}, %lefts",
        f"  %pc0 = select {bits} %live, {constant(word, 0)}, {constant(word, EXITED)}",
        f"  store {word} %pc0, ptr %state, align 64",
        "  br label %dispatch",
        # A loop that may wait for other lanes or warps: let lanes further on run now and then.
        "burn:",
        "  %fuel.old = load i32, ptr %fuel",
        "  %fuel.new = sub i32 %fuel.old, 1",
        "  store i32 %fuel.new, ptr %fuel",
        "  %dry = icmp eq i32 %fuel.new, 0",
        "  br i1 %dry, label %yield, label %dispatch",
        "yield:",
        "  store i32 16, ptr %fuel",
        f"  %y.pcs = load {word}, ptr %state, align 64",
        "  %floor.now = load i32, ptr %floor",
        f"  %y0 = insertelement {word} poison, i32 %floor.now, i32 0",
        f"  %yv = shufflevector {word} %y0, {word} poison, {word} zeroinitializer",
        f"  %later = icmp ugt {word} %y.pcs, %yv",
        f"  %y.some = select {bits} %later, {word} %y.pcs, {constant(word, EXITED)}",
        f"  %y.least = call i32 @llvm.vector.reduce.umin.v32i32({word} %y.some)",
        f"  %nobody = icmp eq i32 %y.least, {EXITED}",
        "  br i1 %nobody, label %rest, label %go",
        "rest:",
        "  ret i32 1",
        "dispatch:",
        f"  %pcs = load {word}, ptr %state, align 64",
        f"  %least = call i32 @llvm.vector.reduce.umin.v32i32({word} %pcs)",
        "  br label %go",
        "go:",
        "  %pc = phi i32 [ %least, %dispatch ], [ %y.least, %yield ]",
        f"  %all.pcs = phi {word} [ %pcs, %dispatch ], [ %y.pcs, %yield ]",
        f"  %m0 = insertelement {word} poison, i32 %pc, i32 0",
        f"  %mv = shufflevector {word} %m0, {word} poison, {word} zeroinitializer",
        f"  %on = icmp eq {word} %all.pcs, %mv",
        f"  store {bits} %on, ptr %active",
        "  switch i32 %pc, label %end [ "
        + " ".join(f"i32 {b.index}, label %b{b.index}" for b in worker.flow.blocks)
        + " ]",
    ]
