"""The timing model: which term wins, what a perturbation may change, and what must not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kopt.gpu import timing
from kopt.gpu.counters import Site
from kopt.gpu.demand import demand, executed, loop_trips, needed_in_flight
from kopt.gpu.dominance import dominates
from kopt.gpu.facts import CallFacts, CompiledFacts, LaunchFacts, OperatorFacts, WarpPath
from kopt.gpu.perturb import perturbations
from kopt.gpu.spec import DeviceSpec, load_spec
from kopt.gpu.speed_of_light import Compulsory, compulsory, speed_of_light

MakeLaunch = Callable[..., LaunchFacts]
CallOf = Callable[..., CallFacts]


@pytest.fixture(scope="module")
def a100() -> DeviceSpec:
    return load_spec("a100")


def test_a_copy_runs_at_the_measured_ceiling(
    a100: DeviceSpec, make_launch: MakeLaunch, call_of: CallOf
) -> None:
    call = call_of(make_launch())
    found = timing.predict(a100, call)
    ideal = 1e6 * (2 << 26) / (a100.dram_bytes_per_s * a100.dram_efficiency)
    assert found.launches[0].bottleneck == "dram_bandwidth"
    assert ideal < found.time_us < 1.1 * ideal
    light = speed_of_light(a100, compulsory(call))
    assert light == pytest.approx(found.time_us, rel=0.02)
    assert light <= found.time_us
    assert found.low_us < found.time_us < found.high_us


def test_three_passes_take_twice_as_long_as_one(
    a100: DeviceSpec, make_launch: MakeLaunch, call_of: CallOf
) -> None:
    once, thrice = call_of(make_launch()), call_of(make_launch(dram=3.0))
    found = timing.ratio(a100, thrice, once)
    assert 1.9 < found.speedup < 2.0
    assert found.low > 1.5


def test_the_same_call_is_exactly_as_fast(
    a100: DeviceSpec, make_launch: MakeLaunch, call_of: CallOf
) -> None:
    call = call_of(make_launch(), make_launch(nbytes=1 << 20))
    assert timing.ratio(a100, call, call) == timing.Ratio(1.0, 1.0, 1.0, False)


def test_a_change_of_bottleneck_widens_the_interval(
    a100: DeviceSpec, make_launch: MakeLaunch, call_of: CallOf
) -> None:
    """DRAM against DRAM is certain; DRAM against issue is as uncertain as both rates."""
    base = call_of(make_launch(dram=2.0))
    heavy = make_launch()
    busy = replace(heavy.compiled, sass={**heavy.compiled.sass, "total": 400})
    alike = timing.ratio(a100, base, call_of(make_launch()))
    other = timing.ratio(a100, base, call_of(make_launch(compiled=busy)))
    assert alike.high / alike.low < 1.05
    assert other.high / other.low > 1.3


def test_perturbations_are_the_same_every_time_and_stay_in_their_box(a100: DeviceSpec) -> None:
    rates = perturbations(a100)
    assert np.array_equal(rates.dram, perturbations(a100).dram)
    for name in ("dram", "l2", "issue", "latency", "launch", "operator"):
        drawn, width = getattr(rates, name), getattr(a100, f"{name}_uncertainty")
        assert drawn[0] == 1.0
        assert drawn.min() == pytest.approx(1 - width)
        assert drawn.max() == pytest.approx(1 + width)
        assert abs(drawn[15:].mean() - 1) < 0.1 * width


@pytest.mark.parametrize(
    ("changes", "term"),
    [
        ({"traffic": {"l2_read_bytes": 1 << 30, "l1_wavefronts": 1 << 20}}, "l2_bandwidth"),
        ({"traffic": {"l1_wavefronts": 1 << 26}}, "l1_bandwidth"),
        ({"flops": {"mma_fp16": 10**14}}, "tensor_pipe"),
    ],
)
def test_the_term_that_is_asked_for_most_wins(
    a100: DeviceSpec, make_launch: MakeLaunch, changes: dict[str, object], term: str
) -> None:
    call = CallFacts("a100", (make_launch(**changes),), (), 0, 0, 0, 0)
    assert timing.predict(a100, call).launches[0].bottleneck == term


def site(kind: str, space: str, **changes: int) -> Site:
    """A million requests of full warps."""
    base = Site(9, "op", space, kind, 4, "k.py", 9, ("x",), 10**6, 32 * 10**6, 0, 0, 1)  # type: ignore[arg-type]
    return replace(base, **changes)


def test_bank_conflicts_and_atomics_cost(a100: DeviceSpec, make_launch: MakeLaunch) -> None:
    plain = make_launch()
    conflicts = make_launch(sites=(*plain.counters.sites, site("load", "shared",
                                                               wavefronts=10**8)))  # fmt: skip
    hot = make_launch(
        sites=(*plain.counters.sites, site("atomic", "global", sectors=10**6)),
        traffic={"atomic_hottest_requests": 10**6},
    )
    for launch, term in ((conflicts, "shared_memory"), (hot, "atomics")):
        call = CallFacts("a100", (launch,), (), 0, 0, 0, 0)
        assert timing.predict(a100, call).launches[0].bottleneck == term
    # One sector takes a million requests one after the other.
    assert demand(a100, hot).atomic_cycles == 10**6 * a100.atomic_cycles


def test_latency_is_the_path_of_one_cta_after_the_other(
    a100: DeviceSpec, make_launch: MakeLaunch, compiled_facts: CompiledFacts
) -> None:
    """One CTA per SM and a long path: time grows with the turns, and halves with two resident."""
    slow = replace(
        compiled_facts, ctas_per_sm=1, straight=WarpPath(1000, 50_000, 50_000, 50_000, {})
    )
    launch = make_launch(nbytes=16 * 128 * 1080, compiled=slow)
    call = CallFacts("a100", (launch,), (), 0, 0, 0, 0)
    found = timing.predict(a100, call).launches[0]
    assert found.bottleneck == "latency"
    assert found.time_us == pytest.approx(10 * 50_000 * 1e6 / a100.clock_hz, rel=0.05)
    two = replace(launch, compiled=replace(slow, ctas_per_sm=2))
    faster = timing.predict(a100, replace(call, launches=(two,))).launches[0]
    assert faster.time_us == pytest.approx(found.time_us / 2, rel=0.05)


def test_littles_law(a100: DeviceSpec) -> None:
    per_sm = a100.dram_bytes_per_s * a100.dram_efficiency / a100.sms
    assert needed_in_flight(a100) == pytest.approx(
        per_sm * a100.dram_latency_cycles / a100.clock_hz
    )


def test_one_more_cta_than_fit_costs_a_turn(a100: DeviceSpec, make_launch: MakeLaunch) -> None:
    per_wave = 8 * a100.sms
    full = demand(a100, make_launch(nbytes=16 * 128 * per_wave))
    spilt = demand(a100, make_launch(nbytes=16 * 128 * (per_wave + 1)))
    assert (full.busiest_turns, full.imbalance) == (1, 1.0)
    assert spilt.busiest_turns == 2
    assert spilt.imbalance == pytest.approx(9 / 8, rel=0.01)


def test_loops_turn_as_often_as_their_memory_instructions_say(make_launch: MakeLaunch) -> None:
    """ptxas unrolled the loop by four: 40 loads a warp are 10 trips, and unrolling cancels out."""
    launch = make_launch()
    unrolled = replace(
        launch.compiled,
        sass={"total": 130, "anchors": 5, "ldg": 4, "stg": 1, "pipe_fma": 48},
        sass_loop={"total": 120, "anchors": 4, "ldg": 4, "pipe_fma": 40},
    )
    warps = 4 * launch.counters.ctas
    looping = replace(
        launch,
        compiled=unrolled,
        counters=replace(
            launch.counters, instructions={"global_load": 40 * warps, "global_store": warps}
        ),
    )
    assert loop_trips(looping) == (1.0, 10.0)
    assert executed(looping, "total") == warps * (10 + 10 * 120)
    assert executed(looping, "pipe_fma") == warps * (8 + 10 * 40)


def test_spills_that_leave_the_l1_load_the_l2(
    a100: DeviceSpec, make_launch: MakeLaunch, compiled_facts: CompiledFacts
) -> None:
    """1024 resident threads that spill 64 bytes fit the L1; 1600 bytes each do not, nor the L2."""
    clean = demand(a100, make_launch(compiled=compiled_facts))
    sass = {**compiled_facts.sass, "ldl": 1, "stl": 1}
    little, much = (
        demand(a100, make_launch(compiled=replace(
            compiled_facts, sass=sass, spill_load_bytes=n, spill_store_bytes=n)))
        for n in (64, 1600)
    )  # fmt: skip
    assert little.l2_bytes == clean.l2_bytes
    assert little.sm_cycles["l1_bandwidth"] > clean.sm_cycles["l1_bandwidth"]
    assert much.l2_bytes > 10 * clean.l2_bytes
    assert much.dram_bytes > clean.dram_bytes


def test_dominance_needs_nothing_worse(
    a100: DeviceSpec, make_launch: MakeLaunch, call_of: CallOf
) -> None:
    base = call_of(make_launch(dram=2.0))
    better = make_launch()
    assert dominates(a100, base, call_of(better))
    assert not dominates(a100, base, base)
    worse = [
        make_launch(traffic={"l1_wavefronts": 1 << 22}),
        make_launch(compiled=replace(better.compiled, spill_load_bytes=4)),
        make_launch(compiled=replace(better.compiled, ctas_per_sm=4)),
        make_launch(barriers=1),
    ]
    for launch in worse:
        assert not dominates(a100, base, call_of(launch))
    assert not dominates(a100, base, call_of(better, make_launch(nbytes=1 << 12)))


def test_launches_syncs_and_copies_are_paid(
    a100: DeviceSpec, make_launch: MakeLaunch, call_of: CallOf
) -> None:
    small = make_launch(nbytes=1 << 12)
    one = timing.predict(a100, call_of(small)).time_us
    three = timing.predict(a100, call_of(small, small, small)).time_us
    assert three == pytest.approx(3 * one)
    assert one > a100.launch_overhead_us
    waiting = call_of(small, synchronisations=2, host_copy_bytes=22_000_000)
    assert timing.predict(a100, waiting).host_us == pytest.approx(2 * 8.0 + 1000.0)


def test_the_speed_of_light_counts_compulsory_work_only(a100: DeviceSpec) -> None:
    matrix = Compulsory(3 * 2 * 4096**2, 0, {"mma_fp16": 2 * 4096**3})
    fixed = a100.launch_overhead_us + 1e6 * a100.dram_latency_cycles / a100.clock_hz
    assert speed_of_light(a100, matrix) - fixed == pytest.approx(2 * 4096**3 / 312e6, rel=0.01)
    bytes_only = replace(matrix, flops={})
    assert speed_of_light(a100, bytes_only) < speed_of_light(a100, matrix)


def test_discarded_tiles_are_not_compulsory(make_launch: MakeLaunch, call_of: CallOf) -> None:
    half = site("select", "", uniform_false=500_000)
    launch = make_launch(flops={"mma_f16": 1000}, sites=(half,))
    assert compulsory(call_of(launch)).flops == {"mma_f16": 500.0}


def test_an_operator_without_a_kernel_is_a_roofline(a100: DeviceSpec) -> None:
    op = OperatorFacts(0, "aten.add.Tensor", "float32", 2 << 26, 1 << 26, 1 << 24, (1 << 24,))
    found = timing.predict(a100, CallFacts("a100", (), (op,), 0, 0, 0, 0)).operators[0]
    ceiling = 1e6 * (3 << 26) / (a100.dram_bytes_per_s * a100.dram_efficiency)
    assert found.time_us == pytest.approx(ceiling / 0.70 + a100.launch_overhead_us)
    assert not found.bound
