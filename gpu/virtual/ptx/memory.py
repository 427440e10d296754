"""Lowering of loads, stores and asynchronous copies."""

from __future__ import annotations

from functools import cached_property

from kopt.gpu.counters import KIND_ATOMIC, KIND_LOAD, KIND_LOAD_BYPASS_L1, KIND_STORE
from kopt.gpu.virtual.ptx import context as ctx
from kopt.gpu.virtual.ptx import counting_ir, memory_ir
from kopt.gpu.virtual.ptx.convert import Convert
from kopt.gpu.virtual.ptx.instruction import (
    WIDTHS,
    Address,
    Instruction,
    Operand,
    Reg,
    Symbol,
    Vector,
)
from kopt.gpu.virtual.ptx.ir import Value, constant, lanes
from kopt.gpu.virtual.ptx.registers import SiteInfo, SiteKind, Space

SPACES: tuple[Space, ...] = ("global", "shared", "local", "param", "const")
CTX = Value("ptr", "%ctx")


def items(operand: Operand) -> list[Operand]:
    """The elements of a vector operand, or the operand itself."""
    return list(operand.items) if isinstance(operand, Vector) else [operand]


class Memory(Convert):
    """Instructions that touch memory."""

    def space(self, instruction: Instruction) -> Space:
        """The state space an access names; a generic one counts as global."""
        for part in instruction.parts[1:]:
            base = part.split("::")[0]
            for space in SPACES:
                if base == space:
                    return space
        return "global"

    def site(self, i: Instruction, space: Space, kind: SiteKind, size: int) -> SiteInfo:
        """A new site, numbered in order."""
        info = SiteInfo(len(self.sites), i, space, kind, size)
        self.sites.append(info)
        return info

    def arguments(self, site: SiteInfo, where: Value, mask: Value) -> list[Value]:
        """What every access routine takes first."""
        number = site.number | (ctx.EMULATES if self._emulates(site.instruction) else 0)
        return [CTX, self.segment(site), where, mask, Value("i32", str(number))]

    def _emulates(self, i: Instruction) -> bool:
        """Whether a 32-bit access may stand for an atomic on 16 bits: a compare-and-swap, and the
        loads from the address that one uses."""
        if i.parts[0] == "atom":
            return "cas" in i.parts and WIDTHS[i.parts[-1]] == 32
        address = i.operands[-1]
        return (
            i.parts[0] == "ld"
            and WIDTHS[i.parts[-1]] == 32
            and isinstance(address, Address)
            and isinstance(address.base, Reg)
            and address.base.name in self._swapped
        )

    @cached_property
    def _swapped(self) -> frozenset[str]:
        """Registers that hold the address of a compare-and-swap."""
        return frozenset(
            i.operands[1].base.name
            for block in self.flow.blocks
            for i in block.instructions
            if i.parts[0] == "atom"
            and "cas" in i.parts
            and isinstance(i.operands[1], Address)
            and isinstance(i.operands[1].base, Reg)
        )

    def segment(self, site: SiteInfo) -> Value:
        """Where the site's cached segment is."""
        offset = ctx.CACHE_SLOTS * site.number
        return self.code.emit("ptr", f"getelementptr i64, ptr %cache, i64 {offset}")

    def count(self, site: SiteInfo, where: Value, mask: Value) -> None:
        """Count an access of the lanes in `mask` (i32)."""
        if not self.counted:
            return
        code = self.code
        offset = ctx.TALLY_SLOTS * site.number
        tally = code.emit("ptr", f"getelementptr i64, ptr %tallies, i64 {offset}")
        size = 16 if site.kind == "ldmatrix" else site.bytes_per_lane
        if site.space == "local":
            code.routine(counting_ir.PLAIN, [tally, mask])
            return
        if not where.vector:
            where = code.splat(where)
        if site.space == "shared":
            code.routine(counting_ir.count_shared(size), [tally, where, mask])
        else:
            kind = Value("i32", str(_line_kind(site)))
            code.routine(counting_ir.count_global(size), [CTX, tally, where, mask, kind])
        if site.kind == "atomic":
            code.routine(counting_ir.CONFLICTS, [tally, where, mask])

    # Loads and stores ----------------------------------------------------------------

    def op_ld(self, i: Instruction) -> None:
        space = self.space(i)
        targets = items(i.operands[0])
        bits = WIDTHS[i.parts[-1]]
        mask = self.guard(i)
        if space == "param":
            self._load_parameter(i, targets, bits, mask)
            return
        where = self.address(i.operands[1], space, "global" not in i.parts)
        site = self.site(i, space, "load", bits // 8 * len(targets))
        on = self.mask_bits(mask)
        self.count(site, where, on)
        values = self.load(site, where, on, bits, len(targets), self.varies(i.operands[0]))
        for target, value in zip(targets, values, strict=True):
            self.write(target, self._extend(value, i.parts[-1], target), mask)
        self.shadow_load(site, where, on, targets, bits, mask)

    def op_ldu(self, i: Instruction) -> None:
        self.op_ld(i)

    def _extend(self, value: Value, kind: str, target: Operand) -> Value:
        name = getattr(target, "name", "")
        have = WIDTHS.get(self.entry.registers.get(name, ""), 0)
        if kind.startswith("s") and have > WIDTHS[kind]:
            return self.code.cast("sext", value, f"i{have}")
        return value

    def load(
        self, site: SiteInfo, where: Value, on: Value, bits: int, count: int, vector: bool
    ) -> list[Value]:
        """`count` values of `bits` bits from each address; one for the warp unless `vector`."""
        code = self.code
        if not vector and not where.vector:
            routine = memory_ir.load_uniform(bits, count)
        else:
            where = where if where.vector else code.splat(where)
            routine = memory_ir.load(bits, count)
        result = code.routine(routine, self.arguments(site, where, on))
        one = lanes(f"i{bits}") if where.vector else f"i{bits}"
        values = [code.extract(result, one, k) for k in range(count)] if count > 1 else [result]
        if where.vector and not vector:
            return [code.emit(v.element, f"extractelement {v}, i32 0") for v in values]
        return values

    def _load_parameter(
        self, i: Instruction, targets: list[Operand], bits: int, mask: Value | None
    ) -> None:
        code = self.code
        address = i.operands[1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise self.unsupported(i)
        start = self.params[address.base.name].offset + address.offset
        block = self.context_pointer(ctx.PARAMS)
        for position, target in enumerate(targets):
            offset = start + position * bits // 8
            pointer = code.emit("ptr", f"getelementptr i8, {block}, i64 {offset}")
            value = code.emit(f"i{bits}", f"load i{bits}, {pointer}, align 1")
            self.write(target, self._extend(value, i.parts[-1], target), mask)

    def op_st(self, i: Instruction) -> None:
        bits = WIDTHS[i.parts[-1]]
        space = self.space(i)
        sources = items(i.operands[1])
        values = [self.read(item, bits, vector=True) for item in sources]
        where = self.vector(self.address(i.operands[0], space, "global" not in i.parts))
        site = self.site(i, space, "store", bits // 8 * len(values))
        on = self.mask_bits(self.guard(i))
        self.store(site, where, on, values)
        self.shadow_store(site, where, on, sources, bits)

    def store(self, site: SiteInfo, where: Value, on: Value, values: list[Value]) -> None:
        """Count and do a store of all `values` side by side at each address."""
        self.count(site, where, on)
        bits = int(values[0].element[1:])
        routine = memory_ir.store(bits, len(values))
        self.code.routine(routine, [*self.arguments(site, where, on), *values])

    # Asynchronous copies ------------------------------------------------------------------

    def op_cp(self, i: Instruction) -> None:
        """`cp.async` is executed at once; commit and wait have nothing left to do."""
        parts = i.parts
        if parts[1] != "async" or "bulk" in parts or "mbarrier" in parts:
            raise self.unsupported(i)
        if parts[2] in {"commit_group", "wait_group", "wait_all"}:
            return
        code = self.code
        size = int(getattr(i.operands[2], "bits", 0))
        if size not in {4, 8, 16}:
            raise self.unsupported(i)
        operands = i.operands
        if any("cache_hint" in p for p in parts):
            operands = operands[:-1]
        on = self.mask_bits(self.guard(i))
        loaded, kept = on, None
        if len(operands) > 3:
            kept = self.read(operands[3], 32, vector=True)
            some = code.compare("icmp", "ne", kept, constant(kept.type, 0))
            loaded = code.binary("and", on, self.mask_bits(some))
        where = self.vector(self.address(operands[1], "global", False))
        source = self.site(i, "global", "cp_async", size)
        self.count(source, where, loaded)
        words = size // 4
        values = self.load(source, where, loaded, 32, words, vector=True)
        if kept is not None:
            for k in range(words):
                inside = code.compare("icmp", "ugt", kept, constant(kept.type, 4 * k))
                values[k] = code.select(inside, values[k], constant(lanes("i32"), 0))
        there = self.vector(self.address(operands[0], "shared", False))
        target = self.site(i, "shared", "store", size)
        self.store(target, there, on, values)
        self.shadow_copy(source, where, loaded, target, there, on, kept)

    # What `wide` arithmetic does besides: see `kopt.gpu.virtual.ptx.wide`.

    def shadow_load(
        self,
        site: SiteInfo,
        where: Value,
        on: Value,
        targets: list[Operand],
        bits: int,
        mask: Value | None,
    ) -> None:
        """Load the shadows of what was loaded."""

    def shadow_store(
        self, site: SiteInfo, where: Value, on: Value, sources: list[Operand], bits: int
    ) -> None:
        """Store the shadows of what was stored."""

    def shadow_copy(
        self,
        source: SiteInfo,
        where: Value,
        loaded: Value,
        target: SiteInfo,
        there: Value,
        on: Value,
        kept: Value | None,
    ) -> None:
        """Copy the shadows of an asynchronous copy."""


def _line_kind(site: SiteInfo) -> int:
    if site.kind == "cp_async":
        return KIND_LOAD_BYPASS_L1 if "cg" in site.instruction.parts else KIND_LOAD
    return {"load": KIND_LOAD, "store": KIND_STORE}.get(site.kind, KIND_ATOMIC)
