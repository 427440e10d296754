"""Reading what a hostile process left."""

from __future__ import annotations

import os
from pathlib import Path

from kopt.sandbox import folder


def nest(where: Path, depth: int) -> None:
    """Folders inside each other, deeper than any path can name."""
    start = Path.cwd()
    os.chdir(where)
    for _ in range(depth):
        Path("d" * 100).mkdir()
        os.chdir("d" * 100)
    Path("file").write_text("x")
    os.chdir(start)


def test_the_deepest_tree_is_deleted(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    nest(tree, 3000)
    (tree / ".1.0").mkdir()
    (tree / "file").symlink_to("/")
    folder.remove(tree)
    assert list(tmp_path.iterdir()) == []
    folder.remove(tree)  # missing is fine


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "fine").write_text("y")
    assert folder.clean(inside) == ("link",)
    folder.remove(inside)
    assert (outside / "kept").read_text() == "x"


def test_only_plain_bounded_files_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(plain)
    assert folder.read_bounded(plain, 5) == b"12345"
    assert folder.read_bounded(plain, 4) is None
    for name in ("pipe", "link", "missing", "."):
        assert folder.read_bounded(tmp_path / name, 100) is None


def test_the_stage_is_one_printable_word(tmp_path: Path) -> None:
    assert folder.read_stage(tmp_path) == ""
    (tmp_path / "stage").write_bytes(b"entry\x1b[2J\xff\n")
    assert folder.read_stage(tmp_path) == "entry[2J\ufffd"


def test_names_that_are_no_text_are_told_printably(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\x1b")).symlink_to("/")
    assert folder.clean(tmp_path) == ("\\udcff\\x1b",)
