"""What a rewrite is: evidence in, proposals out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from kopt.agent.playbook.ttir import Module, parse
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.trace import Kernel, Launch, Trace
from kopt.tools.models import Diagnosis, Effect


@dataclass(frozen=True)
class KernelEvidence:
    """One launch of the call: its compiled forms, its counters, and where the host launched it."""

    launch: LaunchFacts
    event: Launch
    kernel: Kernel

    @cached_property
    def ttir(self) -> Module:
        """The kernel's Triton IR as a graph."""
        return parse(self.kernel.ttir)


@dataclass(frozen=True)
class CallEvidence:
    """Everything that is known about one workload of the code to be improved."""

    source: str
    """The whole file."""
    file: str
    """The path under which the traced code ran; kernels and launches name it."""
    entry: str
    spec: DeviceSpec
    facts: CallFacts
    trace: Trace
    diagnosis: Diagnosis
    launches: tuple[KernelEvidence, ...]
    """In order."""

    @cached_property
    def ranked(self) -> tuple[KernelEvidence, ...]:
        """The launches, the ones that move and execute most first; one for each kernel."""
        from kopt.gpu.timing import predict

        times = {t.ordinal: t.time_us for t in predict(self.spec, self.facts).launches}
        best: dict[str, KernelEvidence] = {}
        for item in sorted(self.launches, key=lambda k: -times.get(k.launch.ordinal, 0.0)):
            best.setdefault(item.kernel.name, item)
        return tuple(best.values())


@dataclass(frozen=True)
class Proposal:
    """One rewritten file and why."""

    technique: str
    source: str
    rationale: str
    evidence: tuple[str, ...]
    """Sentences with numbers."""
    predicted: tuple[Effect, ...] = field(default=())
    conditions: str = ""


class Rewrite(Protocol):
    """One rewrite of the playbook."""

    name: str

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """Rewritten files; empty where its precondition does not hold."""


def call_evidence(
    *,
    source: str,
    file: str,
    entry: str,
    spec: DeviceSpec,
    facts: CallFacts,
    trace: Trace,
    diagnosis: Diagnosis,
) -> CallEvidence:
    """Join a call's facts with the trace that they came from."""
    launched = [event for event in trace.events if isinstance(event, Launch)]
    launches = tuple(
        KernelEvidence(launch, event, trace.kernels[event.kernel])
        for launch, event in zip(facts.launches, launched, strict=True)
    )
    return CallEvidence(source, file, entry, spec, facts, trace, diagnosis, launches)
