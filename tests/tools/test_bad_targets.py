"""A target that fails by itself is one clear sentence with the line, and the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kopt.gpu.errors import KoptError
from kopt.gpu.spec import load_spec
from kopt.sandbox import select
from kopt.tools.session import Session
from kopt.tools.target import load_target

from .conftest import SECRET, TARGETS

BAD = {
    "import_error": ("import torch\n", "import torch\nimport no_such_module\n", 4,
                     ("ModuleNotFoundError", "no_such_module", "double.py:4")),
    "make_inputs_raises": ("return (torch.randn(", "return (torch.rand_n(", 4,
                           ("make_inputs", "rand_n")),
    "host_inputs": ('device="cuda"', 'device="cpu"', 4, ("no device tensor",)),
    "inputs_too_large_for_the_gpu": ("n_elements=4096", "n_elements=1 << 36", 5, ("memory",)),
    "kernel_does_not_compile": ("2.001 *", "undefined *", 4, ("CompilationError", "undefined")),
    "entry_raises": ("    out = torch", "    raise ValueError('no such luck')\n    out = torch", 4,
                     ("no such luck", "double.py:")),
    "host_result": ("    return out\n", "    return out.cpu()\n", 4, ("host tensor",)),
    "entry_exits": ("    out = torch", "    import os; os._exit(0)\n    out = torch", 4,
                    ("ended",)),
    "reference_raises": ("return 2 * x", "return x.no_such_method()", 4, ("no_such_method",)),
    "reference_of_another_shape": ("return 2 * x", "return 2 * x[:5]", 4, ("shape",)),
    "wrong": ("2.001", "2.002", 4, ("own reference",)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_target(name: str, tmp_path: Path) -> None:
    old, new, code, words = BAD[name]
    source = (TARGETS / "wrong.py").read_text()
    assert old in source
    file = tmp_path / "double.py"
    file.write_text(source.replace("2.001", "2.0").replace(old.replace("2.001", "2.0"), new, 1))
    root = tmp_path / "root"
    (root / "work").mkdir(parents=True)
    sandbox = select.get("local", root)
    session = Session(load_target(file), load_spec("a100"), sandbox, root / "work", SECRET)
    try:
        with pytest.raises(KoptError) as caught:
            session.baseline(tmp_path / "baseline")
    finally:
        session.close()
    assert caught.value.exit_code == code, str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint
    assert "Traceback" not in str(caught.value)
