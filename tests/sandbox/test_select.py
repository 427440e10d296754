"""Which backend is taken, and what is said when one does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from kopt.gpu.errors import EnvironmentLacks, UsageError
from kopt.sandbox import select
from kopt.sandbox.warm import Settings


def put_bwrap_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """A PATH whose only `bwrap` is this script, or that has none."""
    folder.mkdir()
    if script is not None:
        (folder / "bwrap").write_text(script)
        (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_an_unknown_name_lists_the_known(tmp_path: Path, quick: Settings) -> None:
    with pytest.raises(UsageError, match="jail") as caught:
        select.get("jail", tmp_path, quick)
    assert "auto, bubblewrap, local" in caught.value.hint


def test_a_missing_bubblewrap_names_the_command(
    tmp_path: Path, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bwrap_on_path(tmp_path / "bin", monkeypatch, None)
    with pytest.raises(EnvironmentLacks, match="not installed") as caught:
        select.get("bubblewrap", tmp_path, quick)
    assert "apt-get install bubblewrap" in caught.value.hint
    assert caught.value.exit_code == 5
    assert select.auto(tmp_path, quick).name == "local"


def test_a_bubblewrap_that_is_there_but_does_not_work_is_not_taken(
    tmp_path: Path, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that forbids namespaces."""
    script = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    put_bwrap_on_path(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(EnvironmentLacks, match="No permissions to create new namespace"):
        select.get("bubblewrap", tmp_path, quick)
    assert select.auto(tmp_path, quick).name == "local"


def test_a_bubblewrap_that_isolates_nothing_is_not_taken(
    tmp_path: Path, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs the command and drops every option; an ordinary process then lacks the rights."""
    script = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    put_bwrap_on_path(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(EnvironmentLacks, match="bubblewrap sandbox does not work here"):
        select.get("bubblewrap", tmp_path, quick)


def test_auto_takes_bubblewrap_where_it_works(tmp_path: Path, quick: Settings) -> None:
    try:
        strongest = select.get("bubblewrap", tmp_path, quick)
    except EnvironmentLacks as error:
        pytest.skip(error.message)
    assert select.auto(tmp_path, quick).name == strongest.name == "bubblewrap"


def test_a_probe_leaves_nothing_behind(tmp_path: Path, quick: Settings) -> None:
    select.auto(tmp_path, quick)
    assert list(tmp_path.iterdir()) == []
