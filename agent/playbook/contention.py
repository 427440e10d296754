"""Atomic additions that queue for few addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kopt.agent.playbook.base import KernelEvidence
from kopt.agent.playbook.index import Address, Indices
from kopt.agent.playbook.ttir import Operation

CONTENDED = 256
"""Requests to one address from which on the queue is worth shortening."""


@dataclass(frozen=True)
class Addition:
    """An atomic addition outside of loops whose result nobody uses."""

    operation: Operation
    address: Address
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Contention:
    """Atomic additions of one kernel to addresses that do not depend on a grid axis."""

    axis: int
    additions: tuple[Addition, ...]
    programs: int
    """Programs along the axis: how often each address is added to."""


def contended(kernel: KernelEvidence) -> Contention | None:
    """Atomic additions that queue for few addresses."""
    if kernel.launch.traffic.atomic_hottest_requests < CONTENDED:
        return None
    module = kernel.ttir
    indices = Indices(module)
    additions = []
    fixed: set[int] = set()
    for op in module.walk():
        if not op.name.startswith("tt.atomic"):
            continue
        address = indices.address(op.operands[0])
        adds = re.match(r"tt\.atomic_rmw f?add,", op.text)
        used = any(r in other.operands for other in module.walk() for r in op.results)
        if not adds or address is None or used or op.block is not module.body:
            return None
        for operand in (op.operands[0], *op.operands[2:]):
            fixed |= indices.depends_on_program(operand)
        shape, dtype = _tensor(op.type.split("->")[-1])
        additions.append(Addition(op, address, shape, dtype))
    grid_shape = kernel.event.grid
    free = [a for a in range(3) if grid_shape[a] > 1 and a not in fixed]
    if not additions or not free or len({a.address.base for a in additions}) != len(additions):
        return None
    axis = max(free, key=lambda a: grid_shape[a])
    return Contention(axis, tuple(additions), grid_shape[axis])


def _tensor(text: str) -> tuple[tuple[int, ...], str]:
    """Shape and element type of an MLIR type."""
    found = re.search(r"tensor<((?:\d+x)+)(\w+)>", text)
    if found is None:
        return (), text.strip()
    return tuple(int(n) for n in found.group(1).split("x") if n), found.group(2)
