"""The vocabulary: at most 25 words, each explained, and no prediction under a counter's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kopt.gpu import metrics, timing
from kopt.gpu.facts import CallFacts, LaunchFacts
from kopt.gpu.spec import load_spec
from kopt.gpu.vocabulary import VOCABULARY

MakeLaunch = Callable[..., LaunchFacts]


def measured(launch: LaunchFacts) -> dict[str, metrics.MetricValue]:
    """All metrics of a launch on an A100."""
    spec = load_spec("a100")
    time = timing.predict(spec, CallFacts("a100", (launch,), (), 0, 0, 0, 0)).launches[0]
    return {m.name: m for m in metrics.measure(spec, launch, time)}


def test_the_documented_table_is_the_vocabulary() -> None:
    """Regenerate with `python -m kopt.gpu.metrics > docs/metrics.md`."""
    document = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert document.read_text(encoding="utf-8") == metrics.table()


def test_few_words_and_no_prediction_under_a_counters_name() -> None:
    names = [k.name for k in VOCABULARY]
    assert len(names) == len(set(names)) <= 25
    for kind in VOCABULARY:
        assert "__" not in kind.name
        if kind.provenance == "predicted":
            assert not kind.hardware
            assert not kind.hopper


def test_every_value_has_a_sentence(make_launch: MakeLaunch) -> None:
    empty = make_launch(nbytes=0, sites=(), instructions={}, opcodes={}, flops={})
    for launch in (make_launch(), make_launch(dram=3.0), empty):
        for metric in measured(launch).values():
            assert metric.sentence
            assert "\n" not in metric.sentence


def test_values_of_a_copy(make_launch: MakeLaunch) -> None:
    found = measured(make_launch())
    assert found["dram_bytes"].value == 2 << 26
    assert found["global_load_sectors_per_request"].value == 16
    assert found["dram_read_over_compulsory"].sentence == "every byte comes from DRAM once"
    assert found["waves"].value == (1 << 26) / (16 * 128) / (8 * 108)
    # 20 SASS instructions for each warp.
    assert found["warp_instructions"].value == 20 * 4 * (1 << 26) / (16 * 128)
    thrice = measured(make_launch(dram=3.0))
    assert "3.00 times" in thrice["dram_read_over_compulsory"].sentence


def test_a_sample_is_derived(make_launch: MakeLaunch) -> None:
    whole = make_launch()
    part = replace(whole, counters=replace(whole.counters, ctas_counted=7))
    assert measured(whole)["fp32_flops"].provenance == "counted"
    assert measured(part)["fp32_flops"].provenance == "derived"
    assert measured(part)["registers_per_thread"].provenance == "compiled"
