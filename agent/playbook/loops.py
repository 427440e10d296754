"""Loops over a row in blocks: what they read, and where they are in the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from kopt.agent.playbook.base import CallEvidence, KernelEvidence
from kopt.agent.playbook.inline import inlined
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


def is_masked(kernel: KernelEvidence, row: RowLoop) -> bool:
    """Whether every access of the loop has a mask that depends on where the row ends."""
    module = kernel.ttir
    for op in module.walk(row.loop.body):
        position = {"tt.load": 1, "tt.store": 2}.get(op.name)
        if position is None or not module.depends(op.operands[0], row.loop.variable):
            continue
        if len(op.operands) <= position:
            return False
        if not module.depends(op.operands[position], row.loop.upper):
            return False
    return True


def located(
    call: CallEvidence, kernel: KernelEvidence, loops: list[RowLoop]
) -> Iterator[tuple[Source, list[cst.For]]]:
    """The `for` statements of the loops: in the kernel as it is written, then in the kernel with
    its helper functions written out, for rewrites that need to see all of a loop."""
    name = kernel.kernel.name
    source = Source(call.source)
    fors = _one_body(source, name, [source.loop(i.loop.operation.inner[1]) for i in loops])
    if fors is not None:
        yield source, fors
    text = inlined(call.source, name)
    if text == call.source:
        return
    source = Source(text)
    function = source.functions().get(name)
    if function is None:
        return
    # Lines have moved, but loops are in the order of the compiled kernel.
    written = [
        node
        for node in source.inside(function, cst.For)
        if isinstance(node, cst.For) and "static_range" not in source.code(node.iter)
    ]
    compiled = kernel.ttir.loops()
    if len(written) != len(compiled):
        return
    order = {id(loop.operation): position for position, loop in enumerate(compiled)}
    fors = _one_body(source, name, [written[order[id(i.loop.operation)]] for i in loops])
    if fors is not None:
        yield source, fors


def _one_body(source: Source, kernel: str, nodes: list[cst.For | None]) -> list[cst.For] | None:
    """The statements, if all were found as plain loops in one body of the kernel."""
    found = []
    for node in nodes:
        if node is None or not isinstance(node.body, cst.IndentedBlock) or node.orelse:
            return None
        owner = source.enclosing(node)
        if not isinstance(node.target, cst.Name) or owner is None or owner.name.value != kernel:
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
