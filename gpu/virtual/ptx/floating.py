"""Lowering of floating-point arithmetic."""

from __future__ import annotations

from kopt.gpu.virtual.ptx.instruction import WIDTHS, Instruction
from kopt.gpu.virtual.ptx.ir import Value, constant
from kopt.gpu.virtual.ptx.math_ir import routine
from kopt.gpu.virtual.ptx.rounding import Rounding, direction

FLOAT_TYPES = {"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"}
FLOAT_NAMES = {
    "add", "sub", "mul", "div", "fma", "mad", "min", "max", "abs", "neg", "sqrt", "rsqrt", "rcp",
    "ex2", "lg2", "sin", "cos", "tanh", "copysign",
}  # fmt: skip
_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


class Floating(Rounding):
    """Float instructions whose result is a function of their operands in the same lane."""

    def varied(self, instruction: Instruction) -> bool:
        """Whether any operand has its own value in each lane."""
        return any(self.varies(o) for o in instruction.operands)

    def finish(self, instruction: Instruction, value: Value) -> None:
        """Write the instruction's result."""
        self.write(instruction.operands[0], value, self.guard(instruction))

    def floating(self, instruction: Instruction) -> bool:
        """Lower the instruction if it is float arithmetic; False if it is not."""
        kind = instruction.parts[-1]
        if kind not in FLOAT_TYPES or instruction.parts[0] not in FLOAT_NAMES:
            return False
        vector = self.varied(instruction)
        operands = instruction.operands[1:]
        if kind.endswith("x2"):
            halves = []
            for part in (0, 1):
                inputs = [self.half(o, kind[:-2], part, vector) for o in operands]
                halves.append(self._sixteen(instruction, inputs, kind[:-2]))
            self.finish(instruction, self.pack16(halves[0], halves[1]))
        elif kind in {"f16", "bf16"}:
            inputs = [self.from_half(self.read(o, 16, vector), kind) for o in operands]
            self.finish(instruction, self._sixteen(instruction, inputs, kind))
        else:
            inputs = [self.read_float(o, WIDTHS[kind], vector) for o in operands]
            self.finish(instruction, self._rounded(instruction, inputs, kind))
        return True

    def _rounded(self, instruction: Instruction, inputs: list[Value], kind: str) -> Value:
        """An fp32 or fp64 result."""
        name = instruction.parts[0]
        ftz = "ftz" in instruction.parts and kind == "f32"
        if ftz and name != "ex2":
            inputs = [self.flush(v) for v in inputs]
        toward = direction(instruction)
        if toward is not None:
            value = self.directed(name, inputs, toward) if kind == "f32" else None
            if value is None:
                raise self.unsupported(instruction)
            value = self._clamped(instruction, value)
        else:
            value = self.float_value(instruction, inputs)
        return self.flush(value) if ftz else value

    def _sixteen(self, instruction: Instruction, inputs: list[Value], kind: str) -> Value:
        """A 16-bit result (i16): computed in fp32 so that rounding it again changes nothing."""
        name = instruction.parts[0]
        # In fp32 sums of 16-bit floats round to odd where they are not exact; products of bfloat16
        # may underflow, so they are a multiplication and addition too.
        if name in {"fma", "mad"} or (name == "mul" and kind == "bf16"):
            if name == "mul":
                inputs = [*inputs, constant(inputs[0].type, "-0.0")]
            value = self.directed("fma", inputs, "odd")
            assert value is not None
            value = self._clamped(instruction, value)
        else:
            value = self.float_value(instruction, inputs)
        return self.to_half(value, kind)

    def float_value(self, instruction: Instruction, v: list[Value]) -> Value:
        """The result in the precision of the inputs, rounded to nearest."""
        code = self.code
        name, parts = instruction.parts[0], instruction.parts
        type_ = v[0].type
        if name in _BINARY:
            value = code.binary(_BINARY[name], v[0], v[1])
        elif name in {"fma", "mad"}:
            value = code.intrinsic("fma.", type_, v)
        elif name in {"min", "max"}:
            if "xorsign" in parts:
                raise self.unsupported(instruction)
            # These order -0 before +0, as PTX does.
            intrinsic = f"{name}imum{'' if 'NaN' in parts else 'num'}."
            value = code.intrinsic(intrinsic, type_, v[:2])
            if len(v) == 3:
                value = code.intrinsic(intrinsic, type_, [value, v[2]])
        elif name == "abs":
            value = code.intrinsic("fabs.", type_, v)
        elif name == "neg":
            value = code.emit(type_, f"fneg {v[0]}")
        elif name == "copysign":
            value = code.intrinsic("copysign.", type_, [v[1], v[0]])
        elif name == "sqrt":
            value = code.intrinsic("sqrt.", type_, v)
        elif name == "rsqrt":
            root = code.intrinsic("sqrt.", type_, v)
            value = code.binary("fdiv", constant(type_, "1.0"), root)
        elif name == "rcp":
            value = code.binary("fdiv", constant(type_, "1.0"), v[0])
        else:
            value = self._special_function(name, v[0])
        return self._clamped(instruction, value)

    def _clamped(self, instruction: Instruction, value: Value) -> Value:
        """`.sat` clamps to [0, 1] and makes NaN 0; `.relu` clamps to [0, inf]."""
        code = self.code
        type_ = value.type
        if "sat" in instruction.parts:
            zero, one = constant(type_, "0.0"), constant(type_, "1.0")
            value = code.intrinsic("maxnum.", type_, [value, zero])
            value = code.intrinsic("minnum.", type_, [value, one])
        if "relu" in instruction.parts:
            value = code.intrinsic("maximum.", type_, [value, constant(type_, "0.0")])
        return value

    def _special_function(self, name: str, value: Value) -> Value:
        code = self.code
        one = value.element
        if value.vector:
            return code.routine(routine(name, one), [value])
        whole = code.routine(routine(name, one), [code.splat(value)])
        return code.emit(one, f"extractelement {whole}, i32 0")
