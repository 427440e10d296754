"""Lowering of loads, stores, atomics, asynchronous copies and matrix instructions."""

from __future__ import annotations

from kopt.gpu.virtual.ptx import matrix_ir, memory_ir
from kopt.gpu.virtual.ptx import memory_ir as slot
from kopt.gpu.virtual.ptx.convert import Convert
from kopt.gpu.virtual.ptx.ir import Value, constant, lanes
from kopt.gpu.virtual.ptx.parse import WIDTHS, Address, Instruction, Operand, Symbol, Vector
from kopt.gpu.virtual.ptx.registers import SiteInfo

SPACES = ("global", "shared", "local", "param", "const")


class Memory(Convert):
    """Instructions that touch memory."""

    def space(self, instruction: Instruction) -> str:
        for part in instruction.parts[1:]:
            base = part.split("::")[0]
            if base in SPACES:
                return base
        return "global"

    def site(self, instruction: Instruction, space: str, kind: str, size: int) -> Value:
        """A pointer to the cached segment of a new site; its number is `self.sites[-1].number`."""
        number = len(self.sites)
        self.sites.append(SiteInfo(number, instruction, space, kind, size))
        return self.code.emit("ptr", f"getelementptr i64, ptr %cache, i64 {4 * number}")

    def _site_number(self) -> Value:
        return Value("i32", str(self.sites[-1].number))

    def _log(self, address: Value, mask: Value, size: int) -> None:
        if not self.counted or self.sites[-1].space == "local":
            return
        self.routines["log"] = memory_ir.LOGGER
        name = "log"
        if self.sites[-1].space == "shared":
            name = "log_shared"
            self.routines[name] = memory_ir.SHARED_LOGGER
        whole = address if address.vector else self.code.splat(address)
        self.code.call(
            name,
            "void",
            [Value("ptr", "%ctx"), whole, mask, self._site_number(), Value("i64", str(size))],
            fast=True,
        )

    # Loads and stores ----------------------------------------------------------------

    def op_ld(self, i: Instruction) -> None:
        space = self.space(i)
        kind = i.parts[-1]
        bits = WIDTHS[kind]
        targets = (
            list(i.operands[0].items) if isinstance(i.operands[0], Vector) else [i.operands[0]]
        )
        mask = self.guard(i)
        if space == "param":
            self._load_parameter(i, targets, bits, mask)
            return
        values = self._load(i, i.operands[1], space, bits, len(targets), mask)
        for target, value in zip(targets, values, strict=True):
            self.write(target, self._extend(value, kind, target), mask)

    def _extend(self, value: Value, kind: str, target: Operand) -> Value:
        name = getattr(target, "name", "")
        have = WIDTHS.get(self.entry.registers.get(name, ""), 0)
        if kind.startswith("s") and have > WIDTHS[kind]:
            return self.code.cast("sext", value, f"i{have}")
        return value

    def _load(
        self,
        i: Instruction,
        address: Operand,
        space: str,
        bits: int,
        count: int,
        mask: Value | None,
    ) -> list[Value]:
        code = self.code
        size = bits // 8 * count
        where = self.address(address, space, vector=False)
        seg = self.site(i, space, "load", size)
        one = lanes(f"i{bits}")
        if not where.vector:
            where = code.splat(where)
        mask_bits = self.mask_bits(mask)
        self._log(where, mask_bits, size)
        name = self._memory_routine("ld", bits, count)
        pack = one if count == 1 else "{" + ", ".join([one] * count) + "}"
        result = code.call(
            name,
            pack,
            [Value("ptr", "%ctx"), seg, where, mask_bits, self._site_number()],
            fast=True,
        )
        values = [result]
        if count > 1:
            values = [code.emit(one, f"extractvalue {result}, {k}") for k in range(count)]
        if all(not self.varies(o) for o in _flat(i.operands[0])) and i.parts[0] == "ld":
            values = [code.emit(v.element, f"extractelement {v}, i32 0") for v in values]
        return values

    def _memory_routine(self, op: str, bits: int, count: int) -> str:
        name = f"{op}_{bits}_{count}"
        if name not in self.routines:
            self.routines[name] = (memory_ir.load if op == "ld" else memory_ir.store)(bits, count)
            self.routines[f"declare_{bits}"] = memory_ir.declarations(bits)
            self.routines["find"] = memory_ir.FIND
        return name

    def _load_parameter(
        self, i: Instruction, targets: list[Operand], bits: int, mask: Value | None
    ) -> None:
        code = self.code
        address = i.operands[1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise self.unsupported(i)
        start = self.params[address.base.name].offset + address.offset
        block = self.context_pointer(slot.PARAMS)
        for position, target in enumerate(targets):
            offset = start + position * bits // 8
            pointer = code.emit("ptr", f"getelementptr i8, {block}, i64 {offset}")
            value = code.emit(f"i{bits}", f"load i{bits}, {pointer}, align 1")
            self.write(target, self._extend(value, i.parts[-1], target), mask)

    def op_ldu(self, i: Instruction) -> None:
        self.op_ld(i)

    def op_st(self, i: Instruction) -> None:
        bits = WIDTHS[i.parts[-1]]
        source = i.operands[1]
        items = list(source.items) if isinstance(source, Vector) else [source]
        values = [self.read(item, bits, vector=True) for item in items]
        self._store(i, i.operands[0], self.space(i), values, self.guard(i))

    def _store(
        self, i: Instruction, address: Operand, space: str, values: list[Value], mask: Value | None
    ) -> None:
        bits = int(values[0].element[1:])
        size = bits // 8 * len(values)
        where = self.address(address, space, vector=True)
        seg = self.site(i, space, "store", size)
        mask_bits = self.mask_bits(mask)
        self._log(where, mask_bits, size)
        name = self._memory_routine("st", bits, len(values))
        self.code.call(
            name,
            "void",
            [Value("ptr", "%ctx"), seg, where, mask_bits, self._site_number(), *values],
            fast=True,
        )

    # Asynchronous copies ------------------------------------------------------------------

    def op_cp(self, i: Instruction) -> None:
        """`cp.async` is executed at once; commit and wait have nothing left to do."""
        parts = i.parts
        if parts[1] != "async" or "bulk" in parts:
            raise self.unsupported(i)
        if parts[2] in {"commit_group", "wait_group", "wait_all"}:
            return
        if "mbarrier" in parts:
            raise self.unsupported(i)
        code = self.code
        to, source, count = i.operands[0], i.operands[1], i.operands[2]
        size = int(getattr(count, "bits", 0))
        if size not in {4, 8, 16}:
            raise self.unsupported(i)
        mask = self.guard(i)
        words = size // 4
        loaded = self.mask_bits(mask)
        kept = None
        if len(i.operands) > 3:
            kept = self.read(i.operands[3], 32, vector=True)
            some = code.compare("icmp", "ne", kept, constant(kept.type, 0))
            loaded = code.binary("and", loaded, self.mask_bits(some))
        where = self.address(source, "global", vector=True)
        seg = self.site(i, "global", "cp_async", size)
        self._log(where, loaded, size)
        name = self._memory_routine("ld", 32, words)
        one = lanes("i32")
        pack = one if words == 1 else "{" + ", ".join([one] * words) + "}"
        result = code.call(
            name, pack, [Value("ptr", "%ctx"), seg, where, loaded, self._site_number()], fast=True
        )
        values = [result]
        if words > 1:
            values = [code.emit(one, f"extractvalue {result}, {k}") for k in range(words)]
        if kept is not None:
            for k in range(words):
                inside = code.compare("icmp", "ugt", kept, constant(kept.type, 4 * k))
                values[k] = code.select(inside, values[k], constant(one, 0))
        self._store(i, to, "shared", values, mask)

    # Atomics --------------------------------------------------------------------------------

    def op_atom(self, i: Instruction) -> None:
        self._atomic(i, i.operands[0], i.operands[1], list(i.operands[2:]))

    def op_red(self, i: Instruction) -> None:
        if i.parts[1] == "async":
            raise self.unsupported(i)
        self._atomic(i, None, i.operands[0], list(i.operands[1:]))

    def _atomic(
        self, i: Instruction, to: Operand | None, address: Operand, inputs: list[Operand]
    ) -> None:
        code = self.code
        space = self.space(i)
        kind = i.parts[-1]
        bits = WIDTHS[kind]
        op = next(
            (
                p
                for p in i.parts
                if p in {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"}
            ),
            "",
        )
        if not op or isinstance(inputs[0], Vector) or "v2" in i.parts or "v4" in i.parts:
            raise self.unsupported(i)
        values = [self.read(o, bits, vector=True) for o in inputs]
        if len(values) == 1:
            values.append(values[0])
        mask = self.guard(i)
        where = self.address(address, space, vector=True)
        seg = self.site(i, space, "atomic", bits // 8)
        mask_bits = self.mask_bits(mask)
        self._log(where, mask_bits, bits // 8)
        name = self._atomic_routine(i, op, kind, bits)
        result = code.call(
            name,
            lanes(f"i{bits}"),
            [Value("ptr", "%ctx"), seg, where, mask_bits, self._site_number(), *values[:2]],
            fast=True,
        )
        if to is not None:
            self.write(to, result, mask)

    def _atomic_routine(self, i: Instruction, op: str, kind: str, bits: int) -> str:
        name = f"atom_{op}_{kind}"
        self.routines["find"] = memory_ir.FIND
        if name in self.routines:
            return name
        simple = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg"}
        signed = kind.startswith("s")
        if op in {"min", "max"} and kind[0] in "su":
            simple[op] = op if signed else "u" + op
        if op == "cas":
            body = (
                f"  %pair = cmpxchg ptr %p, i{bits} %vb, i{bits} %vc seq_cst seq_cst\n"
                f"  %was = extractvalue {{i{bits}, i1}} %pair, 0"
            )
        elif op in {"inc", "dec"}:
            raise self.unsupported(i)
        elif kind in {"f32", "f64", "f16", "bf16", "f16x2", "bf16x2"} and op == "add":
            body = self._float_add(kind, bits)
        elif op in simple and kind[0] in "sub":
            body = f"  %was = atomicrmw {simple[op]} ptr %p, i{bits} %vb seq_cst"
        else:
            raise self.unsupported(i)
        self.routines[name] = memory_ir.ATOMIC_LOOP.format(
            bits=bits, bytes=bits // 8, name=name, body=body
        )
        return name

    def _float_add(self, kind: str, bits: int) -> str:
        """Float atomics run on one thread in CTA order, so a plain read and write is enough."""
        lines = [f"  %was = load i{bits}, ptr %p"]
        if kind in {"f32", "f64"}:
            real = "float" if bits == 32 else "double"
            lines += [
                f"  %wf = bitcast i{bits} %was to {real}",
                f"  %bf = bitcast i{bits} %vb to {real}",
                f"  %sf = fadd {real} %wf, %bf",
                f"  %si = bitcast {real} %sf to i{bits}",
                f"  store i{bits} %si, ptr %p",
            ]
            return "\n".join(lines)
        parts = bits // 16
        total = ""
        for part in range(parts):
            sums = []
            for label, source in (("w", "%was"), ("b", "%vb")):
                raw = f"%{label}r{part}"
                lines.append(f"  %{label}s{part} = lshr i{bits} {source}, {16 * part}")
                lines.append(
                    f"  {raw} = trunc i{bits} %{label}s{part} to i16"
                    if bits > 16
                    else f"  {raw} = or i16 %{label}s{part}, 0"
                )
                if kind.startswith("f16"):
                    lines.append(f"  %{label}h{part} = bitcast i16 {raw} to half")
                    lines.append(f"  %{label}f{part} = fpext half %{label}h{part} to float")
                else:
                    lines.append(f"  %{label}z{part} = zext i16 {raw} to i32")
                    lines.append(f"  %{label}y{part} = shl i32 %{label}z{part}, 16")
                    lines.append(f"  %{label}f{part} = bitcast i32 %{label}y{part} to float")
                sums.append(f"%{label}f{part}")
            lines.append(f"  %s{part} = fadd float {sums[0]}, {sums[1]}")
            if kind.startswith("f16"):
                lines.append(f"  %sh{part} = fptrunc float %s{part} to half")
                lines.append(f"  %sb{part} = bitcast half %sh{part} to i16")
            else:
                lines += [
                    f"  %si{part} = bitcast float %s{part} to i32",
                    f"  %so{part} = lshr i32 %si{part}, 16",
                    f"  %sq{part} = and i32 %so{part}, 1",
                    f"  %sp{part} = add i32 %sq{part}, 32767",
                    f"  %sn{part} = add i32 %si{part}, %sp{part}",
                    f"  %sm{part} = lshr i32 %sn{part}, 16",
                    f"  %sb{part} = trunc i32 %sm{part} to i16",
                ]
            if bits == 16:
                total = f"%sb{part}"
            else:
                lines.append(f"  %sw{part} = zext i16 %sb{part} to i32")
                lines.append(f"  %sx{part} = shl i32 %sw{part}, {16 * part}")
                previous = total or "0"
                lines.append(f"  %sy{part} = or i32 {previous}, %sx{part}")
                total = f"%sy{part}"
        lines.append(f"  store i{bits} {total}, ptr %p")
        return "\n".join(lines)

    # Matrices -----------------------------------------------------------------------------------

    def op_ldmatrix(self, i: Instruction) -> None:
        count = next((int(p[1]) for p in i.parts if p in {"x1", "x2", "x4"}), 0)
        if not count or "m8n8" not in i.parts or i.parts[-1] != "b16":
            raise self.unsupported(i)
        transposed = "trans" in i.parts
        name = f"ldmatrix_{count}{'t' if transposed else ''}"
        self.routines["find"] = memory_ir.FIND
        self.routines[name] = matrix_ir.ldmatrix(count, transposed)
        where = self.address(i.operands[1], "shared", vector=True)
        seg = self.site(i, "shared", "ldmatrix", 4 * count)
        self._log(where, Value("i32", str(_signed32((1 << (8 * count)) - 1))), 16)
        pack = "{" + ", ".join([lanes("i32")] * count) + "}"
        result = self.code.call(
            name, pack, [Value("ptr", "%ctx"), seg, where, self._site_number()], fast=True
        )
        self._unpack(i, result, count)

    def op_mma(self, i: Instruction) -> None:
        variant = matrix_ir.shape(i.opcode)
        if variant.name not in self.routines:
            text, declared = matrix_ir.routine(variant)
            self.routines[variant.name] = text
            self.code.declared |= declared
        inputs = [
            self.read(o, 32, vector=True) for operand in i.operands[1:4] for o in _flat(operand)
        ]
        count = len(_flat(i.operands[0]))
        pack = "{" + ", ".join([lanes("i32")] * count) + "}"
        self._unpack(i, self.code.call(variant.name, pack, inputs, fast=True), count)

    def _unpack(self, i: Instruction, result: Value, count: int) -> None:
        mask = self.guard(i)
        for k, target in enumerate(_flat(i.operands[0])):
            value = self.code.emit(lanes("i32"), f"extractvalue {result}, {k}")
            self.write(target, value, mask)
        del count


def _flat(operand: Operand) -> list[Operand]:
    return list(operand.items) if isinstance(operand, Vector) else [operand]


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
