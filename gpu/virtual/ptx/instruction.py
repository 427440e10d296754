"""Instructions of PTX: operands, opcodes, and which registers they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

WIDTHS = {
    "pred": 1, "b8": 8, "u8": 8, "s8": 8,
    "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "tf32": 32,
    "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64, "b128": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Reg:
    """A virtual register."""

    name: str


@dataclass(frozen=True)
class Imm:
    """An immediate: an integer, or the bits of a float with `float_width` 32 or 64."""

    bits: int
    float_width: int = 0


@dataclass(frozen=True)
class Special:
    """A read-only special register, e.g. `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A label, a function or a variable in shared, local or constant space."""

    name: str


@dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Reg | Symbol | Imm
    offset: int


@dataclass(frozen=True)
class Vector:
    """`{a, b, …}`."""

    items: tuple[Operand, ...]


Operand = Reg | Imm | Special | Symbol | Address | Vector


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction; `guard` is its predicate register, `negated` for `@!%p`."""

    index: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None
    negated: bool
    file: str
    line: int

    @cached_property
    def writes(self) -> tuple[Reg, ...]:
        """Registers that the instruction writes."""
        name = self.parts[0]
        if not self.operands or (
            name in NO_DESTINATION and not self.opcode.startswith(("bar.red", "barrier.cta.red"))
        ):
            return ()
        count = 1
        if name == "setp":
            boolean = any(p in {"and", "or", "xor"} for p in self.parts[1:])
            count = len(self.operands) - (3 if boolean else 2)
        elif (
            (name == "shfl" and len(self.operands) == 6)
            or (name == "match" and len(self.operands) == 4)
            or name == "elect"
        ):
            count = 2
        return tuple(r for operand in self.operands[:count] for r in registers_of(operand))

    @cached_property
    def reads(self) -> tuple[Reg, ...]:
        """Registers that it reads: its guard, address bases, and under a guard what it writes."""
        found: list[Reg] = [self.guard] if self.guard else []
        outputs = 0
        for operand in self.operands:
            if outputs >= len(self.writes):
                found.extend(registers_of(operand))
            outputs += len(registers_of(operand)) or 1
        if self.guard and self.writes:
            found.extend(self.writes)
        return tuple(found)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The opcode split at dots: `("ld", "global", "v4", "b32")`."""
        return tuple(self.opcode.split("."))


def registers_of(operand: Operand) -> list[Reg]:
    """Registers that an operand names."""
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Address) and isinstance(operand.base, Reg):
        return [operand.base]
    if isinstance(operand, Vector):
        return [r for item in operand.items for r in registers_of(item)]
    return []


NO_DESTINATION = {
    "st", "bra", "bar", "barrier", "ret", "exit", "red", "membar", "fence", "cp", "trap",
    "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard", "applypriority", "brkpt",
    "pmevent",
}  # fmt: skip
"""First parts of opcodes whose operands are all sources."""
