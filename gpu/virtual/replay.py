"""Replaying a trace from the judge's own inputs, in a process the recorded code never touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kopt.gpu import cachemodel, compiled, trace_io
from kopt.gpu.counters import Finding
from kopt.gpu.errors import Unsupported, UsageError
from kopt.gpu.facts import CallFacts, LaunchFacts, OperatorFacts
from kopt.gpu.operator_work import work
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.tensor_io import ITEM_BYTES, Tensors, check, reference
from kopt.gpu.trace import (
    Alloc,
    DeviceRead,
    Event,
    HostCopy,
    Json,
    Launch,
    Operator,
    PointerArg,
    Sync,
    TensorRef,
    Trace,
)
from kopt.gpu.virtual.device import POISON, Buffer, execute, weak
from kopt.gpu.virtual.executor import Arithmetic
from kopt.gpu.virtual.segments import FIRST_ADDRESS, next_address
from kopt.gpu.virtual.values import view
from kopt.gpu.virtual.wide_memory import WideMemory, is_wide

U8 = NDArray[np.uint8]

_OUTSIDE = frozenset(
    {"from_file", "set_", "set_data", "resize_", "resize_as_", "_resize_output_", "record_stream"}
)
"""Operators that read or write files, or exchange the memory behind a tensor."""


@dataclass
class Replayed:
    """What a replay computed."""

    outputs: Tensors
    """With `wide` arithmetic floats are contiguous fp64 tensors."""
    facts: CallFacts
    mutated: Tensors
    """What the inputs in `facts.mutated_inputs` hold after the call, in that order."""


@dataclass
class _State:
    spec: DeviceSpec
    folder: Path
    counted: bool
    wide: WideMemory | None
    memory: dict[int, U8] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    bases: dict[int, int] = field(default_factory=dict)
    next: int = FIRST_ADDRESS
    launches: list[LaunchFacts] = field(default_factory=list)
    operators: list[OperatorFacts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    ordinal: int = 0
    host_bytes: int = 0
    read_bytes: int = 0
    synchronisations: int = 0

    def add(self, number: int, data: U8) -> None:
        if number in self.memory:
            raise UsageError(f"the trace allocates buffer {number} twice")
        self.memory[number] = data
        if self.wide is not None:
            self.wide.add(number, len(data))
        base = next_address(self.next, len(data))
        self.bases[number] = base
        self.next = base + max(len(data), 1)

    def drop(self, number: int) -> None:
        if self.memory.pop(number, None) is not None and self.wide is not None:
            self.wide.drop(number)

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        if ref.buffer not in self.memory:
            raise UsageError(f"the trace uses buffer {ref.buffer} before it is allocated")
        check(TensorRef(0, ref.dtype, ref.shape, ref.stride, ref.offset), [self.memory[ref.buffer]])
        return view(ref, self.memory[ref.buffer])


def replay(
    trace: Trace,
    folder: Path,
    inputs: Tensors,
    spec: DeviceSpec,
    *,
    counted: bool = True,
    arithmetic: Arithmetic = "ieee",
) -> Replayed:
    """Run the trace's events over the inputs. Raises `UsageError` for a trace that is no trace,
    and `Unsupported` for device work that the virtual GPU does not execute."""
    state = _State(spec, folder, counted, WideMemory() if arithmetic == "wide" else None)
    device = [t for i, t in enumerate(inputs.tensors) if i in _device_positions(inputs)]
    if len(device) != len(trace.inputs):
        raise UsageError("the trace has other inputs than those given")
    originals: dict[int, U8] = {}
    for given, ref in zip(device, trace.inputs, strict=True):
        if ref.buffer not in state.memory:
            originals[ref.buffer] = inputs.storages[given.buffer]
            state.add(ref.buffer, np.array(inputs.storages[given.buffer], copy=True))
    input_bytes = sum(len(d) for d in originals.values())
    last = _last_uses(trace)
    cache = cachemodel.State()
    for position, event in enumerate(trace.events):
        _step(state, trace, event, cache)
        for number in last.get(position, ()):
            if number not in originals:
                state.drop(number)
    mutated = tuple(
        position
        for position, ref in enumerate(trace.inputs)
        if not np.array_equal(state.memory[ref.buffer], originals[ref.buffer])
    )
    outputs = _outputs(state, trace)
    facts = CallFacts(
        gpu=spec.name,
        launches=tuple(state.launches),
        operators=tuple(state.operators),
        host_copy_bytes=state.host_bytes,
        device_read_bytes=state.read_bytes,
        synchronisations=state.synchronisations,
        peak_bytes=trace.peak_bytes,
        findings=tuple(state.findings),
        mutated_inputs=mutated,
        input_bytes=input_bytes,
        output_bytes=sum(math.prod(t.shape) * ITEM_BYTES[t.dtype] for t in trace.outputs),
    )
    return Replayed(outputs, facts, _contents(state, [trace.inputs[p] for p in mutated]))


def _device_positions(inputs: Tensors) -> set[int]:
    found: set[int] = set()

    def walk(item: Any) -> None:
        if isinstance(item, dict):
            if "tensor" in item:
                found.add(item["tensor"])
            for inner in item.values():
                walk(inner)
        elif isinstance(item, list):
            for inner in item:
                walk(inner)

    walk(inputs.tree)
    return found


def _last_uses(trace: Trace) -> dict[int, list[int]]:
    """Event positions after which buffers are no longer named."""
    last: dict[int, int] = {}
    for position, event in enumerate(trace.events):
        for number in _names(event):
            last[number] = position
    keep = {t.buffer for t in (*trace.outputs, *trace.inputs)}
    found: dict[int, list[int]] = {}
    for number, position in last.items():
        if number not in keep:
            found.setdefault(position, []).append(number)
    return found


def _names(event: Event) -> list[int]:
    if isinstance(event, Launch):
        return [a.buffer for a in event.args if isinstance(a, PointerArg)]
    if isinstance(event, Operator):
        found = [t.buffer for t in event.outputs]

        def walk(item: Any) -> None:
            if isinstance(item, dict):
                if isinstance(item.get("tensor"), dict):
                    found.append(int(item["tensor"]["buffer"]))
                for inner in item.values():
                    walk(inner)
            elif isinstance(item, list):
                for inner in item:
                    walk(inner)

        walk([event.args, event.kwargs])
        return found
    return [] if isinstance(event, Sync) else [event.buffer]


def _step(state: _State, trace: Trace, event: Event, cache: cachemodel.State) -> None:
    if isinstance(event, Alloc):
        if event.nbytes > state.spec.dram_bytes or event.nbytes < 0:
            raise UsageError("the trace allocates more than the GPU has")
        state.add(event.buffer, np.full(event.nbytes, POISON, np.uint8))
    elif isinstance(event, HostCopy):
        data = np.frombuffer(trace_io.blob(state.folder, event.blob), np.uint8)
        if event.buffer not in state.memory or len(data) != len(state.memory[event.buffer]):
            raise UsageError("the trace copies bytes that do not fit their buffer")
        state.memory[event.buffer][:] = data
        if state.wide is not None:
            state.wide.clear(event.buffer)
        state.host_bytes += event.nbytes
    elif isinstance(event, DeviceRead):
        state.read_bytes += event.nbytes
        state.synchronisations += 1
    elif isinstance(event, Sync):
        state.synchronisations += 1
    elif isinstance(event, Operator):
        _operator(state, event)
    else:
        _launch(state, trace, event, cache)


def _launch(state: _State, trace: Trace, event: Launch, cache: cachemodel.State) -> None:
    kernel = trace.kernels[event.kernel]
    buffers: dict[int, Buffer] = {}
    keep: list[torch.Tensor] = []
    for number, data in state.memory.items():
        tensor = torch.from_numpy(data) if len(data) else torch.empty(0, dtype=torch.uint8)
        keep.append(tensor)
        storage = tensor.untyped_storage()
        buffers[number] = Buffer(
            number,
            state.bases[number],
            len(data),
            data.ctypes.data,
            weak(storage),
            shadow=state.wide.address(number) if state.wide is not None else 0,
        )
    for arg in event.args:
        if isinstance(arg, PointerArg) and arg.buffer >= 0 and arg.buffer not in buffers:
            raise UsageError(f"the trace launches {kernel.name} on a buffer that is not there")
    facts = compiled.facts(kernel, state.spec)
    record = execute(
        kernel,
        event.grid,
        event.args,
        buffers,
        counted=state.counted,
        arithmetic="wide" if state.wide is not None else "ieee",
    )
    state.findings.extend(record.findings)
    if record.counters is not None:
        traffic = cachemodel.traffic(record.counters, facts, state.spec, cache)
        state.launches.append(
            LaunchFacts(
                state.ordinal,
                kernel.name,
                kernel.key,
                event.grid,
                32 * kernel.num_warps,
                record.counters,
                facts,
                traffic,
                event.host_line,
            )
        )
    state.ordinal += 1


def _operator(state: _State, event: Operator) -> None:
    parts = event.name.split(".")
    if len(parts) not in {2, 3} or parts[0] != "aten":
        raise Unsupported(f"the virtual GPU does not replay operator {event.name}")
    if parts[1] in _OUTSIDE:
        raise UsageError(f"a trace may not use {event.name}: it reaches beyond the call's tensors")
    packet = getattr(torch.ops.aten, parts[1], None)
    if packet is None:
        raise Unsupported(f"this PyTorch has no operator {event.name}")
    function = getattr(packet, parts[2] if len(parts) == 3 else "default")
    args = [_decode(state, a) for a in event.args]
    kwargs = {str(k): _decode(state, v) for k, v in _dict(event.kwargs).items()}
    reads = _inputs([args, kwargs])
    read_bytes = sum(t.numel() * t.element_size() for t in _distinct(reads))
    with torch.no_grad():
        result = function(*args, **kwargs)
    results = [result] if isinstance(result, torch.Tensor) else list(result or [])
    targets = [state.tensor(ref) for ref in event.outputs]
    for value, target, ref in zip(results, targets, event.outputs, strict=False):
        if not isinstance(value, torch.Tensor) or value.data_ptr() == target.data_ptr():
            continue
        if state.wide is not None and is_wide(ref.dtype):
            state.wide.write(ref, state.memory[ref.buffer], value)
        else:
            target.copy_(value)
    written = sum(t.numel() * t.element_size() for t in targets)
    state.operators.append(
        OperatorFacts(
            state.ordinal,
            event.name,
            event.outputs[0].dtype if event.outputs else "",
            read_bytes,
            written,
            work(event.name, [tuple(t.shape) for t in reads], [tuple(t.shape) for t in targets]),
            event.outputs[0].shape if event.outputs else (),
        )
    )
    state.ordinal += 1


def _dict(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and set(value) == {"dict"}:
        return dict(value["dict"])
    return dict(value)


def _distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({(t.data_ptr(), t.shape, t.stride()): t for t in tensors}.values())


def _inputs(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _inputs(item)]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _inputs(item)]
    return []


def _decode(state: _State, value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(state, v) for v in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        ref = reference(value["tensor"])
        stored = state.tensor(ref)
        if state.wide is not None and is_wide(ref.dtype):
            return state.wide.read(ref, state.memory[ref.buffer])
        return stored
    if "scalar" in value:
        return torch.tensor(value["scalar"], dtype=getattr(torch, str(value["dtype"])))
    if "dtype" in value:
        wide = state.wide is not None and is_wide(str(value["dtype"]))
        return torch.float64 if wide else getattr(torch, str(value["dtype"]))
    if "device" in value:
        return torch.device("cpu")
    if "layout" in value:
        return getattr(torch, str(value["layout"]))
    if "memory_format" in value:
        return getattr(torch, str(value["memory_format"]))
    if "float" in value:
        return float(value["float"])
    return {k: _decode(state, v) for k, v in value["dict"].items()}


def _outputs(state: _State, trace: Trace) -> Tensors:
    numbers = list(dict.fromkeys(t.buffer for t in trace.outputs))
    if state.wide is not None and all(n in state.memory for n in numbers):
        wide = state.wide.result(list(trace.outputs), state.memory)
        return Tensors(trace.output_tree, wide.tensors, wide.storages)
    for number in numbers:
        if number not in state.memory:
            raise UsageError(f"the trace returns buffer {number}, which it never allocates")
    index = {number: i for i, number in enumerate(numbers)}
    tensors = [
        TensorRef(index[t.buffer], t.dtype, t.shape, t.stride, t.offset) for t in trace.outputs
    ]
    storages = [state.memory[n] for n in numbers]
    for tensor in tensors:
        check(tensor, storages)
    return Tensors(trace.output_tree, tensors, storages)


def _contents(state: _State, refs: list[TensorRef]) -> Tensors:
    """The given tensors with their contents."""
    if state.wide is not None:
        found = state.wide.result(refs, state.memory)
    else:
        numbers = list(dict.fromkeys(t.buffer for t in refs))
        index = {number: i for i, number in enumerate(numbers)}
        tensors = [TensorRef(index[t.buffer], t.dtype, t.shape, t.stride, t.offset) for t in refs]
        found = Tensors(None, tensors, [state.memory[n] for n in numbers])
    tree: list[Json] = [{"tensor": i} for i in range(len(refs))]
    return Tensors(tree, found.tensors, found.storages)
