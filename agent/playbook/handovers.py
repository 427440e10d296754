"""Which launches of a call hand data from each program to the same program of the next one."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from kopt.agent.playbook.base import CallEvidence
from kopt.agent.playbook.host import grid
from kopt.agent.playbook.polynomial import Polynomial, Symbol, argument
from kopt.agent.playbook.source import Source
from kopt.agent.playbook.stages import (
    Access,
    Stage,
    same_argument,
    stage,
    statements_between,
    written_out,
)
from kopt.agent.playbook.ttir import Module, Operation
from kopt.gpu.trace import Alloc, Launch, PointerArg

_MIXING = {"tt.reduce", "tt.dot", "tt.scan", "tt.atomic_rmw", "tt.gather", "tt.histogram"}


@dataclass(frozen=True)
class Handover:
    """A buffer of which a later stage loads what an earlier one stored, program by program."""

    buffer: int
    writer: Stage
    store: Access
    reader: Stage
    loads: tuple[Access, ...]
    fill: bool
    """The loads' `other` is not what the stored value is where the mask is false."""


@dataclass(frozen=True)
class Chain:
    """Launches that can be one."""

    stages: tuple[Stage, ...]
    handovers: tuple[Handover, ...]


def chains(call: CallEvidence, source: Source) -> list[Chain]:
    """The longest chains of launches in the call, each at most once."""
    found: list[Chain] = []
    original = Source(call.source)
    positions = [i for i, e in enumerate(call.trace.events) if isinstance(e, Launch)]
    start = 0
    while start < len(call.launches):
        first = stage(source, original, call.launches[start])
        stages = [first] if first is not None else []
        handovers: list[Handover] = []
        end = start + 1
        while stages and end < len(call.launches):
            between = call.trace.events[positions[end - 1] + 1 : positions[end]]
            following = stage(source, original, call.launches[end])
            if following is None or not all(isinstance(e, Alloc) for e in between):
                break
            links = _links(source, stages, following)
            if not links:
                break
            stages.append(following)
            handovers += links
            end += 1
        if len(stages) > 1:
            found.append(Chain(tuple(stages), tuple(handovers)))
        start = max(end, start + 1)
    unique: dict[tuple[int, ...], Chain] = {}
    for chain in found:
        unique.setdefault(tuple(id(s.site.call) for s in chain.stages), chain)
    return list(unique.values())


def label(handover: Handover) -> str:
    """What the host or the kernel calls the handed data."""
    text = handover.writer.texts[handover.store.parameter]
    return text if text.isidentifier() else handover.store.parameter


def _links(source: Source, stages: list[Stage], reader: Stage) -> list[Handover] | None:
    """What earlier stages hand to the next launch; None where it cannot join them."""
    last = stages[-1]
    if not _same_launch(source, last, reader):
        return None
    for earlier in stages:
        if reader.writes & (earlier.reads | earlier.writes):
            return None
    found = []
    for buffer in sorted(reader.reads & {b for s in stages for b in s.writes}):
        writers = [s for s in stages if buffer in s.writes]
        handover = _handover(writers[-1], reader, buffer) if len(writers) == 1 else None
        if handover is None:
            return None
        found.append(handover)
    return found


def _same_launch(source: Source, one: Stage, two: Stage) -> bool:
    """Equal grids and warps, written the same, one after the other in straight-line code."""
    a, b = one.evidence, two.evidence
    if a.event.grid != b.event.grid or a.kernel.num_warps != b.kernel.num_warps:
        return False
    if one.texts.get("num_stages") != two.texts.get("num_stages"):
        return False
    grids = [_grid_texts(source, s) for s in (one, two)]
    if grids[0] is None or grids[0] != grids[1]:
        return False
    between = statements_between(source, one.site, two.site)
    if between is None:
        return False
    used = {n for s in (one, two) for t in s.texts.values() for n in re.findall(r"\w+", t)}
    for statement in between:
        if not isinstance(statement.body[0], cst.Assign) or len(statement.body) != 1:
            return False
        for target in statement.body[0].targets:
            names = set(re.findall(r"\w+", source.code(target.target)))
            # A buffer for the second launch may be made here; what the first uses may not change.
            if names & {n for t in one.texts.values() for n in re.findall(r"\w+", t)} & used:
                return False
    return True


def _grid_texts(source: Source, made: Stage) -> list[str] | None:
    components = grid(source, made.site)
    if components is None:
        return None
    return [
        source.code(written_out(source, cst.parse_expression(c), made.site.function))
        for c in components
    ]


def _handover(writer: Stage, reader: Stage, buffer: int) -> Handover | None:
    stores = [a for a in writer.stores if _buffer(writer, a) == buffer]
    loads = [a for a in reader.loads if _buffer(reader, a) == buffer]
    everywhere = [
        op
        for op in reader.evidence.ttir.walk()
        if op.name == "tt.load" and _base_buffer(reader, op) == buffer
    ]
    if len(stores) != 1 or not loads or len(loads) != len(everywhere):
        return None
    if len([b for b in _pointers(writer) if b == buffer]) != 1:
        return None
    store = stores[0]
    one, two = writer.pointer(store.parameter), reader.pointer(loads[0].parameter)
    if one is None or one != two or not _same_type(writer, store, reader, loads[0]):
        return None
    rename = {**_symbols(writer, reader, first=True)}
    back = _symbols(writer, reader, first=False)
    for load in loads:
        if store.offset.replace(rename) != load.offset.replace(back):
            return None
        masks = [
            tuple(sorted(p.replace(names) for p in access.mask))
            if access.mask is not None
            else None
            for access, names in ((store, rename), (load, back))
        ]
        if masks[0] != masks[1]:
            return None
    return Handover(
        buffer, writer, store, reader, tuple(loads), _needs_fill(writer, store, reader, loads)
    )


def _pointers(made: Stage) -> list[int]:
    return [a.buffer for a in made.evidence.event.args if isinstance(a, PointerArg)]


def _buffer(made: Stage, access: Access) -> int | None:
    pointer = made.pointer(access.parameter)
    return pointer[0] if pointer is not None else None


def _base_buffer(made: Stage, operation: Operation) -> int | None:
    base = made.evidence.ttir.base(operation.operands[0])
    pointer = made.pointer(base) if base is not None else None
    return pointer[0] if pointer is not None else None


def _same_type(writer: Stage, store: Access, reader: Stage, load: Access) -> bool:
    one = writer.evidence.kernel.signature.get(store.parameter)
    return one is not None and one == reader.evidence.kernel.signature.get(load.parameter)


def _symbols(writer: Stage, reader: Stage, *, first: bool) -> dict[Symbol, Polynomial]:
    """Names for the parameters of one stage such that equal names are equal in every call."""
    own = writer if first else reader
    names = {}
    for parameter, text in own.texts.items():
        names[argument(parameter)] = Polynomial.of(
            argument(_shared(writer, reader, own, parameter, text))
        )
    return names


def _shared(writer: Stage, reader: Stage, own: Stage, parameter: str, text: str) -> str:
    if own is writer:
        return text
    twin = same_argument(writer, reader, parameter)
    return writer.texts[twin] if twin is not None else text


def _needs_fill(writer: Stage, store: Access, reader: Stage, loads: list[Access]) -> bool:
    """Whether lanes behind the mask must be set before the reader uses the value."""
    module = reader.evidence.ttir
    others = set()
    for load in loads:
        if len(load.operation.operands) < 3:
            continue
        others.add(module.constant(load.operation.operands[2]))
    if not others:
        return False
    if others == {_behind_mask(writer.evidence.ttir, store.operation.operands[1])}:
        return False
    mixes = any(op.name in _MIXING for op in module.walk())
    masks = {tuple(a.mask or ()) for a in (*reader.stores, *loads)}
    return mixes or len(masks) > 1


_UNARY: dict[str, Callable[[float], float]] = {
    "arith.extf": float,
    "arith.truncf": float,
    "arith.negf": lambda x: -x,
    "tt.splat": float,
    "tt.broadcast": float,
    "tt.expand_dims": float,
    "math.exp": math.exp,
    "math.exp2": lambda x: 2.0**x,
    "math.log": math.log,
    "math.sqrt": math.sqrt,
    "math.rsqrt": lambda x: 1 / math.sqrt(x),
    "math.absf": abs,
}


_BINARY: dict[str, Callable[[float, float], float]] = {
    "arith.addf": lambda a, b: a + b,
    "arith.subf": lambda a, b: a - b,
    "arith.mulf": lambda a, b: a * b,
    "arith.divf": lambda a, b: a / b,
    "arith.maxnumf": max,
    "arith.minnumf": min,
    "arith.maximumf": max,
    "arith.minimumf": min,
}


def _behind_mask(module: Module, value: str) -> float | None:
    """The number that a value is where its loads are masked off, if it is one."""
    known = module.constant(value)
    operation = module.definitions.get(value)
    if known is not None or operation is None:
        return known
    if operation.name == "tt.load":
        return module.constant(operation.operands[2]) if len(operation.operands) > 2 else None
    operands = [_behind_mask(module, o) for o in operation.operands]
    numbers = [n for n in operands if n is not None]
    if len(numbers) != len(operands):
        return None
    with contextlib.suppress(ArithmeticError, ValueError):
        if operation.name in _UNARY and len(numbers) == 1:
            return _UNARY[operation.name](numbers[0])
        if operation.name in _BINARY and len(numbers) == 2:
            return _BINARY[operation.name](*numbers)
    return None
