"""Where options come from, and what happens to unknown ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kopt.config import load
from kopt.gpu.errors import UsageError


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KOPT_GPU", raising=False)


def project(tmp_path: Path, text: str) -> Path:
    (tmp_path / "pyproject.toml").write_text(text)
    return tmp_path


def test_flag_beats_variable_beats_project_beats_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "home" / "kopt"
    user.mkdir(parents=True)
    (user / "config.toml").write_text('gpu = "h200"\nbudget_s = 5.0\n')
    start = project(tmp_path, '[tool.kopt]\ngpu = "a10g"\n')
    assert load({}, start).gpu == "a10g"
    assert load({}, start).budget_s == 5.0
    monkeypatch.setenv("KOPT_GPU", "rtx_a6000")
    assert load({}, start).gpu == "rtx_a6000"
    assert load({"gpu": "a100"}, start).gpu == "a100"
    assert load({"gpu": None}, start).gpu == "rtx_a6000"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[tool.kopt]\ngpo = 1\n", ("gpo", "gpu")),
        ("[tool.kopt]\nbudget_s = 'long'\n", ("budget_s", "long")),
        ("[tool.kopt]\nsandbox = 'jail'\n", ("sandbox", "jail")),
        ("[tool\n", ("pyproject.toml",)),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        load({}, project(tmp_path, text))
    assert all(name in str(caught.value) for name in names)
