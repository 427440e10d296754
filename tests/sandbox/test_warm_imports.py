"""The real worker, with torch and triton imported before the first job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kopt.gpu.errors import EnvironmentLacks
from kopt.sandbox import select
from kopt.sandbox.protocol import Job, Limits, Outcome, OutcomeStatus
from kopt.sandbox.warm import Settings, WarmSandbox

RunFile = Callable[..., tuple[Outcome, Path]]

TORCH = """
import sys
assert "torch" in sys.modules and "triton" in sys.modules
import torch

def entry(folder, request):
    torch.manual_seed(0)
    a = torch.randn(1024, 1024)
    torch.save(a @ a, folder / "product.pt")
    return {"threads": torch.get_num_threads(), "sum": float((a @ a).abs().sum()) > 0}
"""
TRITON = """
import sys
BEFORE = set(sys.modules)
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)

def entry(folder, request):
    source = triton.compiler.ASTSource(
        add, {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(3,): 128}
    )
    kernel = triton.compile(source, target=GPUTarget("cuda", 80, 32))
    imported = [name for name in set(sys.modules) - BEFORE if name.startswith(("torch", "triton"))]
    return {"forms": sorted(kernel.asm), "imported": imported}
"""
MEMORY = """
import torch

def entry(folder, request):
    return {"sum": float(torch.ones(1 << 30).sum())}
"""


@pytest.fixture(scope="module", params=["local", "bubblewrap"])
def warm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, quick: Settings
) -> Iterator[WarmSandbox]:
    root = tmp_path_factory.mktemp("root")
    settings = replace(quick, preload=Settings.preload)
    try:
        found = select.get(request.param, root, settings)
    except EnvironmentLacks as error:
        pytest.skip(error.message)
    assert isinstance(found, WarmSandbox)
    with found:
        yield found


def test_the_worker_has_one_thread(warm: WarmSandbox) -> None:
    """With more, a fork may leave a lock held for ever in the child."""
    for pid in warm.processes():
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1


def test_a_parallel_operator_runs_in_job_after_job(
    warm: WarmSandbox, run_file: RunFile, tmp_path: Path
) -> None:
    file = tmp_path / "torch_target.py"
    file.write_text(TORCH)
    for _ in range(3):
        outcome, folder = run_file(warm, file, Limits(wall_s=60))
        assert outcome.status is OutcomeStatus.OK, outcome
        assert outcome.answer["sum"]
        assert (folder / "product.pt").stat().st_size > 4 << 20


def test_triton_compiles_and_finds_its_cache_again(warm: WarmSandbox, tmp_path: Path) -> None:
    file = tmp_path / "triton_target.py"
    file.write_text(TRITON)
    cache = warm.root / "cache"
    ages = []
    for number in range(2):
        folder = warm.root / f"compile{number}"
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps({"file": str(file)}))
        outcome = warm.run(Job(folder, "call", readable=(file,), cache=cache))
        assert outcome.status is OutcomeStatus.OK, outcome
        assert {"ptx", "ttir", "cubin"} <= set(outcome.answer["forms"])  # type: ignore[arg-type]
        assert outcome.answer["imported"] == []  # the worker has it all
        ages.append({path: path.stat().st_mtime_ns for path in cache.rglob("*.ptx")})
    assert ages[0]
    assert ages[0] == ages[1]


def test_too_large_a_tensor_is_out_of_memory(
    warm: WarmSandbox, run_file: RunFile, tmp_path: Path
) -> None:
    file = tmp_path / "large.py"
    file.write_text(MEMORY)
    outcome, _ = run_file(warm, file, Limits(memory_bytes=1 << 30))
    assert outcome.status is OutcomeStatus.MEMORY
