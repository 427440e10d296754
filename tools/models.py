"""The vocabulary: one frozen model for each word of the product. Units are in the names."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Model(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(StrEnum):
    """Where a number comes from; it is shown wherever the number is."""

    COUNTED = "counted"
    """By executing the compiled PTX."""
    COMPILED = "compiled"
    """Read from the cubin."""
    MEASURED = "measured"
    """A hardware counter or a clock."""
    DERIVED = "derived"
    """Arithmetic on the above, or counts scaled from sampled CTAs."""
    PREDICTED = "predicted"
    """By the timing model."""


class Workload(Model):
    """One input case of a target."""

    name: str
    params: dict[str, JsonValue] = {}
    """Keyword arguments of `make_inputs`."""
    law: str = "as_given"
    """How float tensors are filled: `as_given`, `normal`, `heavy_tail`, …"""
    seed: int = 0


class Target(Model):
    """The kernel to optimize, as recognised without running it."""

    file: str
    """Absolute path; the file is never edited."""
    source: str
    language: Literal["triton", "pytorch"]
    entry: str
    """Name of the public function whose calls are compared."""
    reference: str | None = None
    """Name of the reference function; None: the original entry is the reference."""
    workloads: tuple[Workload, ...]
    laws: tuple[str, ...] | None = None
    """The target's own `LAWS`, if it has them."""
    sidecar: str | None = None
    """Path of `NAME.kopt.py`, if there is one; its source is appended when the target runs."""
    sidecar_source: str | None = None
    kernels: tuple[str, ...] = ()
    """Names of the `@triton.jit` functions that the entry launches, as far as can be seen."""


class Effect(Model):
    """What a change is predicted to do to one metric, or what it was seen to do."""

    metric: str
    before: float | None = None
    after: float | None = None
    direction: Literal["down", "up", "same"] = "down"
    sentence: str = ""


class Candidate(Model):
    """One proposed rewrite: a whole file."""

    id: str
    """First 12 hex digits of the sha256 of `source`."""
    source: str
    parent: str | None = None
    technique: str
    """Name of the rewrite, e.g. `row_in_one_block`."""
    rationale: str
    evidence: tuple[str, ...] = ()
    """Sentences with the numbers that call for it."""
    predicted: tuple[Effect, ...] = ()
    conditions: str = ""
    """Under which conditions the advice holds."""


class VerdictStatus(StrEnum):
    """Is a candidate right? Everything but `pass` is a negative answer, not an error."""

    PASS = "pass"
    COMPILE_ERROR = "compile_error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    MISMATCH = "mismatch"
    MEMORY_ERROR = "memory_error"
    RACE = "race"
    CHEAT = "cheat"
    UNJUDGED = "unjudged"


class CaseResult(Model):
    """One verified case: a workload with a law."""

    case: str
    status: VerdictStatus
    detail: str = ""
    error_rms: float | None = None
    """Candidate's relative RMS error against the fp64 oracle, worst output."""
    reference_error_rms: float | None = None
    error_max: float | None = None
    reference_error_max: float | None = None


class Verdict(Model):
    """Is it right, with the evidence."""

    status: VerdictStatus
    summary: str
    cases: tuple[CaseResult, ...] = ()
    skipped: tuple[str, ...] = ()
    """Cases that the reference refused or that made it non-finite, with the reason."""
    evidence: tuple[str, ...] = ()


class Measurement(Model):
    """A time of one whole entry call on one workload."""

    workload: str
    time_us: float
    low_us: float
    high_us: float
    provenance: Provenance
    samples: int = 1
    minimum_detectable_effect: float | None = None
    """As a ratio above 1; None where it has no meaning."""
    coverage: float = 1.0
    """Share of the CTAs that were counted."""
    terms: dict[str, float] = {}
    """Parts of the time in µs by resource, as the timing model sees them."""


class ComparisonStatus(StrEnum):
    """Whole entry calls on one workload, candidate against baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class Comparison(Model):
    """The ratio baseline time / candidate time with its interval; above 1 is faster."""

    workload: str
    status: ComparisonStatus
    speedup: float
    speedup_low: float
    speedup_high: float
    provenance: Provenance
    dominated: bool = False
    """No cost counter rises: a prediction holds whatever the device rates are."""


class Metric(Model):
    """One number with its unit, provenance and meaning."""

    name: str
    value: float
    unit: str
    provenance: Provenance
    sentence: str = ""
    """What this value means for this kernel."""


class LaunchProfile(Model):
    """Metrics of one launch, keyed by (ordinal, kernel, grid)."""

    ordinal: int
    kernel: str
    grid: tuple[int, int, int]
    threads_per_cta: int
    time_us: float
    metrics: tuple[Metric, ...]
    hot_lines: tuple[str, ...] = ()
    """`file:line` of the costliest memory sites with what they cost."""
    coverage: float = 1.0


class OperatorProfile(Model):
    """A PyTorch operator that launches no kernel of ours: a roofline time."""

    ordinal: int
    operator: str
    time_us: float
    bytes: int
    flops: int
    bound: bool
    """True: the time is a lower bound, not an estimate with a measured library efficiency."""


class Profile(Model):
    """Everything that was counted, compiled and predicted for one entry call."""

    workload: str
    gpu: str
    time_us: float
    launches: tuple[LaunchProfile, ...]
    operators: tuple[OperatorProfile, ...] = ()
    peak_memory_bytes: int = 0


class Headroom(Model):
    """How far the call is from the least work that its reference needs."""

    speed_of_light_us: float
    """Compulsory bytes and operations at measured ceilings, latency and launch included."""
    ratio: float
    """Predicted time over speed of light."""
    exceeds_interval: bool
    """False: no possible gain is larger than the model's own uncertainty."""


class Diagnosis(Model):
    """What limits the call, and the numbers that say so."""

    workload: str
    bottleneck: str
    """One of `dram_bandwidth`, `l2_bandwidth`, `latency`, `shared_memory`, `issue`, `fp32_pipe`,
    `tensor_pipe`, `sfu_pipe`, `int_pipe`, `atomics`, `launch_overhead`, `tail`, `operators`."""
    kernel: str | None
    """The launch that takes most of the time, None when operators do."""
    evidence: tuple[str, ...]
    """Sentences with numbers, the most telling first."""
    metrics: tuple[Metric, ...]
    """At most 25, each interpreted."""
    headroom: Headroom
    unseen: tuple[str, ...] = ()
    """What the model cannot see."""


class Guidance(Model):
    """One logged advice with its outcome."""

    candidate: str
    technique: str
    evidence: tuple[str, ...]
    change: str
    predicted: tuple[Effect, ...]
    observed: tuple[Effect, ...]
    """On a virtual GPU: counters, never times."""
    verdict: VerdictStatus
    comparison: tuple[Comparison, ...] = ()
    bottleneck_after: str | None = None
    conditions: str = ""


class Evaluation(Model):
    """What the judge found out about a candidate, or about the target itself.

    The tables have one row per workload, in the target's order; they are empty where the verdict
    is not `pass`, and `comparisons` for the target itself.
    """

    candidate: str
    """Its id; `baseline` for the target itself."""
    full: bool
    """True: every law and held-out shape was judged; False: the quick check of the search."""
    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    profiles: tuple[Profile, ...] = ()


class RunStatus(StrEnum):
    """How a run ended. `improved` is measured; `predicted_improved` is not."""

    IMPROVED = "improved"
    PREDICTED_IMPROVED = "predicted_improved"
    NO_GAIN = "no_gain"
    NO_HEADROOM = "no_headroom"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"


class Budget(Model):
    """What a run may spend; None is no limit."""

    wall_s: float | None = 60.0
    candidates: int | None = 64
    iterations: int | None = 16
    tokens: int | None = None
    dollars: float | None = None


class Spent(Model):
    """What a run has spent."""

    wall_s: float = 0.0
    candidates: int = 0
    iterations: int = 0
    tokens: int = 0
    dollars: float = 0.0


class SandboxInfo(Model):
    """Which backend ran untrusted code, and what it does and does not contain."""

    backend: str
    isolation: tuple[str, ...] = Field(default=())
    lacks: tuple[str, ...] = ()
