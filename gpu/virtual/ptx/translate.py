"""A PTX entry as the LLVM function `@run_warp`, with the CTA loop that calls it.

`@run_warp(ctx, cache, selects, state, resume)` runs one warp until a barrier, where it saves the
live registers and returns the block to resume at, or to its end, where it returns -1. Code whose
branches are all uniform needs no masks. Otherwise each lane has its own next block and the
smallest one runs first (min-PC order), so that diverged lanes meet again at the earliest point.
"""

from __future__ import annotations

from dataclasses import dataclass

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx import memory_ir as slot
from kopt.gpu.virtual.ptx.flow import Block, Flow, analyse
from kopt.gpu.virtual.ptx.ir import LANES, Value, constant, lanes, per_lane
from kopt.gpu.virtual.ptx.memory import Memory
from kopt.gpu.virtual.ptx.parse import WIDTHS, Entry, Imm, Instruction, Operand, Symbol, parse
from kopt.gpu.virtual.ptx.registers import SiteInfo

EXITED = 0x7FFFFFFF
IGNORED = {
    "membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard",
    "applypriority", "createpolicy", "pmevent", "cp_commit",
}  # fmt: skip


@dataclass(frozen=True)
class Translation:
    """The LLVM module of one entry and what its run needs."""

    text: str
    entry: Entry
    flow: Flow
    sites: list[SiteInfo]
    selects: list[SiteInfo]
    state_bytes: int
    """Of one warp, for the registers that live across barriers."""
    ordered: bool
    """Float atomics or atomics with results: CTAs must run one after the other."""


class Translator(Memory):
    """Lowers control flow and warp-level instructions, and assembles the function."""

    def translate(self) -> str:
        for block in self.flow.blocks:
            self._block(block)
        return "\n".join(self.code.lines)

    # Blocks ------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        code = self.code
        code.label(f"b{block.index}")
        if self.flow.divergent:
            self.active = code.emit(lanes("i1"), f"load {lanes('i1')}, ptr %active")
        if self.counted:
            pointer = code.emit("ptr", f"getelementptr i64, ptr %blocks, i64 {2 * block.index}")
            old = code.emit("i64", f"load i64, {pointer}")
            code.raw(f"store {code.binary('add', old, Value('i64', '1'))}, {pointer}")
            if self.active is not None:
                bits = self.mask_bits(self.active)
                count = code.cast("zext", code.intrinsic("ctpop.", "i32", [bits]), "i64")
                second = code.emit(
                    "ptr", f"getelementptr i64, ptr %blocks, i64 {2 * block.index + 1}"
                )
                old = code.emit("i64", f"load i64, {second}")
                code.raw(f"store {code.binary('add', old, count)}, {second}")
        for instruction in block.instructions:
            self._instruction(block, instruction)
        last = block.instructions[-1].parts[0] if block.instructions else ""
        if last not in {"bra", "ret", "exit", "trap"} and not block.ends_in_barrier:
            self._go(block.index + 1)

    def _instruction(self, block: Block, i: Instruction) -> None:
        name = i.parts[0]
        if name == "bra":
            self._branch(block, i)
        elif name in {"ret", "exit", "trap"}:
            self._exit(block, i)
        elif name in {"bar", "barrier"}:
            self._barrier(block, i)
        elif name in IGNORED:
            if name == "createpolicy":
                self.write(i.operands[0], Value("i64", "0"), self.guard(i))
        elif not self.arithmetic(i):
            raise self.unsupported(i)

    def _go(self, target: int) -> None:
        """Continue at a block; the end of the entry is an exit."""
        if target >= len(self.flow.blocks):
            self._leave(self.active)
        elif self.flow.divergent:
            self._set_next(constant(lanes("i32"), target), self.active)
            self.code.raw("br label %dispatch")
        else:
            self.code.raw(f"br label %b{target}")

    def _set_next(self, value: Value, mask: Value | None) -> None:
        code = self.code
        if mask is not None:
            old = code.emit(lanes("i32"), f"load {lanes('i32')}, ptr %next")
            value = code.select(mask, value, old)
        code.raw(f"store {value}, ptr %next")

    def _leave(self, mask: Value | None) -> None:
        if self.flow.divergent:
            self._set_next(constant(lanes("i32"), EXITED), mask)
            self.code.raw("br label %dispatch")
        else:
            self.code.raw("ret i32 -1")

    def _branch(self, block: Block, i: Instruction) -> None:
        code = self.code
        if i.guard is None:
            self._go(block.successors[0])
            return
        taken = self.guard(i)
        assert taken is not None
        if not self.flow.divergent:
            other = f"%b{block.index + 1}" if block.index + 1 < len(self.flow.blocks) else "%end"
            code.raw(f"br {taken}, label %b{block.successors[0]}, label {other}")
            return
        there = constant(lanes("i32"), block.successors[0])
        fall = block.index + 1 if block.index + 1 < len(self.flow.blocks) else EXITED
        self._set_next(code.select(taken, there, constant(lanes("i32"), fall)), self.active)
        code.raw("br label %dispatch")

    def _exit(self, block: Block, i: Instruction) -> None:
        code = self.code
        if i.guard is None:
            self._leave(self.active)
            return
        gone = self.guard(i)
        assert gone is not None
        if not self.flow.divergent:
            code.raw(f"br {gone}, label %end, label %b{block.index + 1}")
            return
        here = constant(lanes("i32"), block.index + 1)
        self._set_next(code.select(gone, constant(lanes("i32"), EXITED), here), self.active)
        code.raw("br label %dispatch")

    def _barrier(self, block: Block, i: Instruction) -> None:
        if not block.ends_in_barrier:
            return
        if len(i.operands) > 1 or "red" in i.parts or "arrive" in i.parts:
            raise self.unsupported(i)
        if i.operands and isinstance(i.operands[0], Imm) and i.operands[0].bits:
            raise self.unsupported(i)
        code = self.code
        after = block.index + 1
        if self.flow.divergent:
            self._set_next(constant(lanes("i32"), after), self.active)
        live = sorted(self.flow.live_in[after]) if after < len(self.flow.blocks) else []
        for name, offset in self._layout(live):
            type_ = self.type_of(name)
            value = code.emit(type_, f"load {type_}, ptr {self.slot(name)}, align 64")
            pointer = code.emit("ptr", f"getelementptr i8, ptr %state, i64 {offset}")
            if type_ == lanes("i1"):
                value = code.emit("i32", f"bitcast {value} to i32")
            elif type_ == "i1":
                value = code.cast("zext", value, "i8")
            code.raw(f"store {value}, {pointer}, align 4")
        if self.flow.divergent:
            pending = code.emit(lanes("i32"), f"load {lanes('i32')}, ptr %next")
            code.raw(f"store {pending}, ptr %state, align 64")
        code.raw(f"ret i32 {after}")

    def _layout(self, names: list[str]) -> list[tuple[str, int]]:
        """Where each live register is saved; the first 128 bytes hold the lanes' next blocks."""
        offset = 128
        places = []
        for name in names:
            places.append((name, offset))
            bits = WIDTHS[self.entry.registers[name]]
            size = max(bits // 8, 4) if self.is_uniform(name) or bits == 1 else bits // 8 * LANES
            offset += -(-size // 64) * 64
        self.state_bytes = max(getattr(self, "state_bytes", 128), offset)
        return places

    def resumes(self) -> list[int]:
        """Blocks at which a warp can be resumed after a barrier."""
        return [b.index + 1 for b in self.flow.blocks if b.ends_in_barrier]

    def restore(self, block: int) -> None:
        """Load what was saved before `block` and go there."""
        code = self.code
        code.label(f"resume{block}")
        if block >= len(self.flow.blocks):
            code.raw("ret i32 -1")
            return
        for name, offset in self._layout(sorted(self.flow.live_in[block])):
            type_ = self.type_of(name)
            pointer = code.emit("ptr", f"getelementptr i8, ptr %state, i64 {offset}")
            if type_ == lanes("i1"):
                raw = code.emit("i32", f"load i32, {pointer}, align 4")
                value = code.emit(type_, f"bitcast {raw} to {type_}")
            elif type_ == "i1":
                raw = code.emit("i8", f"load i8, {pointer}, align 4")
                value = code.cast("trunc", raw, "i1")
            else:
                value = code.emit(type_, f"load {type_}, {pointer}, align 4")
            code.raw(f"store {value}, ptr {self.slot(name)}, align 64")
        if self.flow.divergent:
            pending = code.emit(lanes("i32"), f"load {lanes('i32')}, ptr %state, align 64")
            code.raw(f"store {pending}, ptr %next")
            code.raw("br label %dispatch")
        else:
            code.raw(f"br label %b{block}")

    # Warp-level instructions ---------------------------------------------------------------

    def op_shfl(self, i: Instruction) -> None:
        code = self.code
        mode = i.parts[2] if i.parts[1] == "sync" else i.parts[1]
        both = len(i.operands) == 6
        value_op, amount_op, clamp_op = i.operands[2:5] if both else i.operands[1:4]
        value = self.read(value_op, 32, vector=True)
        mask = self.guard(i)
        if isinstance(amount_op, Imm) and isinstance(clamp_op, Imm):
            picks, inside = _shuffle(mode, amount_op.bits & 31, clamp_op.bits)
            result = code.shuffle(value, picks)
            good = per_lane("i1", [int(x) for x in inside])
        else:
            result, good = self._dynamic_shuffle(mode, value, amount_op, clamp_op)
        self.write(i.operands[0], result, mask)
        if both:
            self.write(i.operands[1], good, mask)

    def _dynamic_shuffle(
        self, mode: str, value: Value, amount_op: Operand, clamp_op: Operand
    ) -> tuple[Value, Value]:
        code = self.code
        word = lanes("i32")
        amount = code.binary("and", self.read(amount_op, 32, vector=True), constant(word, 31))
        clamp_value = self.read(clamp_op, 32, vector=True)
        clamp = code.binary("and", clamp_value, constant(word, 31))
        segment = code.binary(
            "and", code.binary("lshr", clamp_value, constant(word, 8)), constant(word, 31)
        )
        other = code.binary("xor", segment, constant(word, 31))
        lane = per_lane("i32", range(LANES))
        low = code.binary("and", lane, segment)
        high = code.binary("or", low, code.binary("and", clamp, other))
        if mode == "up":
            target = code.binary("sub", lane, amount)
            inside = code.compare("icmp", "sge", target, high)
        else:
            if mode == "down":
                target = code.binary("add", lane, amount)
            elif mode == "bfly":
                target = code.binary("xor", lane, amount)
            elif mode == "idx":
                target = code.binary("or", low, code.binary("and", amount, other))
            else:
                raise Unsupported(f"the virtual GPU does not execute shfl.{mode}")
            inside = code.compare("icmp", "sle", target, high)
        picked = code.select(inside, target, lane)
        code.raw(f"store {value}, ptr %scratch, align 64")
        pointers = code.emit(lanes("ptr"), f"getelementptr i32, ptr %scratch, {picked}")
        result = code.call(
            "llvm.masked.gather.v32i32.v32p0",
            word,
            [pointers, Value("i32", "4"), constant(lanes("i1"), "true"), constant(word, 0)],
        )
        return result, inside

    def op_vote(self, i: Instruction) -> None:
        code = self.code
        mode = next((p for p in i.parts if p in {"all", "any", "uni", "ballot"}), "")
        if not mode:
            raise self.unsupported(i)
        bits = self.mask_bits(self.read(i.operands[1], 1, vector=True))
        on = self.mask_bits(self.active)
        bits = code.binary("and", bits, on)
        if mode == "ballot":
            self.finish(i, bits)
            return
        every = code.compare("icmp", "eq", bits, on)
        none = code.compare("icmp", "eq", bits, Value("i32", "0"))
        result = {
            "all": lambda: every,
            "any": lambda: code.binary("xor", none, Value("i1", "true")),
            "uni": lambda: code.binary("or", every, none),
        }[mode]()
        self.finish(i, result)

    def op_activemask(self, i: Instruction) -> None:
        self.finish(i, self.mask_bits(self.active))

    def op_elect(self, i: Instruction) -> None:
        code = self.code
        on = self.mask_bits(self.active)
        first = code.emit("i32", f"call i32 @llvm.cttz.i32(i32 {on.ref}, i1 true)")
        chosen = code.compare("icmp", "eq", per_lane("i32", range(LANES)), code.splat(first))
        self.write(i.operands[0], first, self.guard(i))
        self.write(i.operands[1], chosen, self.guard(i))

    def op_redux(self, i: Instruction) -> None:
        code = self.code
        op = i.parts[2]
        names = {
            "add": "add", "and": "and", "or": "or", "xor": "xor",
            "min": "smin" if i.parts[-1] == "s32" else "umin",
            "max": "smax" if i.parts[-1] == "s32" else "umax",
        }  # fmt: skip
        if op not in names or i.parts[-1] not in {"s32", "u32", "b32"}:
            raise self.unsupported(i)
        value = self.read(i.operands[1], 32, vector=True)
        if self.active is not None:
            neutral = {"and": -1, "smin": 0x7FFFFFFF, "umin": -1, "smax": -(1 << 31)}
            idle = constant(value.type, neutral.get(names[op], 0))
            value = code.select(self.active, value, idle)
        total = code.call(f"llvm.vector.reduce.{names[op]}.v32i32", "i32", [value])
        self.finish(i, total)

    def op_isspacep(self, i: Instruction) -> None:
        self.finish(i, Value("i1", "true" if "global" in i.parts else "false"))


def _shuffle(mode: str, amount: int, clamp_value: int) -> tuple[list[int], list[bool]]:
    """Source lane and validity for each lane (PTX ISA, shfl.sync)."""
    clamp, segment = clamp_value & 31, clamp_value >> 8 & 31
    picks, inside = [], []
    for lane in range(LANES):
        high = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        if mode == "up":
            target = lane - amount
            good = target >= high
        elif mode == "down":
            target = lane + amount
            good = target <= high
        elif mode == "bfly":
            target = lane ^ amount
            good = target <= high
        elif mode == "idx":
            target = low | (amount & ~segment & 31)
            good = target <= high
        else:
            raise Unsupported(f"the virtual GPU does not execute shfl.{mode}")
        picks.append(target if good else lane)
        inside.append(good)
    return picks, inside


def _ordered(flow: Flow) -> bool:
    """Whether the result may depend on the order of CTAs in a way that must repeat."""
    for block in flow.blocks:
        for i in block.instructions:
            if i.parts[0] == "atom" or (i.parts[0] == "red" and i.parts[-1][0] in "fb"):
                return True
    return False


def translate(ptx: str, name: str, counted: bool) -> Translation:
    """The LLVM module for the entry `name`. Raises `Unsupported` with the opcode's name."""
    entry = parse(ptx, name)
    flow = analyse(entry)
    worker = Translator(entry, flow, counted)
    worker.translate()
    for block in worker.resumes():
        worker.restore(block)
    state_bytes = getattr(worker, "state_bytes", 128)
    text = _module(worker)
    return Translation(text, entry, flow, worker.sites, worker.selects, state_bytes, _ordered(flow))


def _module(w: Translator) -> str:
    flow = w.flow
    head = [
        "define internal fastcc i32 @run_warp(ptr %ctx, ptr %cache, ptr %selects, ptr %blocks,"
        " ptr %state, i32 %resume) #0 {",
        "entry:",
    ]
    for register, name in w.slots.items():
        head.append(f"  {name} = alloca {w.type_of(register)}, align 64")
        # Reading a register before any write gives 0; PTX leaves it undefined.
        head.append(f"  store {w.type_of(register)} zeroinitializer, ptr {name}, align 64")
    head.append(
        f"  %carry = alloca {lanes('i1')}\n  store {lanes('i1')} zeroinitializer, ptr %carry"
    )
    head.append(f"  %scratch = alloca {lanes('i32')}, align 64")
    if flow.divergent:
        head.append(f"  %next = alloca {lanes('i32')}\n  %active = alloca {lanes('i1')}")
        head.append(f"  store {lanes('i32')} zeroinitializer, ptr %next")
        head.append(f"  store {constant(lanes('i1'), 'true')}, ptr %active")
    cases = " ".join(f"i32 {b}, label %resume{b}" for b in w.resumes())
    start = "%first" if flow.divergent else "%b0"
    head.append(f"  switch i32 %resume, label {start} [ {cases} ]")
    tail = ["end:", "  ret i32 -1"]
    if flow.divergent:
        threads = "%ntid"
        tail += [
            "first:",
            f"  %ntidp = getelementptr i64, ptr %ctx, i64 {slot.NTID}",
            "  %nx = load i64, ptr %ntidp",
            f"  %nyp = getelementptr i64, ptr %ctx, i64 {slot.NTID + 1}",
            "  %ny = load i64, ptr %nyp",
            f"  %nzp = getelementptr i64, ptr %ctx, i64 {slot.NTID + 2}",
            "  %nz = load i64, ptr %nzp",
            "  %nxy = mul i64 %nx, %ny",
            f"  {threads} = mul i64 %nxy, %nz",
            f"  %wp = getelementptr i64, ptr %ctx, i64 {slot.WARP}",
            "  %w = load i64, ptr %wp",
            "  %base = mul i64 %w, 32",
            f"  %left = sub i64 {threads}, %base",
            f"  %l0 = insertelement {lanes('i64')} poison, i64 %left, i32 0",
            f"  %lv = shufflevector {lanes('i64')} %l0, {lanes('i64')} poison, <32 x i32> zeroinitializer",
            f"  %live = icmp slt {per_lane('i64', range(LANES))}, %lv",
            f"  %pc0 = select {lanes('i1')} %live, {constant(lanes('i32'), 0)}, {constant(lanes('i32'), EXITED)}",
            f"  store {lanes('i32')} %pc0, ptr %next",
            "  br label %dispatch",
            "dispatch:",
            f"  %pcs = load {lanes('i32')}, ptr %next",
            f"  %least = call i32 @llvm.vector.reduce.umin.v32i32({lanes('i32')} %pcs)",
            f"  %m0 = insertelement {lanes('i32')} poison, i32 %least, i32 0",
            f"  %mv = shufflevector {lanes('i32')} %m0, {lanes('i32')} poison, <32 x i32> zeroinitializer",
            f"  %on = icmp eq {lanes('i32')} %pcs, %mv",
            f"  store {lanes('i1')} %on, ptr %active",
            "  switch i32 %least, label %end [ "
            + " ".join(f"i32 {b.index}, label %b{b.index}" for b in flow.blocks)
            + " ]",
        ]
        w.code.declared.add(f"declare i32 @llvm.vector.reduce.umin.v32i32({lanes('i32')})")
    w.routines["find"] = slot.FIND
    body = "\n".join(w.code.lines)
    already = set(slot.FIND.splitlines()) | {
        line for text in w.routines.values() for line in text.splitlines()
    }
    declared = sorted(d for d in w.code.declared if d not in already)
    return "\n".join(
        [*declared, *w.routines.values(), *head, body, *tail, "}", CTA_LOOP, ATTRIBUTES]
    )


ATTRIBUTES = (
    'attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'
)

CTA_LOOP = """
; Runs the CTAs listed in %ctas[0..%n): all warps of a CTA up to the next barrier, again and again.
define void @run_ctas(ptr %ctx, ptr %ctas, i64 %n) #0 {
entry:
  %c.p = getelementptr i64, ptr %ctx, i64 30
  %c.i = load i64, ptr %c.p
  %cache = inttoptr i64 %c.i to ptr
  %s.p = getelementptr i64, ptr %ctx, i64 28
  %s.i = load i64, ptr %s.p
  %selects = inttoptr i64 %s.i to ptr
  %b.p = getelementptr i64, ptr %ctx, i64 20
  %b.i = load i64, ptr %b.p
  %blocks = inttoptr i64 %b.i to ptr
  %st.p = getelementptr i64, ptr %ctx, i64 18
  %st.i = load i64, ptr %st.p
  %states = inttoptr i64 %st.i to ptr
  %w.p = getelementptr i64, ptr %ctx, i64 31
  %warps = load i64, ptr %w.p
  %sb.p = getelementptr i64, ptr %ctx, i64 32
  %sb = load i64, ptr %sb.p
  %o.p = getelementptr i64, ptr %ctx, i64 27
  %o.i = load i64, ptr %o.p
  %orders = inttoptr i64 %o.i to ptr
  %sh.p = getelementptr i64, ptr %ctx, i64 10
  %sh.i = load i64, ptr %sh.p
  %shared = inttoptr i64 %sh.i to ptr
  %shb.p = getelementptr i64, ptr %ctx, i64 11
  %shb = load i64, ptr %shb.p
  %nx.p = getelementptr i64, ptr %ctx, i64 4
  %nx = load i64, ptr %nx.p
  %ny.p = getelementptr i64, ptr %ctx, i64 5
  %ny = load i64, ptr %ny.p
  %resumes = getelementptr i64, ptr %orders, i64 %warps
  %any = icmp ult i64 0, %n
  br i1 %any, label %cta, label %out
cta:
  %i = phi i64 [ 0, %entry ], [ %i1, %cta.done ]
  %idp = getelementptr i64, ptr %ctas, i64 %i
  %id = load i64, ptr %idp
  %idslot = getelementptr i64, ptr %ctx, i64 13
  store i64 %id, ptr %idslot
  %x = urem i64 %id, %nx
  %yz = udiv i64 %id, %nx
  %y = urem i64 %yz, %ny
  %z = udiv i64 %yz, %ny
  %xp = getelementptr i64, ptr %ctx, i64 1
  store i64 %x, ptr %xp
  %yp = getelementptr i64, ptr %ctx, i64 2
  store i64 %y, ptr %yp
  %zp = getelementptr i64, ptr %ctx, i64 3
  store i64 %z, ptr %zp
  call void @llvm.memset.p0.i64(ptr %shared, i8 0, i64 %shb, i1 false)
  %ob = mul i64 %warps, 16
  call void @llvm.memset.p0.i64(ptr %orders, i8 0, i64 %ob, i1 false)
  br label %round
round:
  br label %warp
warp:
  %w = phi i64 [ 0, %round ], [ %w1, %warp.next ]
  %alive = phi i64 [ 0, %round ], [ %alive2, %warp.next ]
  %rp = getelementptr i64, ptr %resumes, i64 %w
  %r = load i64, ptr %rp
  %dead = icmp slt i64 %r, 0
  br i1 %dead, label %warp.next, label %run
run:
  %wslot = getelementptr i64, ptr %ctx, i64 19
  store i64 %w, ptr %wslot
  %so = mul i64 %w, %sb
  %state = getelementptr i8, ptr %states, i64 %so
  %r32 = trunc i64 %r to i32
  %new = call fastcc i32 @run_warp(ptr %ctx, ptr %cache, ptr %selects, ptr %blocks, ptr %state, i32 %r32)
  %new64 = sext i32 %new to i64
  store i64 %new64, ptr %rp
  %lives = icmp sge i32 %new, 0
  %l64 = zext i1 %lives to i64
  %alive1 = add i64 %alive, %l64
  br label %warp.next
warp.next:
  %alive2 = phi i64 [ %alive, %warp ], [ %alive1, %run ]
  %w1 = add i64 %w, 1
  %more = icmp ult i64 %w1, %warps
  br i1 %more, label %warp, label %round.end
round.end:
  %again = icmp ne i64 %alive2, 0
  br i1 %again, label %round, label %cta.done
cta.done:
  %i1 = add i64 %i, 1
  %left = icmp ult i64 %i1, %n
  br i1 %left, label %cta, label %out
out:
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

__all__ = ["Translation", "Symbol", "translate"]
