"""What the recorded work alone says: shared memory, sources of outputs, orders, precisions."""

from __future__ import annotations

import re

import numpy as np

from kopt.gpu.tensor_io import ITEM_BYTES
from kopt.gpu.trace import Alloc, HostCopy, Json, Launch, Operator, PointerArg, Trace
from kopt.tools.floats import FORMATS, TF32, is_float

_FLOAT_ATOMIC = re.compile(r"\b(?:atom|red)\.[\w.]*add[\w.]*\.(?:f16x2|bf16x2|f16|bf16|f32|f64)\b")
_MATRIX_INPUT = re.compile(
    r"\bmma\.sync\.[\w.]*\.m\d+n\d+k\d+\.row\.col(?:\.satfinite)?\.\w+\.(\w+)\.\w+\.\w+"
)
MATRIX_FORMATS = {
    "tf32": TF32,
    "bf16": FORMATS["bfloat16"],
    "f16": FORMATS["float16"],
    "e4m3": FORMATS["float8_e4m3fn"],
    "e5m2": FORMATS["float8_e5m2"],
}
"""PTX types of matrix operands."""


def aliasing(original: Trace, candidate: Trace) -> str:
    """Outputs that share memory with inputs or with each other, and the original's do not."""

    def shared(trace: Trace) -> set[tuple[str, int, int]]:
        pairs = set()
        for i, output in enumerate(trace.outputs):
            for j, given in enumerate(trace.inputs):
                if output.buffer == given.buffer and output.buffer >= 0:
                    pairs.add(("input", i, j))
            for j, other in enumerate(trace.outputs[:i]):
                if output.buffer == other.buffer and output.buffer >= 0:
                    pairs.add(("output", i, j))
        return pairs

    before, after = shared(original), shared(candidate)
    for kind, i, j in sorted(after - before):
        return f"output {i} shares memory with {kind} {j}, which the original's does not"
    for kind, i, j in sorted(before - after):
        if kind == "input":
            return f"output {i} no longer is input {j} changed in place"
    return ""


def copied_outputs(original: Trace, candidate: Trace) -> list[int]:
    """Outputs that host data leads to and no input does, though inputs lead to the original's."""
    before, after = _sources(original), _sources(candidate)
    return [
        position
        for position in range(min(len(before), len(after)))
        if "host" in after[position]
        and "input" not in after[position]
        and "input" in before[position]
    ]


def _sources(trace: Trace) -> list[frozenset[str]]:
    """For each output, whether inputs and host copies lead to it through the recorded work."""
    known: dict[int, set[str]] = {t.buffer: {"input"} for t in trace.inputs}
    sizes: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, Alloc):
            sizes[event.buffer] = event.nbytes
        elif isinstance(event, HostCopy):
            known[event.buffer] = {"host"}
        elif isinstance(event, Launch):
            named = [a.buffer for a in event.args if isinstance(a, PointerArg)]
            joined = set().union(*(known.get(b, set()) for b in named))
            for buffer in named:
                known[buffer] = set(joined)
        elif isinstance(event, Operator):
            replaces = _replaces_all(event, sizes)
            read = _buffers([event.args[1:] if replaces else event.args, dict(event.kwargs)])
            joined = set().union(*(known.get(b, set()) for b in read))
            for output in event.outputs:
                kept = set() if replaces else known.get(output.buffer, set())
                known[output.buffer] = joined | kept
    return [frozenset(known.get(t.buffer, set())) for t in trace.outputs]


def _replaces_all(event: Operator, sizes: dict[int, int]) -> bool:
    """Whether an operator overwrites its first argument's whole buffer without reading it."""
    if not re.search(r"\b(copy_|fill_|zero_)\b", event.name) or not event.outputs:
        return False
    target = event.outputs[0]
    nbytes = int(np.prod(target.shape, dtype=np.int64)) * ITEM_BYTES.get(target.dtype, 0)
    return nbytes == sizes.get(target.buffer)


def _buffers(tree: Json) -> list[int]:
    if isinstance(tree, list):
        return [b for item in tree for b in _buffers(item)]
    if isinstance(tree, dict):
        tensor = tree.get("tensor")
        if isinstance(tensor, dict) and isinstance(tensor.get("buffer"), int):
            return [int(str(tensor["buffer"]))]
        return [b for item in tree.values() for b in _buffers(item)]
    return []


def adds_atomically(trace: Trace) -> bool:
    """Whether the order of floating-point additions is free in a launched kernel."""
    launched = {e.kernel for e in trace.events if isinstance(e, Launch)}
    return any(
        _FLOAT_ATOMIC.search(kernel.ptx) for key, kernel in trace.kernels.items() if key in launched
    )


def precision_floor(trace: Trace) -> tuple[float, str]:
    """What the task's own matrix instructions lose of its inputs, and a sentence about it.

    A kernel that rounds fp32 operands to TF32 or fp16 says that its task may; 0 if none does.
    """
    given = [FORMATS[t.dtype].precision for t in trace.inputs if is_float(t.dtype)]
    used = matrix_formats(trace)
    if not given or not used:
        return 0.0, ""
    lowest = min(used, key=lambda name: MATRIX_FORMATS[name].precision)
    form = MATRIX_FORMATS[lowest]
    if form.precision >= min(given):
        return 0.0, ""
    return form.rounding, (
        f"the target's own matrix instructions round their operands to {lowest}, so candidates may"
    )


def matrix_formats(trace: Trace) -> set[str]:
    """Formats of the operands of matrix instructions in launched kernels, of `MATRIX_FORMATS`."""
    launched = {e.kernel for e in trace.events if isinstance(e, Launch)}
    found: set[str] = set()
    for key in launched & set(trace.kernels):
        found.update(_MATRIX_INPUT.findall(trace.kernels[key].ptx))
    return found & set(MATRIX_FORMATS)
