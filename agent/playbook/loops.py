"""Loops over a row in blocks: what they read, and where they are in the source."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from kopt.agent.playbook.base import CallEvidence, KernelEvidence
from kopt.agent.playbook.source import Source
from kopt.agent.playbook.ttir import Loop, Operation
from kopt.gpu.trace import ScalarArg


@dataclass(frozen=True)
class RowLoop:
    """A loop `for start in range(first, length, BLOCK)` over one row."""

    loop: Loop
    loads: tuple[Operation, ...]
    keys: frozenset[str]
    """Base argument and address of each load, equal for loops that read the same addresses."""
    length: str
    """The kernel argument that bounds it."""
    block: str
    """The constexpr that is its step."""
    block_value: int


def row_loops(kernel: KernelEvidence) -> list[RowLoop]:
    """Loops whose step is a tile size among the kernel's constexprs and whose bound is an
    argument, and that load."""
    module = kernel.ttir
    found = []
    for loop in module.loops():
        step = module.constant(loop.step)
        length = module.argument(loop.upper)
        if step is None or length is None or module.constant(loop.lower) != 0.0:
            continue
        names = [
            n for n, v in kernel.kernel.constexprs.items()
            if isinstance(v, int) and not isinstance(v, bool) and v == step and v >= 16
        ]  # fmt: skip
        loads = tuple(op for op in module.walk(loop.body) if op.name == "tt.load")
        if len(names) != 1 or not loads:
            continue
        # The first value of the induction variable aside, equal text is an equal address.
        rename = {loop.variable: "<start>"}
        keys = frozenset(
            f"{module.base(load.operands[0])}|{module.key(load.operands[0], rename)}"
            for load in loads
        )
        found.append(RowLoop(loop, loads, keys, length, names[0], int(step)))
    return found


def siblings(loops: list[RowLoop]) -> list[list[RowLoop]]:
    """Groups of at least two loops of one block of code, over one range, that share an address."""
    groups: list[list[RowLoop]] = []
    for loop in loops:
        for group in groups:
            first = group[0]
            if (
                first.loop.operation.block is loop.loop.operation.block
                and first.length == loop.length
                and first.block == loop.block
                and any(first_or.keys & loop.keys for first_or in group)
            ):
                group.append(loop)
                break
        else:
            groups.append([loop])
    return [group for group in groups if len(group) > 1]


def argument_value(kernel: KernelEvidence, name: str) -> int | None:
    """The integer that a scalar argument had in this launch."""
    for arg in kernel.event.args:
        if isinstance(arg, ScalarArg) and arg.name == name:
            return int(arg.value)
    value = kernel.kernel.constexprs.get(name)
    return value if isinstance(value, int) else None


def statements(source: Source, loops: list[RowLoop]) -> list[cst.For] | None:
    """The `for` statements of the loops, if all are in this file and in one body."""
    found = []
    for item in loops:
        node = source.loop(item.loop.operation.inner[1])
        if node is None or not isinstance(node.body, cst.IndentedBlock) or node.orelse:
            return None
        if not isinstance(node.target, cst.Name):
            return None
        found.append(node)
    if len({id(source.parent(node)) for node in found}) != 1:
        return None
    return found


def reread_sentence(call: CallEvidence, kernel: KernelEvidence, loops: list[RowLoop]) -> str:
    """What the counters say about the repeated passes."""
    traffic = kernel.launch.traffic
    where = ", ".join(str(item.loop.operation.inner[1]) for item in loops)
    shared = sorted({key.split("|")[0] for key in frozenset.intersection(*[i.keys for i in loops])})
    names = ", ".join(shared) or "the same row"
    dram = traffic.dram_read_bytes / max(1, traffic.compulsory_read_bytes)
    requested = traffic.l1_requested_bytes / max(
        1, traffic.compulsory_read_bytes + traffic.compulsory_write_bytes
    )
    return (
        f"the loops at lines {where} of {kernel.kernel.name} read {names} {len(loops)} times:"
        f" {requested:.2f}x the bytes it touches are requested, {dram:.2f}x the compulsory bytes"
        " are read from DRAM"
    )
