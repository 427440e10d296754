"""Predicted against measured times of Liger-Kernel's own Triton kernels on an A100.

    python -m benchmarks.liger_times MEASURED.csv > docs/timing-liger.md

MEASURED.csv is the project's `benchmark/data/all_benchmark_data.csv`. The kernels run unmodified on
the virtual A100 at the measured shapes: two waves of CTAs of each launch are executed and counted,
the others taken to be like them. Nothing in the timing model is fitted to this table.
"""

from __future__ import annotations

import csv
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from kopt.gpu import cachemodel, compiled, timing
from kopt.gpu.errors import EnvironmentLacks
from kopt.gpu.facts import CallFacts, LaunchFacts, OperatorFacts
from kopt.gpu.operator_work import work
from kopt.gpu.spec import load_spec
from kopt.gpu.trace import DeviceRead, HostCopy, Json, Kernel, Operator, PointerArg, ScalarArg, Sync
from kopt.gpu.virtual.device import LaunchRecord, Recording, VirtualGPU
from kopt.gpu.virtual.executor import load_kernel
from kopt.gpu.virtual.segments import Segment
from kopt.gpu.virtual.torch_front import torch_on
from kopt.gpu.virtual.triton_driver import triton_on

RELEASE = "0.3.0"
"""The first release with all the kernels of the table; their data is labelled 0.2.1, the release
before it, which has no layer norm and no embedding."""
GPU = "NVIDIA A100-SXM4-80GB"
LEAST_MS = 0.1
"""Shorter calls are mostly launch overhead and host time."""
WAVES = 2
MEMORY_BYTES = 3 << 30
"""A case that needs more host memory is not run."""
ITEM = {"torch.float32": 4, "torch.bfloat16": 2}

Call = Callable[[], object]


class SampledGPU(VirtualGPU):
    """A virtual GPU that runs the first waves of every launch only. Outputs are wrong, counters are
    scaled."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        args: Sequence[PointerArg | ScalarArg],
        host_line: str = "",
    ) -> LaunchRecord:
        """Run a part of the launch."""
        resident = compiled.facts(kernel, self.spec).ctas_per_sm * self.spec.sms
        buffers = {b.number: b for b in self.memory.live()}
        names = {a.buffer: a.name for a in args if isinstance(a, PointerArg)}
        segments = [
            Segment(b.base, b.nbytes, b.host, names.get(n, ""))
            for n, b in buffers.items()
            if b.nbytes
        ]
        params: list[int | float] = [
            a.value if isinstance(a, ScalarArg)
            else 0 if a.buffer < 0 else buffers[a.buffer].base + a.byte_offset
            for a in args
        ]  # fmt: skip
        loaded = load_kernel(kernel.ptx, kernel.name, counted=True)
        missing = len(loaded.translation.entry.params) - len(params)
        result = loaded.launch(
            grid, 32 * kernel.num_warps, kernel.shared_bytes, [*params, *[0] * missing], segments,
            ctas=range(min(math.prod(grid), WAVES * resident)),
        )  # fmt: skip
        record = LaunchRecord(kernel, grid, result.counters, result.findings)
        self.launches.append(record)
        return record


def facts_of(gpu: VirtualGPU, recording: Recording) -> CallFacts:
    """What the recorded call did, with its operators and synchronisations."""
    state = cachemodel.State()
    launches: list[LaunchFacts] = []
    operators: list[OperatorFacts] = []
    host = read = waits = 0
    for ordinal, record in enumerate(gpu.launches):
        assert record.counters is not None
        made = compiled.facts(record.kernel, gpu.spec)
        traffic = cachemodel.traffic(record.counters, made, gpu.spec, state)
        launches.append(
            LaunchFacts(ordinal, record.kernel.name, record.kernel.key, record.grid,
                        32 * record.kernel.num_warps, record.counters, made, traffic)
        )  # fmt: skip
    for event in recording.events:
        host += event.nbytes if isinstance(event, HostCopy) else 0
        read += event.nbytes if isinstance(event, DeviceRead) else 0
        waits += isinstance(event, DeviceRead | Sync)
        if isinstance(event, Operator):
            operators.append(_operator(len(launches) + len(operators), event))
    return CallFacts(
        gpu.spec.name, tuple(launches), tuple(operators), host, read, waits, gpu.memory.peak
    )


def _operator(ordinal: int, event: Operator) -> OperatorFacts:
    inputs = list(_tensors([event.args, event.kwargs]))
    outputs = [(t.dtype, t.shape) for t in event.outputs]

    def size(tensors: Sequence[tuple[str, tuple[int, ...]]]) -> int:
        return sum(math.prod(s) * getattr(torch, d).itemsize for d, s in tensors)

    return OperatorFacts(
        ordinal, event.name, outputs[0][0] if outputs else "", size(inputs), size(outputs),
        work(event.name, [s for _, s in inputs], [s for _, s in outputs]),
        outputs[0][1] if outputs else (),
    )  # fmt: skip


def _tensors(value: Json) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(value, dict):
        found = value.get("tensor")
        if isinstance(found, dict):
            shape = found["shape"]
            assert isinstance(shape, list)
            yield str(found["dtype"]), tuple(int(str(n)) for n in shape)
            return
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _tensors(inner)


@dataclass(frozen=True)
class Found:
    """What the model says of one row."""

    time: timing.Prediction
    spills: bool


@dataclass(frozen=True)
class Case:
    """One measured row."""

    kernel: str
    mode: str
    x: str
    shape: dict[str, int | str]
    measured_ms: float

    @property
    def bytes(self) -> int:
        """Host memory that the inputs and their gradients take, roughly."""
        s, item = self.shape, ITEM[str(self.shape.get("dtype", "torch.float32"))]
        sizes = {
            "cross_entropy": lambda: int(s["B"]) * int(s["T"]) * int(s["V"]),
            "embedding": lambda: int(s["D"]) * (int(s["V"]) + int(s["B"]) * int(s["T"])),
        }
        count = sizes.get(self.kernel, lambda: 1 << 28)()
        lazily_read = self.kernel == "cross_entropy" and self.mode == "forward"
        return 0 if lazily_read else count * item * (1 if self.mode == "forward" else 3)


def cases(path: Path) -> list[Case]:
    """The rows of the table that count here."""
    found = []
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            measured = float(row["y_value_50"])
            if row["gpu_name"] != GPU or row["kernel_provider"] != "liger":
                continue
            if row["metric_unit"] == "ms" and measured >= LEAST_MS:
                shape = {**json.loads(row["extra_benchmark_config_str"])}
                x = row["x_name"]
                shape["hidden_size" if row["kernel_name"] == "rope" and x == "H" else x] = int(
                    float(row["x_value"])
                )
                if row["kernel_name"] == "rope":
                    shape.setdefault("T", shape.get("seq_len", 2048))
                text = f"{x}={row['x_value']}"
                if "D" in shape:
                    text += f" D={shape['D']}"
                found.append(
                    Case(row["kernel_name"], row["kernel_operation_mode"], text, shape, measured)
                )
    return found


def _empty(gpu: VirtualGPU, shape: Sequence[int], dtype: str, kind: str = "float") -> torch.Tensor:
    """A device tensor of zeros whose pages the host allocates when they are first touched."""
    item = 8 if kind == "int" else ITEM[dtype]
    raw = torch.from_numpy(np.zeros(math.prod(shape) * item, np.uint8))
    tensor = raw.view(torch.int64 if kind == "int" else getattr(torch, dtype[6:])).view(shape)
    gpu.allocate(tensor)
    return tensor


def _rms_norm(gpu: VirtualGPU, s: dict[str, int | str]) -> Call:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction as Function

    x = _empty(gpu, (int(s["M"]), int(s["H"])), str(s["dtype"])).requires_grad_()
    w = _empty(gpu, (int(s["H"]),), str(s["dtype"])).requires_grad_()
    return lambda: Function.apply(x, w, 1e-6)


def _layer_norm(gpu: VirtualGPU, s: dict[str, int | str]) -> Call:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction as Function

    n, dtype = int(s["N"]), str(s["dtype"])
    x = _empty(gpu, (int(s["M"]), n), dtype).requires_grad_()
    w, b = (_empty(gpu, (n,), dtype).requires_grad_() for _ in range(2))
    return lambda: Function.apply(x, w, b, 1e-6)


def _cross_entropy(gpu: VirtualGPU, s: dict[str, int | str]) -> Call:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction as Function

    rows = int(s["B"]) * int(s["T"])
    x = _empty(gpu, (rows, int(s["V"])), "torch.float32").requires_grad_()
    target = _empty(gpu, (rows,), "", "int")
    return lambda: Function.apply(x, target, -100)


def _embedding(gpu: VirtualGPU, s: dict[str, int | str]) -> Call:
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction as Function

    table = _empty(gpu, (int(s["V"]), int(s["D"])), str(s["dtype"])).requires_grad_()
    index = _empty(gpu, (int(s["B"]), int(s["T"])), "", "int")
    index.copy_(
        torch.from_numpy(np.random.default_rng(0).integers(0, int(s["V"]), tuple(index.shape)))
    )
    return lambda: Function.apply(table, index)


def _rope(gpu: VirtualGPU, s: dict[str, int | str]) -> Call:
    from liger_kernel.ops.rope import LigerRopeFunction as Function

    rows, dtype, heads = int(s["T"]), str(s["dtype"]), int(s["num_q_heads"])
    dim = int(s["hidden_size"]) // heads
    q = _empty(gpu, (1, rows, heads, dim), dtype).transpose(1, 2).requires_grad_()
    k = _empty(gpu, (1, rows, int(s["num_kv_heads"]), dim), dtype)
    k = k.transpose(1, 2).requires_grad_()
    cos, sin = (_empty(gpu, (1, rows, dim), dtype) for _ in range(2))
    return lambda: Function.apply(q, k, cos, sin)


MAKERS = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "rope": _rope,
}


def predict(case: Case) -> Found:
    """The predicted time of one row's call."""
    gpu = SampledGPU(load_spec("a100"), counted=True)
    with triton_on(gpu), torch_on(gpu):
        call = MAKERS[case.kernel](gpu, case.shape)
        outputs: list[torch.Tensor] = []
        if case.mode == "backward":
            outputs = _outputs(call())
        gradients = [_empty_like(gpu, o) for o in outputs]
        gpu.launches.clear()
        gpu.recording = recording = Recording()
        if case.mode != "backward":
            outputs = _outputs(call())
        if case.mode == "full":
            gpu.recording = None
            gradients = [_empty_like(gpu, o) for o in outputs]
            gpu.recording = recording
        if case.mode != "forward":
            torch.autograd.backward(outputs, gradients)
        gpu.recording = None
        facts = facts_of(gpu, recording)
    return Found(
        timing.predict(gpu.spec, facts), any(x.compiled.spill_load_bytes for x in facts.launches)
    )


def _outputs(value: object) -> list[torch.Tensor]:
    found = value if isinstance(value, tuple) else (value,)
    return [v for v in found if isinstance(v, torch.Tensor)]


def _empty_like(gpu: VirtualGPU, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim():
        return torch.ones_like(tensor)
    if tensor.is_contiguous():
        return _empty(gpu, tensor.shape, str(tensor.dtype))
    swapped = tensor.transpose(1, 2)
    return _empty(gpu, swapped.shape, str(tensor.dtype)).transpose(1, 2)


def install(folder: Path) -> None:
    """Put the measured release where this process finds it first."""
    if not (folder / "liger_kernel").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                   str(folder), f"liger-kernel=={RELEASE}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentLacks(
                f"liger-kernel {RELEASE} cannot be installed: {done.stderr.strip()[-300:]}",
                "give pip a package index",
            )
        # The release is a namespace package, which a newer one installed elsewhere would hide.
        (folder / "liger_kernel" / "__init__.py").touch()
    sys.path.insert(0, str(folder))


def main(path: Path, folder: Path) -> str:
    """The report as Markdown."""
    install(folder)
    began = time.perf_counter()
    rows: list[tuple[Case, Found | None]] = []
    for case in cases(path):
        fits = case.bytes <= MEMORY_BYTES
        rows.append((case, predict(case) if fits else None))
        print(case.kernel, case.mode, case.x, file=sys.stderr)
    lines = [
        "# Predicted and measured times of Liger-Kernel on an A100",
        "",
        f"Generated by `python -m benchmarks.liger_times MEASURED.csv` on"
        f" {datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {torch.get_num_threads()} cores,"
        f" {time.perf_counter() - began:.0f} s.",
        "Measured: medians of `triton.testing.do_bench` from the Liger-Kernel project's benchmark"
        f" data (BSD-2-Clause), provider `liger`, {GPU}, rows of at least {LEAST_MS * 1000:.0f} µs."
        f" Kernels: liger-kernel {RELEASE} from PyPI, run unmodified on the virtual A100, the first"
        f" {WAVES} waves of each launch. Nothing is fitted to these rows.",
        "",
        "`full` and `backward` go through autograd: below about 0.3 ms their measured time hardly"
        " changes with size, because the host cannot launch faster. The model does not see the"
        " host, and what autograd's engine itself runs, such as the copy of a gradient that the"
        " cross entropy returns, is not recorded.",
        "",
        "A kernel marked *spills* needs more registers than there are, as today's Triton and ptxas"
        " compile it; the measured one was compiled by those of 2024.",
        "",
        "| kernel | mode | size | measured µs | predicted µs | range | predicted / measured |"
        " largest bound |",
        "|---|---|---|---:|---:|---|---:|---|",
    ]
    for case, found in rows:
        start = f"| {case.kernel} | {case.mode} | {case.x} | {1000 * case.measured_ms:.0f} |"
        if found is None:
            lines.append(f"{start} – | | | not run: needs more than 3 GB on the host |")
            continue
        slowest = max(found.time.launches, key=lambda t: t.time_us)
        mark = ", spills" if found.spills else ""
        lines.append(
            f"{start} {found.time.time_us:.0f} |"
            f" {found.time.low_us:.0f}–{found.time.high_us:.0f} |"
            f" {found.time.time_us / 1000 / case.measured_ms:.2f} | {slowest.bottleneck}{mark} |"
        )
    return "\n".join([*lines, "", *_summary(rows)]) + "\n"


def _summary(rows: list[tuple[Case, Found | None]]) -> list[str]:
    lines = ["| rows | count | mean absolute error | median predicted / measured | inside range |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    groups: dict[str, Callable[[Case], bool]] = {
        "forward": lambda c: c.mode == "forward",
        "backward, full": lambda c: c.mode != "forward",
        "backward, full, over 0.4 ms": lambda c: c.mode != "forward" and c.measured_ms > 0.4,
        "all": lambda c: True,
    }
    for name, keep in groups.items():
        chosen = [(c, p.time) for c, p in rows if p is not None and keep(c)]
        if not chosen:
            continue
        ratios = [p.time_us / 1000 / c.measured_ms for c, p in chosen]
        inside = sum(p.low_us <= 1000 * c.measured_ms <= p.high_us for c, p in chosen)
        error = 100 * statistics.mean(abs(r - 1) for r in ratios)
        lines.append(
            f"| {name} | {len(chosen)} | {error:.0f} % | {statistics.median(ratios):.2f} |"
            f" {inside} |"
        )
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.liger_times MEASURED.csv")
    print(main(Path(sys.argv[1]), compiled.cache_folder() / f"liger-kernel-{RELEASE}"), end="")
