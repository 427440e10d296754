"""Kernel formats that this version does not take, recognised so that it can say so politely."""

from __future__ import annotations

import ast
from pathlib import Path

from kopt.gpu.errors import UsageError
from kopt.tools.recognise import Recognised, dotted

SUPPORTED = (
    "this version takes a Python file with @triton.jit kernels or PyTorch code, an entry function"
    " and make_inputs()"
)


def refuse_folder(path: Path) -> UsageError:
    """Why a folder is no target."""
    if (path / "task.yml").exists() or (path / "task.yaml").exists():
        return UsageError(f"{path} is a GPU MODE task, which is not supported yet", SUPPORTED)
    if (path / "definition.json").exists() or (path / "definitions").is_dir():
        return UsageError(
            f"{path} is a FlashInfer-Bench or SOL-ExecBench problem, which is not supported yet",
            SUPPORTED,
        )
    files = sorted(p.name for p in path.glob("*.py"))
    some = f"; it holds {', '.join(files[:5])}" if files else ""
    return UsageError(f"{path} is a folder{some}", f"name one file: {SUPPORTED}")


def refuse_suffix(path: Path) -> UsageError | None:
    """Why a file with this name is no target; None if it may be one."""
    suffix = path.suffix.lower()
    if suffix == ".py":
        return None
    if suffix in (".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp"):
        return UsageError(f"{path} is CUDA C++, which is not supported yet", SUPPORTED)
    if suffix == ".ipynb":
        return UsageError(
            f"{path} is a notebook", f"export it first: jupyter nbconvert --to script {path}"
        )
    return UsageError(f"{path} is not a Python file (its name does not end in .py)", SUPPORTED)


def refuse_content(path: Path, tree: ast.Module, found: Recognised) -> UsageError | None:
    """Why a file with this content is no target; None if it may be one.

    A file with Triton kernels is taken, whatever else it contains.
    """
    if found.kernels:
        return None
    names = found.definitions
    if "Model" in names and "get_inputs" in names:
        return UsageError(
            f"{path} is a KernelBench problem (class Model, get_inputs), which is not supported"
            " yet",
            SUPPORTED,
        )
    if "custom_kernel" in names and "make_inputs" not in names:
        return UsageError(
            f"{path} is a GPU MODE submission (custom_kernel), which is not supported yet",
            SUPPORTED,
        )
    origins = " ".join(sorted(found.imports.values()))
    for mark, language in (
        ("triton.experimental.gluon", "Gluon"),
        ("cutlass", "CuTe DSL"),
        ("tilelang", "TileLang"),
        ("helion", "Helion"),
        ("numba.cuda", "Numba CUDA"),
        ("cupy", "CuPy"),
        ("cuda.core", "CUDA C++ (cuda.core)"),
    ):
        if any(o == mark or o.startswith(mark + ".") for o in origins.split()):
            return UsageError(
                f"{path} is written in {language}, which is not supported yet", SUPPORTED
            )
    if _has_inline_cuda(tree, found.imports):
        return UsageError(
            f"{path} compiles CUDA C++ with torch's load_inline, which is not supported yet",
            SUPPORTED,
        )
    return None


def _has_inline_cuda(tree: ast.Module, imports: dict[str, str]) -> bool:
    calls = (dotted(n.func, imports) for n in ast.walk(tree) if isinstance(n, ast.Call))
    return any(name.endswith(("load_inline", "cpp_extension.load")) for name in calls)
