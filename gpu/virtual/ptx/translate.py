"""A PTX entry as the LLVM function `@run_warp`, with the CTA loop that calls it.

`@run_warp(ctx, cache, state, resume)` runs one warp until a barrier, where it returns the block to
resume at (plus `WAITING`), or to its end, where it returns -1. Registers are values in SSA form
inside a block; those that cross blocks live in `state` (in SSA form throughout they compile two
times slower and run no faster: there are more of them than a CPU has registers). Code whose
branches are all uniform needs no masks. Otherwise each lane has its own next block and the smallest
one runs first (min-PC order), so that diverged lanes meet again at the earliest point.
"""

from __future__ import annotations

from dataclasses import dataclass

from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx.flow import Block, Flow, may_spin
from kopt.gpu.virtual.ptx.instruction import Imm, Instruction
from kopt.gpu.virtual.ptx.ir import Routine, Value, constant, lanes
from kopt.gpu.virtual.ptx.module import module
from kopt.gpu.virtual.ptx.parse import Entry
from kopt.gpu.virtual.ptx.registers import SiteInfo
from kopt.gpu.virtual.ptx.warp import Warp

EXITED = 0x7FFFFFFF
LONG = 400
"""Instructions from which on compile time matters more than speed."""
IGNORED = {
    "membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard",
    "applypriority", "pmevent",
}  # fmt: skip


@dataclass(frozen=True)
class Translation:
    """The LLVM module of one entry and what its run needs."""

    text: str
    routines: tuple[Routine, ...]
    entry: Entry
    flow: Flow
    sites: list[SiteInfo]
    selects: list[Instruction]
    guarded: list[Instruction]
    edges: list[Instruction]
    state_bytes: int
    """Of one warp, for the registers that live across barriers."""
    local_stride: int
    ordered: bool
    """Float atomics or atomics with results: CTAs must run one after the other."""
    effort: int
    """Of LLVM's code generator. Long kernels get 0: it halves their compile time, and the code runs
    15 % slower."""


class Translator(Warp):
    """Lowers blocks and control flow."""

    def translate(self) -> None:
        """Write the blocks of `@run_warp`."""
        for block in self.flow.blocks:
            self._block(block)

    # Blocks ------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        code = self.code
        code.label(f"b{block.index}")
        if self.flow.divergent:
            self.active = code.emit(lanes("i1"), f"load {lanes('i1')}, ptr %active")
        if self.counted:
            self.tally("%blocks", 2 * block.index, Value("i64", "1"))
            if self.active is not None:
                count = code.intrinsic("ctpop.", "i32", [self.mask_bits(self.active)])
                self.tally("%blocks", 2 * block.index + 1, code.cast("zext", count, "i64"))
        self.begin_block()
        last = block.instructions[-1].parts[0] if block.instructions else ""
        ends = last in {"bra", "ret", "exit", "trap"} or block.ends_in_barrier
        for instruction in block.instructions[: -1 if ends else None]:
            self.instruction(block, instruction)
        self.end_block()
        if ends:
            self.instruction(block, block.instructions[-1])
        else:
            self._go(block.index + 1)

    def instruction(self, block: Block, i: Instruction) -> None:
        """Write one instruction."""
        if self.counted and i.guard is not None:
            self._count_guarded(i)
        name = i.parts[0]
        if name == "bra":
            self._branch(block, i)
        elif name in {"ret", "exit", "trap"}:
            self._exit(block, i)
        elif name in {"bar", "barrier"}:
            self._barrier(block, i)
        elif name == "createpolicy":
            self.write(i.operands[0], Value("i64", "0"), self.guard(i))
        elif name not in IGNORED and not self.arithmetic(i):
            raise self.unsupported(i)

    def _count_guarded(self, i: Instruction) -> None:
        code = self.code
        mask = self.guard(i)
        bits = self.mask_bits(mask)
        count = code.cast("zext", code.intrinsic("ctpop.", "i32", [bits]), "i64")
        self.tally("%guards", len(self.guarded), count)
        self.guarded.append(i)
        if i.parts[0] == "bra":
            on = self.mask_bits(self.active)
            some = code.compare("icmp", "ne", bits, Value("i32", "0"))
            rest = code.compare("icmp", "ne", bits, on)
            split = code.binary("and", some, rest)
            number = ctx.EDGE_SLOTS * len(self.edges)
            self.edges.append(i)
            self.tally("%edges", number, code.cast("zext", some, "i64"))
            self.tally("%edges", number + 1, code.cast("zext", split, "i64"))

    # Control flow -------------------------------------------------------------------------

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
            old = code.emit(lanes("i32"), f"load {lanes('i32')}, ptr %state, align 64")
            value = code.select(mask, value, old)
        code.raw(f"store {value}, ptr %state, align 64")

    def _leave(self, mask: Value | None) -> None:
        if self.flow.divergent:
            self._set_next(constant(lanes("i32"), EXITED), mask)
            self.code.raw("br label %dispatch")
        else:
            self.code.raw("ret i32 -1")

    def _branch(self, block: Block, i: Instruction) -> None:
        target = block.successors[0]
        spins = target <= block.index and may_spin(self.flow, target, block.index)
        if self.flow.divergent:
            self._masked_branch(block, i, spins)
            return
        there = f"%b{target}"
        if spins:
            there = f"%spin{block.index}"
        if i.guard is None:
            self.code.raw(f"br label {there}")
        else:
            taken = self.guard(i)
            assert taken is not None
            other = f"%b{block.index + 1}" if block.index + 1 < len(self.flow.blocks) else "%end"
            self.code.raw(f"br {taken}, label {there}, label {other}")
        if spins:
            self._burn(block.index, target)

    def _masked_branch(self, block: Block, i: Instruction, spins: bool) -> None:
        code = self.code
        there = constant(lanes("i32"), block.successors[0])
        if i.guard is None:
            self._set_next(there, self.active)
        else:
            taken = self.guard(i)
            assert taken is not None
            fall = block.index + 1 if block.index + 1 < len(self.flow.blocks) else EXITED
            self._set_next(code.select(taken, there, constant(lanes("i32"), fall)), self.active)
        if spins:
            code.raw(f"store i32 {block.successors[0]}, ptr %floor")
            code.raw("br label %burn")
        else:
            code.raw("br label %dispatch")

    def _burn(self, block: int, target: int) -> None:
        """Count a back edge of a loop that may wait for another warp; in the end let others run."""
        code = self.code
        code.label(f"spin{block}")
        left = code.binary("sub", code.emit("i32", "load i32, ptr %fuel"), Value("i32", "1"))
        code.raw(f"store {left}, ptr %fuel")
        empty = code.compare("icmp", "eq", left, Value("i32", "0"))
        code.raw(f"br {empty}, label %yield{block}, label %b{target}")
        code.label(f"yield{block}")
        code.raw(f"ret i32 {target}")

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

    # Barriers -----------------------------------------------------------------------------

    def _barrier(self, block: Block, i: Instruction) -> None:
        if not block.ends_in_barrier:
            return
        if len(i.operands) > 1 or "red" in i.parts or "arrive" in i.parts:
            raise self.unsupported(i)
        if i.operands and isinstance(i.operands[0], Imm) and i.operands[0].bits:
            raise self.unsupported(i)
        after = block.index + 1
        if self.flow.divergent:
            ended = after >= len(self.flow.blocks)
            self._set_next(constant(lanes("i32"), EXITED if ended else after), self.active)
            self.code.raw(f"ret i32 {1 | ctx.WAITING}")
            return
        self.code.raw(f"ret i32 {after | ctx.WAITING if after < len(self.flow.blocks) else -1}")

    def resumes(self) -> list[int]:
        """Blocks at which a warp can be resumed after a barrier or a wait."""
        last = len(self.flow.blocks)
        after = {b.index + 1 for b in self.flow.blocks if b.ends_in_barrier and b.index + 1 < last}
        for b in self.flow.blocks:
            if b.instructions and b.instructions[-1].parts[0] == "bra":
                target = b.successors[0]
                if target <= b.index and may_spin(self.flow, target, b.index):
                    after.add(target)
        return sorted(after)


def _ordered(flow: Flow) -> bool:
    """Whether the result may depend on the order of CTAs in a way that must repeat."""
    for block in flow.blocks:
        for i in block.instructions:
            if i.parts[0] == "atom" or (i.parts[0] == "red" and i.parts[-1][0] in "fb"):
                return True
    return False


def translation(worker: Translator) -> Translation:
    """The LLVM module that `worker` writes. Raises `Unsupported` with the opcode's name."""
    worker.translate()
    return Translation(
        module(worker, worker.resumes()),
        tuple(worker.code.routines.values()),
        worker.entry,
        worker.flow,
        worker.sites,
        worker.selects,
        worker.guarded,
        worker.edges,
        worker.state_bytes,
        worker.local_stride,
        _ordered(worker.flow),
        1 if sum(len(b.instructions) for b in worker.flow.blocks) < LONG else 0,
    )
