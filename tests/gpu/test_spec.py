"""Device facts: what is there, what a user's file may say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kopt.gpu.errors import UsageError
from kopt.gpu.spec import FOLDER, list_specs, load_spec


def test_the_shipped_devices_reach_their_datasheets() -> None:
    """Lanes, SMs and clock give the published peaks, in TFLOP/s: fp32, then dense fp16 tensor."""
    published = {
        "a100": (19.5, 312), "a100_40gb": (19.5, 312), "a10g": (35, 70), "rtx_a6000": (38.7, 154.8),
        "h100_sxm": (62, 989), "h200": (67, 1070),
    }  # fmt: skip
    for spec in list_specs():
        per_lane = 2 * spec.sms * spec.clock_hz / 1e12
        fp32, tensor = published[spec.name]
        assert per_lane * spec.fp32_lanes == pytest.approx(fp32, rel=0.01)
        assert per_lane * spec.mma_fp16_fma == pytest.approx(tensor, rel=0.01)
    assert {s.name for s in list_specs()} == set(published)


@pytest.mark.parametrize("name", ["a6000", "RTX_A6000", "rtx-a6000"])
def test_names_and_aliases(name: str) -> None:
    assert load_spec(name).name == "rtx_a6000"


def test_every_device_fact_has_a_source() -> None:
    """Each block of a spec begins with or carries a comment that says where it is from."""
    for path in FOLDER.glob("*.toml"):
        for block in path.read_text(encoding="utf-8").split("\n\n")[1:]:
            assert "#" in block or block.startswith("sources"), (path.name, block)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UsageError, match="a1000") as caught:
        load_spec("a1000")
    assert "did you mean 'a100'" in caught.value.hint
    assert "h100_sxm" in caught.value.hint


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    text = (FOLDER / "a100.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("sms = 108", "sms = 12"), encoding="utf-8")
    assert load_spec(str(mine)).sms == 12


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sms = 108", "smss = 108", "unknown key 'smss'"),
        ("sms = 108", "", "missing sms"),
        ("sms = 108", 'sms = "many"', "'sms' must be int"),
        ("sms = 108", "sms = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (FOLDER / "a100.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        load_spec(str(mine))
