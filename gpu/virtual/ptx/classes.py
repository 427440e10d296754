"""The classes of instructions and the floating-point operations they do."""

from __future__ import annotations

from kopt.gpu.counters import InstructionClass
from kopt.gpu.virtual.ptx.instruction import Instruction
from kopt.gpu.virtual.ptx.mma_ir import shape

_CLASS: dict[str, InstructionClass] = {
    "mma": "mma", "ldmatrix": "ldmatrix", "shfl": "shuffle", "vote": "vote", "redux": "vote",
    "match": "vote", "activemask": "vote", "elect": "vote", "atom": "atomic", "red": "atomic",
    "bra": "control", "ret": "control", "exit": "control", "trap": "control", "cvt": "convert",
    "setp": "compare", "set": "compare", "testp": "compare", "selp": "select", "slct": "select",
    "mov": "move", "cvta": "move", "bar": "barrier", "barrier": "barrier", "prmt": "int",
}  # fmt: skip
_SFU = {"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"}
_INT = {
    "add", "sub", "mul", "mad", "madc", "addc", "subc", "min", "max", "and", "or", "xor", "not",
    "cnot", "shl", "shr", "shf", "neg", "abs", "div", "rem", "popc", "clz", "brev", "bfe", "bfi",
    "bfind", "bmsk", "lop3", "dp2a", "dp4a", "mul24", "mad24", "sad", "fns", "szext",
}  # fmt: skip
_FLOAT: dict[str, InstructionClass] = {
    "f32": "fp32", "f32x2": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "fp16", "f16x2": "fp16",
    "bf16x2": "fp16",
}  # fmt: skip


def classify(i: Instruction) -> InstructionClass:
    """The class of an instruction."""
    name, kind = i.parts[0], i.parts[-1]
    if name in {"ld", "st", "ldu"}:
        space = next(
            (p for p in i.parts[1:] if p.split("::")[0] in {"shared", "local", "param"}), ""
        )
        if space in {"local", "param"}:
            return "local" if space == "local" else "param"
        if space:
            return "shared_store" if name == "st" else "shared_load"
        return "global_store" if name == "st" else "global_load"
    if name == "cp":
        return "cp_async" if "global" in i.parts else "other"
    if name in _CLASS:
        return _CLASS[name]
    if name in _SFU:
        return "sfu"
    if kind in _FLOAT:
        return _FLOAT[kind]
    return "int" if name in _INT else "other"


def flops(i: Instruction) -> tuple[str, int, bool]:
    """Name and number of floating-point operations, by lane or (True) by warp."""
    name, kind = i.parts[0], i.parts[-1]
    if name == "mma":
        variant = shape(i.opcode)
        names = {"f16": "fp16", "s8": "int8", "u8": "int8", "f64": "fp64"}
        label = names.get(variant.a_type, variant.a_type)
        return f"mma_{label}", 2 * variant.rows * 8 * variant.k, True
    if kind not in _FLOAT or name not in {"add", "sub", "mul", "fma", "mad", "div", *_SFU}:
        return "", 0, False
    each = 2 if name in {"fma", "mad"} else 1
    return _FLOAT[kind], each * (2 if kind.endswith("x2") else 1), False
