"""Lowering of atomics."""

from __future__ import annotations

from kopt.gpu.virtual.ptx import atomic_ir
from kopt.gpu.virtual.ptx.instruction import WIDTHS, Instruction, Operand, Vector
from kopt.gpu.virtual.ptx.ir import Value
from kopt.gpu.virtual.ptx.memory import Memory
from kopt.gpu.virtual.ptx.registers import SiteInfo

_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


class Atomics(Memory):
    """`atom` and `red`."""

    def op_atom(self, i: Instruction) -> None:
        self._atomic(i, i.operands[0], i.operands[1], list(i.operands[2:]))

    def op_red(self, i: Instruction) -> None:
        if i.parts[1] == "async":
            raise self.unsupported(i)
        self._atomic(i, None, i.operands[0], list(i.operands[1:]))

    def _atomic(
        self, i: Instruction, to: Operand | None, address: Operand, inputs: list[Operand]
    ) -> None:
        kind = i.parts[-1]
        op = next((p for p in i.parts if p in _OPERATIONS), "")
        if isinstance(inputs[0], Vector) or not atomic_ir.supported(op, kind):
            raise self.unsupported(i)
        if any("cache_hint" in p for p in i.parts):
            inputs = inputs[:-1]
        bits = WIDTHS[kind]
        values = [self.read(o, bits, vector=True) for o in inputs]
        mask = self.guard(i)
        space = self.space(i)
        where = self.vector(self.address(address, space, "global" not in i.parts))
        site = self.site(i, space, "atomic", bits // 8)
        on = self.mask_bits(mask)
        self.count(site, where, on)
        routine = atomic_ir.atomic(op, kind, bits)
        pair = [values[0], values[-1]]
        result = self.code.routine(routine, [*self.arguments(site, where, on), *pair])
        self.shadow_atomic(site, where, on, to, inputs[-1], result, mask)
        if to is not None:
            self.write(to, result, mask)

    def shadow_atomic(
        self,
        site: SiteInfo,
        where: Value,
        on: Value,
        to: Operand | None,
        source: Operand,
        before: Value,
        mask: Value | None,
    ) -> None:
        """Update the shadows; see `kopt.gpu.virtual.ptx.wide`."""
