"""A judge over the real sandbox and the real device process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kopt.gpu.spec import load_spec
from kopt.sandbox import select
from kopt.tools.session import Session
from kopt.tools.target import load_target

TARGETS = Path(__file__).parent / "targets"
SECRET = bytes(range(32))

Open = Callable[[str], Session]


@pytest.fixture(scope="module")
def open_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Sessions on files of `targets/` by name; each is opened once and closed at the end."""
    opened: dict[str, Session] = {}

    def open_one(name: str) -> Session:
        if name not in opened:
            root = tmp_path_factory.mktemp("judge")
            work = root / "work"
            work.mkdir()
            sandbox = select.get("local", root)
            target = load_target(TARGETS / name)
            opened[name] = Session(target, load_spec("a100"), sandbox, work, SECRET)
        return opened[name]

    yield open_one
    for session in opened.values():
        session.close()
