"""Loops that only accumulate, so that their iterations can run in any order and in parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.index import Indices, launch_value
from kopt.agent.playbook.ttir import Loop, Module

Combine = Literal["add", "maximum", "minimum"]


_COMBINES: dict[str, Combine] = {
    "arith.addf": "add",
    "arith.addi": "add",
    "tt.dot": "add",
    "arith.maxnumf": "maximum",
    "arith.maximumf": "maximum",
    "arith.minnumf": "minimum",
    "arith.minimumf": "minimum",
}


TORCH_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
}


@dataclass(frozen=True)
class Reduction:
    """A loop whose iterations can run in any order and in parts."""

    loop: Loop
    trips: int
    combines: tuple[Combine, ...]
    """How each carried value takes up an iteration."""
    dtypes: tuple[str, ...]


def splittable(kernel: KernelEvidence) -> Reduction | None:
    """The kernel's only loop, if each carried value only takes up what iterations compute."""
    module = kernel.ttir
    loops = module.loops()
    if len(loops) != 1 or loops[0].operation.block is not module.body:
        return None
    loop = loops[0]
    if any(
        op.name in {"tt.store", "tt.atomic_rmw", "tt.atomic_cas"} for op in module.walk(loop.body)
    ):
        return None
    indices = Indices(module)
    numbers = [
        launch_value(kernel, indices.value(v), dict.fromkeys(range(3), 0))
        for v in (loop.lower, loop.upper, loop.step)
    ]
    lower, upper, step = (n if n is not None else 0 for n in numbers)
    trips = -(-(upper - lower) // step) if step > 0 and None not in numbers else 0
    if trips < 1 or not loop.carried:
        return None
    combines = []
    for carried, value in zip(loop.carried, loop.yields, strict=True):
        combine = _combine(module, loop, carried, value)
        if combine is None:
            return None
        combines.append(combine)
    types = re.findall(r"(?:tensor<(?:\d+x)*(\w+)>|\b([fi]\d+|bf16)\b)", _result_types(loop))
    dtypes = tuple(a or b for a, b in types)
    if len(dtypes) != len(combines) or any(d not in TORCH_NAMES for d in dtypes):
        return None
    return Reduction(loop, trips, tuple(combines), dtypes)


def _result_types(loop: Loop) -> str:
    found = re.search(r"->\s*\((.*?)\)\s*:", loop.operation.text)
    return found.group(1) if found else ""


def _combine(module: Module, loop: Loop, carried: str, value: str) -> Combine | None:
    """How an iteration enters a carried value; None if the value is used for anything else."""
    operation = module.definitions.get(value)
    if operation is None or operation.name not in _COMBINES:
        return None
    taken = list(operation.operands[2:3] if operation.name == "tt.dot" else operation.operands[:2])
    if taken.count(carried) != 1:
        return None
    rest = [o for o in operation.operands if o != carried]
    if any(module.depends(o, c) for o in rest for c in loop.carried):
        return None
    uses = [op for op in module.walk(loop.body) if carried in op.operands]
    return _COMBINES[operation.name] if len(uses) == 1 else None
