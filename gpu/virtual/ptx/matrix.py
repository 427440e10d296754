"""Lowering of matrix instructions."""

from __future__ import annotations

from kopt.gpu.virtual.ptx import ldmatrix_ir, mma_ir
from kopt.gpu.virtual.ptx.atomics import Atomics
from kopt.gpu.virtual.ptx.instruction import Instruction
from kopt.gpu.virtual.ptx.ir import Value, lanes
from kopt.gpu.virtual.ptx.memory import items
from kopt.gpu.virtual.ptx.registers import SiteInfo


class Matrix(Atomics):
    """`ldmatrix` and `mma`."""

    def op_ldmatrix(self, i: Instruction) -> None:
        count = next((int(p[1]) for p in i.parts if p in {"x1", "x2", "x4"}), 0)
        if not count or "m8n8" not in i.parts or i.parts[-1] != "b16":
            raise self.unsupported(i)
        transposed = "trans" in i.parts
        where = self.vector(self.address(i.operands[1], "shared", False))
        site = self.site(i, "shared", "ldmatrix", 4 * count)
        on = Value("i32", str(_signed32((1 << (8 * count)) - 1)))
        self.count(site, where, on)
        result = self.code.routine(
            ldmatrix_ir.ldmatrix(count, transposed), self.arguments(site, where, on)
        )
        self._unpack(i, result, count)
        self.shadow_ldmatrix(i, site, where, on, count, transposed)

    def op_mma(self, i: Instruction) -> None:
        variant = mma_ir.shape(i.opcode)
        inputs = [
            self.read(o, variant.bits, vector=True)
            for operand in i.operands[1:4]
            for o in items(operand)
        ]
        count = len(items(i.operands[0]))
        self._unpack(i, self.code.routine(mma_ir.routine(variant), inputs), count, variant.bits)

    def _unpack(self, i: Instruction, result: Value, count: int, bits: int = 32) -> None:
        mask = self.guard(i)
        one = lanes(f"i{bits}")
        for k, target in enumerate(items(i.operands[0])):
            value = self.code.extract(result, one, k) if count > 1 else result
            self.write(target, value, mask)

    def shadow_ldmatrix(
        self, i: Instruction, site: SiteInfo, where: Value, on: Value, count: int, transposed: bool
    ) -> None:
        """Load the shadows; see `kopt.gpu.virtual.ptx.wide`."""


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
