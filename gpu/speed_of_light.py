"""The least time that a call's work can take, whatever implements it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kopt.gpu import operators
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.perturb import Draws, Rates, perturbations
from kopt.gpu.spec import DeviceSpec


@dataclass(frozen=True)
class Compulsory:
    """The least work that the reference needs: every input byte it uses and every output byte once,
    and its operations by pipe (`fp32`, `fp64`, `fp16`, `mma_fp16`, `mma_tf32`, `mma_int8`)."""

    read_bytes: float
    write_bytes: float
    flops: dict[str, float]


def compulsory(facts: CallFacts) -> Compulsory:
    """The least work of a call as far as its own facts tell.

    Operations are those of matrix products, without the share that selects throw away a whole warp
    at a time; what other operations a better implementation needs is unknown, so they are left out
    and the bound stays a bound.
    """
    read = sum(x.traffic.compulsory_read_bytes for x in facts.launches)
    read += sum(o.read_bytes for o in facts.operators)
    flops: dict[str, float] = {}
    for launch in facts.launches:
        used = 1 - masked_share(launch)
        for name, n in launch.counters.flops.items():
            if name.startswith("mma_"):
                flops[name] = flops.get(name, 0.0) + n * used
    for op in facts.operators:
        if operators.is_matrix(op.name):
            name = "mma_fp16" if op.dtype in {"float16", "bfloat16"} else "fp32"
            flops[name] = flops.get(name, 0.0) + op.flops
    return Compulsory(min(float(facts.input_bytes), float(read)), float(facts.output_bytes), flops)


def masked_share(launch: LaunchFacts) -> float:
    """The largest share of executions in which a select threw away a whole warp's values."""
    selects = [s for s in launch.counters.sites if s.kind == "select" and s.requests]
    return max((s.uniform_false / s.requests for s in selects), default=0.0)


def speed_of_light(spec: DeviceSpec, least: Compulsory, launches: int = 1) -> float:
    """The least time in µs: compulsory bytes at the measured ceiling or operations at the peak, one
    DRAM latency, and the launches' overhead.

    Written bytes count in full, as in `kopt.gpu.cachemodel`.
    """
    return float(lights(spec, least, perturbations(spec), launches)[0])


def lights(spec: DeviceSpec, least: Compulsory, rates: Rates, launches: int = 1) -> Draws:
    """The speed of light on every perturbed device."""
    moved = 1e6 * (least.read_bytes + least.write_bytes) / spec.dram_ceiling_bytes_per_s
    lanes = {
        "fp32": spec.fp32_lanes, "fp64": spec.fp64_lanes, "fp16": spec.fp16_lanes,
        "mma_tf32": spec.mma_tf32_fma, "mma_int8": spec.mma_int8_fma,
    }  # fmt: skip
    computed = [
        1e6 * n / (2 * lanes.get(name, spec.mma_fp16_fma) * spec.sms * spec.clock_hz)
        for name, n in least.flops.items()
    ]
    latency = 1e6 * spec.dram_latency_cycles / spec.clock_hz
    work = np.maximum(moved / rates.dram, max(computed, default=0.0) / rates.issue)
    fixed = launches * spec.launch_overhead_us / rates.launch + latency / rates.latency
    return np.asarray(fixed + work)
