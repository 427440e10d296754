"""Files are recognised without being run, and what is no target says why and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kopt.gpu.errors import KoptError, UsageError
from kopt.tools.sidecar import init_sidecar
from kopt.tools.target import integer_defaults, launches_kernels, load_target

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
KERNEL = "@triton.jit\ndef {0}(x_ptr, BLOCK: tl.constexpr):\n    tl.store(x_ptr, 1.0)\n\n"
INPUTS = "def make_inputs(n=8):\n    return (torch.ones(n, device='cuda'),)\n"
ADD = (
    KERNEL.format("add_kernel") + "def add(x):\n    add_kernel[(1,)](x, BLOCK=8)\n    return x\n\n"
)


def write(folder: Path, text: str, name: str = "k.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_plain_file_is_recognised(tmp_path: Path) -> None:
    text = HEAD + ADD + INPUTS + "WORKLOADS = {'big': {'n': 1 << 20}, 'odd': {'n': 3 * 7}}\n"
    target = load_target(write(tmp_path, text))
    assert (target.entry, target.language, target.kernels) == ("add", "triton", ("add_kernel",))
    assert target.reference is None
    assert {w.name: w.params for w in target.workloads} == {"big": {"n": 1 << 20}, "odd": {"n": 21}}
    assert integer_defaults(target) == {"n": 8}


def test_nothing_in_the_file_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    load_target(write(tmp_path, HEAD + ADD + INPUTS + f"open({str(mark)!r}, 'w')\n"))
    assert not mark.exists()


def test_helpers_tests_and_timing_code_are_no_entries(tmp_path: Path) -> None:
    text = (
        HEAD
        + ADD
        + INPUTS
        + (
            "def _inner(x):\n    return add(x)\n\n"
            "def outer(x):\n    return _inner(x)\n\n"
            "def test_outer():\n    assert torch.allclose(outer(1), 1)\n\n"
            "@triton.testing.perf_report(1)\ndef speed(n):\n    outer(n)\n\n"
            "def reference(x):\n    return outer(x)\n\n"
            "if __name__ == '__main__':\n    def main():\n        outer(1)\n    main()\n"
        )
    )
    target = load_target(write(tmp_path, text))
    assert target.entry == "outer"
    assert target.kernels == ("add_kernel",)
    assert launches_kernels(target, "reference")


def test_an_autograd_function_is_an_entry_by_its_alias(tmp_path: Path) -> None:
    text = (
        HEAD
        + KERNEL.format("k")
        + (
            "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        k[(1,)](x, BLOCK=1)\n        return x\n\nfast = F.apply\n"
        )
    )
    assert load_target(write(tmp_path, text + INPUTS)).entry == "fast"


@pytest.mark.parametrize(
    "decorator",
    ["@triton.autotune(configs=[], key=[])\n@triton.jit\n", "@triton.jit(debug=True)\n", "@jit\n"],
)
def test_kernels_under_other_decorators(tmp_path: Path, decorator: str) -> None:
    text = HEAD + "from triton import jit\n" + ADD.replace("@triton.jit\n", decorator) + INPUTS
    assert load_target(write(tmp_path, text)).kernels == ("add_kernel",)


def test_imported_and_assigned_kernels_count_as_launches(tmp_path: Path) -> None:
    text = HEAD + "from other import far\ndef run(x):\n    far[(1,)](x)\n    return x\n\n" + INPUTS
    assert load_target(write(tmp_path, text)).kernels == ("far",)
    text = (
        HEAD + "def _k(x):\n    pass\n\nk = triton.jit(_k)\ndef run(x):\n    k[(1,)](x)\n" + INPUTS
    )
    assert load_target(write(tmp_path, text, "a.py")).kernels == ("k",)


def test_pytorch_code_is_a_target(tmp_path: Path) -> None:
    text = "import torch\ndef f(x):\n    return torch.relu(x)\n\n" + INPUTS
    target = load_target(write(tmp_path, text))
    assert (target.language, target.entry) == ("pytorch", "f")


def test_the_sidecar_completes_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + ADD)
    write(tmp_path, "import torch\n" + INPUTS + "LAWS = ['normal']\n", "k.kopt.py")
    target = load_target(path)
    assert target.laws == ("normal",)
    assert target.sidecar is not None
    assert target.sidecar.endswith("k.kopt.py")


TWO = HEAD + ADD + ADD.replace("add", "mul") + INPUTS

BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    "two_entries": (TWO, ("add (line", "mul (line", "--entry add")),
    "no_kernel": ("x = 1\ndef f():\n    return 2\n", ("no kernel", "@triton.jit", "functions f")),
    "numpy_only": ("import numpy as np\ndef f(x):\n    return np.sin(x)\n", ("no kernel",)),
    "no_launch": (HEAD + KERNEL.format("k"), ("no public function", "kopt init")),
    "no_inputs": (HEAD + ADD, ("make_inputs", "kopt init")),
    "syntax": (HEAD + "def f(:\n", ("k.py:5",)),
    "empty": ("\n  \n", ("empty",)),
    "workloads_run": (HEAD + ADD + INPUTS + "WORKLOADS = build()\n", ("WORKLOADS", "plain values")),
    "workloads_list": (HEAD + ADD + INPUTS + "WORKLOADS = [1]\n", ("WORKLOADS", "expected")),
    "workloads_unknown": (HEAD + ADD + INPUTS + "WORKLOADS = {'a': {'m': 1}}\n", ("takes n",)),
    "workloads_name": (HEAD + ADD + INPUTS + "WORKLOADS = {'../a': {}}\n", ("folder",)),
    "laws": (HEAD + ADD + INPUTS + "LAWS = ['odd']\n", ("odd", "heavy_tail")),
    "kernelbench": ("import torch\nclass Model(torch.nn.Module):\n    pass\n"
                    "def get_inputs():\n    return []\n", ("KernelBench", "@triton.jit")),
    "gpu_mode": ("import torch\ndef custom_kernel(data):\n    return torch.relu(data)\n",
                 ("GPU MODE",)),
    "gluon": ("from triton.experimental import gluon\n@gluon.jit\ndef k(x):\n    pass\n",
              ("Gluon",)),
    "cute": ("import cutlass.cute as cute\n@cute.kernel\ndef k(x):\n    pass\n", ("CuTe DSL",)),
    "inline": ("from torch.utils.cpp_extension import load_inline\n"
               "m = load_inline(name='a', cuda_sources='')\ndef f(x):\n    return m.f(x)\n",
               ("CUDA C++", "load_inline")),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_target_says_why(tmp_path: Path, name: str) -> None:
    text, words = BAD[name]
    with pytest.raises(UsageError) as caught:
        load_target(write(tmp_path, text))
    assert caught.value.exit_code == 2
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value)


def test_two_entries_are_told_apart_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    assert load_target(path, "mul").kernels == ("mul_kernel",)
    with pytest.raises(UsageError, match="is a kernel"):
        load_target(path, "mul_kernel")
    with pytest.raises(UsageError, match="defines no div; it has add, mul"):
        load_target(path, "div")


def test_paths_that_are_no_python_files(tmp_path: Path) -> None:
    cases: dict[Path, str] = {tmp_path / "missing.py": "no such file", tmp_path: "is a folder"}
    cases[write(tmp_path, "__global__ void k() {}", "k.cu")] = "CUDA C"
    cases[write(tmp_path, "{}", "k.ipynb")] = "notebook"
    cases[write(tmp_path, "hello", "k.txt")] = "not a Python file"
    binary = tmp_path / "b.py"
    binary.write_bytes(b"\x7fELF\0\0")
    cases[binary] = "binary"
    latin = tmp_path / "l.py"
    latin.write_bytes(b"# caf\xe9\n")
    cases[latin] = "not text"
    task = tmp_path / "task"
    task.mkdir()
    (task / "task.yml").touch()
    cases[task] = "GPU MODE"
    for path, words in cases.items():
        with pytest.raises(KoptError) as caught:
            load_target(path)
        assert words in str(caught.value), path
        assert caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + ADD + INPUTS)
    path.chmod(0)
    with pytest.raises(KoptError) as caught:
        load_target(path)
    assert caught.value.exit_code == 5


def test_a_written_sidecar_makes_the_file_a_target(tmp_path: Path) -> None:
    text = (
        HEAD
        + KERNEL.format("k")
        + (
            "def product(a, b, alpha: float):\n    M, K = a.shape\n    K, N = b.shape\n"
            "    k[(M,)](a, BLOCK=K)\n    return a\n"
        )
    )
    path = write(tmp_path, text)
    write(tmp_path, init_sidecar(path), "k.kopt.py")
    target = load_target(path)
    assert set(target.workloads[0].params) == {"M", "K", "N"}
    assert target.sidecar_source is not None
    assert "torch.randn(M, K" in target.sidecar_source
    assert "return (a, b, alpha)" in target.sidecar_source
    with pytest.raises(UsageError, match="not overwritten"):
        init_sidecar(path)


def test_a_sidecar_for_a_bare_kernel_has_a_launch(tmp_path: Path) -> None:
    kernel = (
        "@triton.jit\ndef copy(src, dst, n, BLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, BLOCK)\n    p = dst + i\n    tl.store(p, tl.load(src + i))\n"
    )
    path = write(tmp_path, HEAD + kernel)
    write(tmp_path, init_sidecar(path), "k.kopt.py")
    target = load_target(path)
    assert target.entry == "run"
    assert target.kernels == ("copy",)
    assert "dst = torch.empty_like(src)" in str(target.sidecar_source)
