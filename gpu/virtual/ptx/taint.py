"""Which registers may hold floats: only those carry a shadow in `wide` arithmetic."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.flow import Flow
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Instruction
from kopt.gpu.virtual.ptx.parse import Entry

FLOATS = {"f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "tf32"}
CARRY = {
    "mov", "selp", "shfl", "prmt", "and", "or", "xor", "not", "shl", "shr", "ldmatrix", "atom",
    "lop3", "slct",
}  # fmt: skip
"""Opcodes that move bits: a shadow may pass through them."""


def slots(width: int) -> int:
    """Shadows of a register: one for each 16 bits; a predicate has one too."""
    return 1 if width == 1 else width // 16


def tainted(entry: Entry, flow: Flow, singles: frozenset[str]) -> frozenset[str]:
    """Registers that may hold a float whose wide value differs from the actual one."""
    found: set[str] = set()
    changed = True
    while changed:
        changed = False
        for block in flow.blocks:
            for i in block.instructions:
                if not _taints(i, found, singles):
                    continue
                for register in i.writes:
                    if register.name not in found and _room(entry, register.name):
                        found.add(register.name)
                        changed = True
    return frozenset(found)


def _room(entry: Entry, register: str) -> bool:
    return slots(WIDTHS[entry.registers[register]]) > 0


def _taints(i: Instruction, found: set[str], singles: frozenset[str]) -> bool:
    name, kind = i.parts[0], i.parts[-1]
    fed = any(r.name in found for r in i.reads)
    if name in {"ld", "ldu"}:
        return "param" not in i.parts
    if name in {"ldmatrix", "mma", "atom"}:
        return True
    if name == "setp":
        return kind in FLOATS and fed
    if name == "cvt":
        target = i.parts[-2]
        return target in FLOATS or (fed and kind not in FLOATS)
    if name in CARRY:
        return fed
    if name in {"add", "sub"} and kind in {"s32", "u32"}:
        # What may change the exponent of a float32.
        return bool(i.reads) and i.reads[0].name in found & singles
    return kind in FLOATS


def single_registers(flow: Flow) -> frozenset[str]:
    """Registers that hold a float32: operands of float32 instructions, and what they are moved
    from and to."""
    found: set[str] = set()
    links: list[list[str]] = []
    for block in flow.blocks:
        for i in block.instructions:
            names = [r.name for r in (*i.writes, *i.reads)]
            if i.parts[0] in {"mov", "selp", "shfl"} and i.parts[-1] == "b32":
                links.append(names)
            elif i.parts[-1] == "f32" and i.parts[0] not in {"cvt", "ld", "st"}:
                found.update(names)
    changed = True
    while changed:
        changed = False
        for names in links:
            if any(n in found for n in names) and not found.issuperset(names):
                found.update(names)
                changed = True
    return frozenset(found)
