"""Control flow of a PTX entry: blocks, which registers are uniform in a warp, which are live."""

from __future__ import annotations

from dataclasses import dataclass, field

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx.instruction import (
    Imm,
    Instruction,
    Reg,
    Special,
    Symbol,
)
from kopt.gpu.virtual.ptx.parse import Entry

LANE_VARYING = {"shfl", "ldmatrix", "mma", "wmma", "atom", "match", "elect"}
"""Opcodes whose result may differ between lanes whatever their operands are."""

WARP_WIDE = {"vote", "activemask", "redux"}
"""Opcodes with one result for the lanes that run together. Where no branch is found to diverge
under this assumption, all lanes always run together, so it holds."""

LANE_SPECIALS = ("%tid", "%laneid", "%lanemask")


@dataclass
class Block:
    """Straight-line code. A barrier ends its block: the warp is resumed at the next one."""

    index: int
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    ends_in_barrier: bool = False


@dataclass(frozen=True)
class Flow:
    """The analysed entry."""

    blocks: list[Block]
    uniform: frozenset[str]
    """Registers that hold one value for the whole warp."""
    live_in: list[frozenset[str]]
    """Registers live at the start of each block."""
    divergent: bool
    """Some branch may split a warp: the code needs execution masks."""
    local: frozenset[str]
    """Registers that only one block uses, and never before it writes them."""


def is_barrier(instruction: Instruction) -> bool:
    """A CTA-wide barrier at which a warp must wait for others."""
    return instruction.parts[0] in {"bar", "barrier"} and instruction.parts[1] != "warp"


def may_spin(flow: Flow, first: int, last: int) -> bool:
    """Whether a loop over these blocks may wait for what another warp does."""
    for block in flow.blocks[first : last + 1]:
        if block.ends_in_barrier:
            return False
    waits = {"volatile", "acquire", "relaxed"}
    return any(
        i.parts[0] == "atom" or (i.parts[0] == "ld" and waits & set(i.parts))
        for block in flow.blocks[first : last + 1]
        for i in block.instructions
    )


def analyse(entry: Entry) -> Flow:
    """Blocks, uniformity and liveness of an entry."""
    blocks = _blocks(entry)
    uniform, divergent = _uniform(entry, blocks)
    live = _live(blocks)
    return Flow(blocks, uniform, live, divergent, _local(blocks, live))


def _local(blocks: list[Block], live: list[frozenset[str]]) -> frozenset[str]:
    homes: dict[str, set[int]] = {}
    for block in blocks:
        for instruction in block.instructions:
            for register in (*instruction.writes, *instruction.reads):
                homes.setdefault(register.name, set()).add(block.index)
    return frozenset(
        name
        for name, where in homes.items()
        if len(where) == 1 and not any(name in live[index] for index in where)
    )


def _blocks(entry: Entry) -> list[Block]:
    targets = {
        operand.name
        for item in entry.body
        if isinstance(item, Instruction) and item.parts[0] == "bra"
        for operand in item.operands
        if isinstance(operand, Symbol)
    }
    blocks = [Block(0)]
    labels: dict[str, int] = {}

    def start() -> None:
        if blocks[-1].instructions:
            blocks.append(Block(len(blocks)))

    for item in entry.body:
        if isinstance(item, str):
            if item in targets:
                start()
            labels[item] = blocks[-1].index
            continue
        blocks[-1].instructions.append(item)
        if item.parts[0] in {"bra", "ret", "exit", "trap"} or is_barrier(item):
            blocks[-1].ends_in_barrier = is_barrier(item)
            blocks.append(Block(len(blocks)))
    if not blocks[-1].instructions and not any(n == blocks[-1].index for n in labels.values()):
        blocks.pop()
    for block in blocks:
        last = block.instructions[-1] if block.instructions else None
        following = [block.index + 1] if block.index + 1 < len(blocks) else []
        if last is not None and last.parts[0] == "bra":
            target = last.operands[0]
            if not isinstance(target, Symbol) or target.name not in labels:
                raise Unsupported(f"PTX branch to {target}")
            block.successors = [labels[target.name], *(following if last.guard else [])]
        elif last is not None and last.parts[0] in {"ret", "exit", "trap"}:
            block.successors = following if last.guard else []
        else:
            block.successors = following
    return blocks


def _uniform(entry: Entry, blocks: list[Block]) -> tuple[frozenset[str], bool]:
    varying: set[str] = set()
    changed = True
    while changed:
        changed = False
        for block in blocks:
            for instruction in block.instructions:
                if _varies(instruction, varying) or (
                    entry.generic_local and _generic_load(instruction)
                ):
                    for register in instruction.writes:
                        if register.name not in varying:
                            varying.add(register.name)
                            changed = True
    ragged = entry.max_threads == 0 or entry.max_threads % 32 != 0
    divergent = ragged or any(
        block.instructions
        and block.instructions[-1].guard is not None
        and block.instructions[-1].parts[0] in {"bra", "ret", "exit", "trap"}
        and block.instructions[-1].guard.name in varying
        for block in blocks
    )
    everything = set(entry.registers)
    if divergent:
        # Under masks only what the first block alone defines is the same for all lanes for good.
        for block in blocks[1:]:
            for instruction in block.instructions:
                varying.update(r.name for r in instruction.writes)
        if any(0 in block.successors for block in blocks):
            varying = everything
        else:
            varying |= _depends(blocks[0], varying)
    return frozenset(everything - varying), divergent


def _depends(block: Block, varying: set[str]) -> set[str]:
    grown = set(varying)
    for instruction in block.instructions:
        if any(r.name in grown for r in instruction.reads):
            grown.update(r.name for r in instruction.writes)
    return grown


def _varies(instruction: Instruction, varying: set[str]) -> bool:
    parts = instruction.parts
    if parts[0] == "shfl":
        return not _one_lane(instruction, varying)
    if parts[0] in LANE_VARYING or parts[:2] == ("ld", "local"):
        return True
    if instruction.guard is not None and instruction.guard.name in varying:
        return True
    if parts[0] in WARP_WIDE:
        return False
    for operand in instruction.operands:
        if isinstance(operand, Special) and operand.name.startswith(LANE_SPECIALS):
            return True
    return any(r.name in varying for r in instruction.reads)


def _generic_load(instruction: Instruction) -> bool:
    spaces = {"global", "shared", "local", "param", "const"}
    return instruction.parts[0] == "ld" and not spaces & set(instruction.parts)


def _one_lane(instruction: Instruction, varying: set[str]) -> bool:
    """A shuffle in which every lane reads the same lane."""
    if "idx" not in instruction.parts or len(instruction.operands) > 5:
        return False
    lane, clamp = instruction.operands[2:4]
    fixed = isinstance(lane, Imm) or (isinstance(lane, Reg) and lane.name not in varying)
    whole = isinstance(clamp, Imm) and clamp.bits & 0x1F1F == 0x1F
    guard = instruction.guard
    return fixed and whole and (guard is None or guard.name not in varying)


def _live(blocks: list[Block]) -> list[frozenset[str]]:
    use: list[set[str]] = []
    define: list[set[str]] = []
    for block in blocks:
        used: set[str] = set()
        defined: set[str] = set()
        for instruction in block.instructions:
            used.update(r.name for r in instruction.reads if r.name not in defined)
            defined.update(r.name for r in instruction.writes)
        use.append(used)
        define.append(defined)
    live = [frozenset[str]() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out: set[str] = set()
            for successor in block.successors:
                out |= live[successor]
            new = frozenset(use[block.index] | (out - define[block.index]))
            if new != live[block.index]:
                live[block.index] = new
                changed = True
    return live
