"""Registers of a warp as LLVM stack slots that the optimiser promotes, and operand access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx import context as slot
from kopt.gpu.virtual.ptx.flow import Flow
from kopt.gpu.virtual.ptx.instruction import (
    WIDTHS,
    Address,
    Imm,
    Instruction,
    Operand,
    Reg,
    Special,
    Symbol,
    Vector,
)
from kopt.gpu.virtual.ptx.ir import LANES, Code, Value, constant, lanes, per_lane, width
from kopt.gpu.virtual.ptx.parse import Entry

Space = Literal["global", "shared", "local", "param", "const"]
SiteKind = Literal["load", "store", "atomic", "cp_async", "ldmatrix"]

CONSTANT_BASE = 0x7E00_0000_0000
"""Virtual address of the module's constants."""
SHARED_WINDOW = 0x7D00_0000_0000
"""Generic address of shared memory."""
LOCAL_WINDOW = 0x7C00_0000_0000
"""Generic address of local memory."""
WINDOW = 1 << 32


@dataclass(frozen=True)
class SiteInfo:
    """A memory instruction (or half of one) that gets its own counters."""

    number: int
    instruction: Instruction
    space: Space
    kind: SiteKind
    bytes_per_lane: int


def parent(register: str) -> str:
    """The PTX register that a register belongs to: `wide` arithmetic adds some, named `%r1#0`."""
    return register.partition("#")[0]


class Registers:
    """Reads and writes of operands; base of the translator."""

    def __init__(self, entry: Entry, flow: Flow, counted: bool) -> None:
        self.entry = entry
        self.flow = flow
        self.counted = counted
        self.code = Code()
        self.slots: dict[str, tuple[str, int]] = {}
        """Registers that cross blocks: how the code names their place in the warp's state, and its
        offset. The first 128 bytes hold the lanes' next blocks."""
        self.sites: list[SiteInfo] = []
        self.selects: list[Instruction] = []
        self.guarded: list[Instruction] = []
        """Predicated instructions that count their lanes."""
        self.edges: list[Instruction] = []
        """Conditional branches."""
        self.state_bytes = 128
        self._values: dict[str, Value] = {}
        self._written: dict[str, None] = {}
        self.params = {p.name: p for p in entry.params}
        self.active: Value | None = None
        """Lanes that execute the current block, in masked code."""

    # Types -----------------------------------------------------------------

    def element(self, register: str) -> str:
        return f"i{WIDTHS[self.entry.registers[register]]}"

    def is_uniform(self, register: str) -> bool:
        return parent(register) in self.flow.uniform

    def type_of(self, register: str) -> str:
        element = self.element(register)
        return element if self.is_uniform(register) else lanes(element)

    def slot(self, register: str) -> str:
        if register not in self.slots:
            self.slots[register] = f"%reg{len(self.slots)}", self.state_bytes
            self.state_bytes += -(-self.bytes_of(register) // 64) * 64
        return self.slots[register][0]

    def bytes_of(self, register: str) -> int:
        """Size of a register of the whole warp in memory."""
        bits = WIDTHS[self.entry.registers[register]]
        return max(bits // 8, 4) if self.is_uniform(register) or bits == 1 else bits // 8 * LANES

    @property
    def wide_rows(self) -> int:
        """Rows of 32 doubles that `wide` arithmetic needs on the stack."""
        return 0

    # Context -----------------------------------------------------------------

    def context(self, index: int) -> Value:
        pointer = self.code.emit("ptr", f"getelementptr i64, ptr %ctx, i64 {index}")
        return self.code.emit("i64", f"load i64, {pointer}")

    def context_pointer(self, index: int) -> Value:
        return self.code.emit("ptr", f"inttoptr {self.context(index)} to ptr")

    # Reading -----------------------------------------------------------------

    def varies(self, operand: Operand) -> bool:
        """Whether the operand has its own value in each lane."""
        if isinstance(operand, Reg):
            return not self.is_uniform(operand.name)
        if isinstance(operand, Special):
            return operand.name.startswith(("%tid", "%laneid", "%lanemask"))
        if isinstance(operand, Address):
            return isinstance(operand.base, Reg) and not self.is_uniform(operand.base.name)
        if isinstance(operand, Vector):
            return any(self.varies(item) for item in operand.items)
        return False

    def read(self, operand: Operand, bits: int, vector: bool) -> Value:
        """The operand as an integer of `bits` bits, in every lane if `vector`."""
        value = self._read(operand, bits)
        have = width(value.type)
        if have > bits:
            value = self.code.cast("trunc", value, f"i{bits}")
        elif have < bits:
            value = self.code.cast("zext", value, f"i{bits}")
        if vector and not value.vector:
            value = (
                constant(lanes(value.type), value.ref)
                if isinstance(operand, Imm)
                else self.code.splat(value)
            )
        return value

    def _read(self, operand: Operand, bits: int) -> Value:
        if isinstance(operand, Reg):
            return self.current(operand.name)
        if isinstance(operand, Imm):
            number = operand.bits & ((1 << bits) - 1)
            if bits == 1:
                return Value("i1", "true" if number else "false")
            return Value(f"i{bits}", str(number - (1 << bits) if number >> (bits - 1) else number))
        if isinstance(operand, Special):
            return self.special(operand.name)
        if isinstance(operand, Symbol):
            return Value(f"i{max(bits, 32)}", str(self.symbol(operand.name)))
        raise Unsupported(f"PTX operand {operand}")

    def symbol(self, name: str) -> int:
        """The address of a variable in its own state space."""
        if name in self.entry.shared:
            start = self.entry.shared[name]
            return start if start >= 0 else self.entry.static_shared_bytes
        if name in self.entry.local:
            return self.entry.local[name]
        if name in self.entry.constants:
            return CONSTANT_BASE + self.entry.constants[name]
        raise Unsupported(f"PTX symbol {name}")

    def special(self, name: str) -> Value:
        base, _, axis = name[1:].partition(".")
        position = "xyz".index(axis) if axis else 0
        if base in {"ctaid", "nctaid", "ntid"}:
            start = {"ctaid": slot.CTAID, "nctaid": slot.NCTAID, "ntid": slot.NTID}[base]
            return self.code.cast("trunc", self.context(start + position), "i32")
        if base == "tid":
            return self._thread(position)
        if base == "laneid":
            return per_lane("i32", range(LANES))
        if base == "warpid":
            return self.code.cast("trunc", self.context(slot.WARP), "i32")
        if base == "nwarpid":
            return self.code.cast("trunc", self.context(slot.WARPS), "i32")
        if base.startswith("lanemask_"):
            masks = {
                "eq": lambda i: 1 << i, "lt": lambda i: (1 << i) - 1,
                "le": lambda i: (2 << i) - 1, "gt": lambda i: ~((2 << i) - 1),
                "ge": lambda i: ~((1 << i) - 1),
            }  # fmt: skip
            return per_lane("i32", [_signed(masks[base[9:]](i), 32) for i in range(LANES)])
        if base in {"smid", "gridid", "clock_hi", "globaltimer_hi"}:
            return Value("i32", "0")
        if base in {"clock", "globaltimer_lo"}:
            return self.code.cast("trunc", self._tick(), "i32")
        if base in {"clock64", "globaltimer"}:
            return self._tick()
        if base == "nsmid":
            return Value("i32", "1")
        if base == "dynamic_smem_size":
            return self.code.cast("trunc", self.context(slot.SHARED_BYTES), "i32")
        raise Unsupported(f"PTX special register {name}")

    def _tick(self) -> Value:
        """A clock that repeats from run to run: it counts its own readings."""
        code = self.code
        pointer = code.emit("ptr", f"getelementptr i64, ptr %ctx, i64 {slot.CLOCK}")
        now = code.binary("add", code.emit("i64", f"load i64, {pointer}"), Value("i64", "64"))
        code.raw(f"store {now}, {pointer}")
        return now

    def _thread(self, axis: int) -> Value:
        code = self.code
        warp = code.cast("trunc", self.context(slot.WARP), "i32")
        first = code.binary("shl", warp, constant("i32", 5))
        linear = code.binary("add", code.splat(first), per_lane("i32", range(LANES)))
        x = code.splat(self.special("%ntid.x"))
        y = code.splat(self.special("%ntid.y"))
        if axis == 0:
            return code.binary("urem", linear, x) if self.entry.max_threads == 0 else linear
        rows = code.binary("udiv", linear, x)
        return code.binary("urem", rows, y) if axis == 1 else code.binary("udiv", rows, y)

    def current(self, register: str) -> Value:
        """What a register holds at this point of the block."""
        if register not in self._values:
            type_ = self.type_of(register)
            loaded = self.code.emit(type_, f"load {type_}, ptr {self.slot(register)}, align 64")
            self._values[register] = loaded
        return self._values[register]

    def begin_block(self) -> None:
        """Forget what registers hold: another block may have come before."""
        self._values = {}
        self._written = {}

    def end_block(self) -> None:
        """Store the registers that the block wrote and others may read."""
        for name in self._written:
            if parent(name) not in self.flow.local:
                value = self._values[name]
                self.code.raw(f"store {value}, ptr {self.slot(name)}, align 64")
        self._written = {}

    def vector(self, value: Value) -> Value:
        """The value in every lane."""
        return value if value.vector else self.code.splat(value)

    def address(self, operand: Operand, space: Space, generic: bool) -> Value:
        """The 64-bit address of `[base + offset]`; `generic` if it may point into any space."""
        if not isinstance(operand, Address):
            raise Unsupported(f"PTX address {operand}")
        code = self.code
        base = operand.base
        if isinstance(base, Imm):
            value = Value("i64", str(base.bits))
        elif isinstance(base, Symbol):
            value = Value("i64", str(self.symbol(base.name)))
        else:
            bits = WIDTHS[self.entry.registers[base.name]]
            value = code.cast("zext", self.read(base, bits, self.varies(base)), "i64")
        if operand.offset:
            value = code.binary("add", value, constant(value.type, operand.offset))
        if space == "local":
            return self._local(value)
        if generic and space == "global" and self.entry.generic_local:
            return self._own_lane(value)
        return value

    def _own_lane(self, value: Value) -> Value:
        """A generic address; one of local memory is moved to the lane's own copy."""
        code = self.code
        value = self.vector(value)
        offset = code.binary("sub", value, constant(value.type, LOCAL_WINDOW))
        inside = code.compare("icmp", "ult", offset, constant(value.type, WINDOW))
        own = per_lane("i64", [lane * self.local_stride for lane in range(LANES)])
        moved = code.binary("add", value, own)
        return code.select(inside, moved, value)

    @property
    def local_stride(self) -> int:
        """Bytes of local memory of one lane."""
        return -(-max(self.entry.local_bytes, 8) // 8) * 8

    def _local(self, value: Value) -> Value:
        """Host addresses of a per-lane stack variable: each lane has its own copy."""
        code = self.code
        stride = self.local_stride
        base = code.splat(self.context(slot.LOCAL))
        offset = value if value.vector else code.splat(value)
        own = per_lane("i64", [lane * stride for lane in range(LANES)])
        return code.binary("add", code.binary("add", base, own), offset)

    # Masks -------------------------------------------------------------------

    def guard(self, instruction: Instruction) -> Value | None:
        """Which lanes execute: None for all of the warp."""
        if instruction.guard is None:
            return self.active
        code = self.code
        register = instruction.guard
        value = self._read(register, 1)
        if instruction.negated:
            ones = constant(value.type, "true")
            value = code.binary("xor", value, ones)
        if self.active is not None:
            if not value.vector:
                value = code.splat(value)
            value = code.binary("and", value, self.active)
        return value

    def mask_bits(self, mask: Value | None) -> Value:
        """A mask as 32 bits."""
        if mask is None:
            return Value("i32", "-1")
        if mask.vector:
            return self.code.emit("i32", f"bitcast {mask} to i32")
        return self.code.select(mask, Value("i32", "-1"), Value("i32", "0"))

    def tally(self, array: str, index: int, step: Value) -> None:
        """Add to a counter."""
        code = self.code
        pointer = code.emit("ptr", f"getelementptr i64, ptr {array}, i64 {index}")
        old = code.emit("i64", f"load i64, {pointer}")
        code.raw(f"store {code.binary('add', old, step)}, {pointer}")

    # Writing -----------------------------------------------------------------

    def write(self, operand: Operand, value: Value, mask: Value | None) -> None:
        """Store to a register in the lanes of `mask`; `value` has the register's width or less."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return
        if not isinstance(operand, Reg):
            raise Unsupported(f"PTX destination {operand}")
        code = self.code
        bits = WIDTHS[self.entry.registers[operand.name]]
        value = code.bits(value) if not value.element.startswith("i") else value
        have = width(value.type)
        if have < bits:
            value = code.cast("zext", value, f"i{bits}")
        elif have > bits:
            value = code.cast("trunc", value, f"i{bits}")
        if not self.is_uniform(operand.name) and not value.vector:
            value = code.splat(value)
        elif self.is_uniform(operand.name) and value.vector:
            value = code.emit(value.element, f"extractelement {value}, i32 0")
        if mask is self.active and self.is_uniform(operand.name):
            # Only the first block writes these, before any lane can have left.
            mask = None
        if mask is self.active and parent(operand.name) in self.flow.local:
            # Lanes that are off never look at it.
            mask = None
        if mask is not None:
            old = self.current(operand.name)
            if mask.vector and not value.vector:
                raise Unsupported(f"divergent write to uniform register {operand.name}")
            value = code.select(mask, value, old)
        self._values[operand.name] = value
        self._written[operand.name] = None

    def unsupported(self, instruction: Instruction) -> Unsupported:
        return Unsupported(f"the virtual GPU does not execute {instruction.opcode}")


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
