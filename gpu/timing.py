"""Predicted times from counted work. Every result here has provenance `predicted`.

A launch takes its overhead plus a smooth maximum (p-norm) of bounds: issue slots, each pipe, the
L1's data stage, L2, DRAM, atomics, and latency. Latency is the time in which the CTAs of one slot,
one after the other, walk their SASS alone (`kopt.gpu.sass`): Little's law, term by term. `tail` is
what the busiest SM costs over the average one.

Every time is computed on a set of perturbed devices at once (`kopt.gpu.perturb`); the first of them
is the device as specified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kopt.gpu import operators
from kopt.gpu.demand import Demand, bytes_in_flight, demand
from kopt.gpu.dominance import dominates
from kopt.gpu.facts import CallFacts, LaunchFacts, OperatorFacts
from kopt.gpu.perturb import Draws, Rates, perturbations
from kopt.gpu.spec import DeviceSpec


@dataclass(frozen=True)
class LaunchTime:
    """One launch: its time and the bounds it was made of, in µs."""

    ordinal: int
    kernel: str
    time_us: float
    terms: dict[str, float]
    waves: float
    bytes_in_flight: float
    """Per SM, when its warps wait for loads."""

    @property
    def bottleneck(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: self.terms[name])


@dataclass(frozen=True)
class OperatorTime:
    """One PyTorch operator: a roofline."""

    ordinal: int
    name: str
    time_us: float
    bound: bool
    """True: a lower bound; False: an estimate with a library's measured efficiency."""
    source: str = ""


@dataclass(frozen=True)
class Prediction:
    """One entry call whose launches follow each other in one stream."""

    time_us: float
    low_us: float
    """The range over the perturbed devices."""
    high_us: float
    launches: tuple[LaunchTime, ...]
    operators: tuple[OperatorTime, ...]
    host_us: float
    """Copies from the host and synchronisations."""


@dataclass(frozen=True)
class Ratio:
    """Baseline time over candidate time; above 1 the candidate is faster."""

    speedup: float
    low: float
    high: float
    dominated: bool
    """No cost counter of the candidate is higher, no spills are new, as many bytes are in flight,
    and something is cheaper: faster whatever the rates are."""


def predict(spec: DeviceSpec, facts: CallFacts) -> Prediction:
    """The time of one entry call, with its range."""
    rates = perturbations(spec)
    launches = [_launch(spec, launch, rates) for launch in facts.launches]
    ops = [_operator(spec, op, rates) for op in facts.operators]
    host = _host_us(spec, facts)
    total = totals(spec, facts, rates)
    return Prediction(
        float(total[0]),
        float(total.min()),
        float(total.max()),
        tuple(_launch_time(spec, f, us, terms) for f, (us, terms) in
              zip(facts.launches, launches, strict=True)),
        tuple(ops_time for ops_time, _ in ops),
        host,
    )  # fmt: skip


def interval(spec: DeviceSpec, facts: CallFacts) -> tuple[float, float]:
    """The range of the predicted time over all perturbed devices, in µs."""
    total = totals(spec, facts, perturbations(spec))
    return float(total.min()), float(total.max())


def ratio(spec: DeviceSpec, baseline: CallFacts, candidate: CallFacts) -> Ratio:
    """The speed-up and its range when each device rate is perturbed alike for both arms."""
    rates = perturbations(spec)
    ratios = totals(spec, baseline, rates) / totals(spec, candidate, rates)
    return Ratio(
        float(ratios[0]),
        float(ratios.min()),
        float(ratios.max()),
        dominates(spec, baseline, candidate),
    )


def totals(spec: DeviceSpec, facts: CallFacts, rates: Rates) -> Draws:
    """The call's time on every perturbed device, in µs."""
    total = np.full_like(rates.dram, _host_us(spec, facts))
    for launch in facts.launches:
        total = total + _launch(spec, launch, rates)[0]
    for op in facts.operators:
        total = total + _operator(spec, op, rates)[1]
    return np.maximum(total, 0.01)


def _host_us(spec: DeviceSpec, facts: CallFacts) -> float:
    copied = facts.host_copy_bytes + facts.device_read_bytes
    return 1e6 * copied / spec.host_copy_bytes_per_s + spec.synchronise_us * facts.synchronisations


def _launch(spec: DeviceSpec, launch: LaunchFacts, rates: Rates) -> tuple[Draws, dict[str, Draws]]:
    """Time and terms of a launch on every perturbed device."""
    asked = demand(spec, launch)
    even = _bounds(spec, asked, rates, balanced=True)
    busiest = _bounds(spec, asked, rates, balanced=False)
    overhead = spec.launch_overhead_us / rates.launch
    base, whole = _combine(even, rates), _combine(busiest, rates)
    terms = {**even, "tail": whole - base, "launch_overhead": overhead}
    return whole + overhead, terms


def _combine(bounds: dict[str, Draws], rates: Rates) -> Draws:
    if not bounds:
        return np.zeros_like(rates.dram)
    stacked = np.stack(list(bounds.values()))
    largest = stacked.max(axis=0)
    scaled = (stacked / largest) ** rates.overlap
    return np.asarray(largest * scaled.sum(axis=0) ** (1 / rates.overlap))


def _bounds(spec: DeviceSpec, asked: Demand, rates: Rates, *, balanced: bool) -> dict[str, Draws]:
    cycle_us = 1e6 / spec.clock_hz
    uneven = 1.0 if balanced else asked.imbalance
    found = {
        name: cycles * uneven * cycle_us / rates.issue for name, cycles in asked.sm_cycles.items()
    }
    share = spec.sms / asked.sms_used if not balanced else 1.0
    per_sm = spec.l2_bytes_per_cycle_per_sm * spec.sms * spec.clock_hz
    found["l2_bandwidth"] = (
        1e6 * asked.l2_bytes / rates.l2 * max(1 / spec.l2_bytes_per_s, share / per_sm)
    )
    fill = cycle_us * spec.dram_latency_cycles / rates.latency
    found["dram_bandwidth"] = (asked.dram_bytes > 0) * (
        fill + 1e6 * asked.dram_bytes / (spec.dram_ceiling_bytes_per_s * rates.dram)
    )
    found["atomics"] = asked.atomic_cycles * cycle_us / rates.l2
    turns = asked.turns if balanced else max(asked.turns, float(asked.busiest_turns))
    found["latency"] = (
        turns
        * cycle_us
        * (asked.path_issue_cycles / rates.issue + asked.path_wait_cycles / rates.latency)
    )
    return {name: np.asarray(us) for name, us in found.items() if float(us[0]) > 0}


def _launch_time(
    spec: DeviceSpec, launch: LaunchFacts, us: Draws, terms: dict[str, Draws]
) -> LaunchTime:
    resident = max(1, launch.compiled.ctas_per_sm) * spec.sms
    return LaunchTime(
        launch.ordinal,
        launch.kernel,
        float(us[0]),
        {name: float(value[0]) for name, value in terms.items() if float(value[0]) > 0},
        launch.counters.ctas / resident,
        bytes_in_flight(spec, launch),
    )


def _operator(spec: DeviceSpec, op: OperatorFacts, rates: Rates) -> tuple[OperatorTime, Draws]:
    asked = operators.work(spec, op)
    dram = asked.dram_us / (rates.dram * rates.operator)
    compute = asked.compute_us / (rates.issue * rates.operator)
    us = np.maximum(dram, compute)
    if op.read_bytes + op.write_bytes + op.flops:
        us = us + spec.launch_overhead_us / rates.launch
    return OperatorTime(op.ordinal, op.name, float(us[0]), asked.bound, asked.source), us
