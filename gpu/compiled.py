"""What ptxas makes of a kernel: registers, spills, shared memory, occupancy, SASS census.

Uses the `ptxas` and `cuobjdump` that the Triton wheel brings, so no CUDA toolkit is needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from kopt.gpu.errors import EnvironmentLacks, Unsupported
from kopt.gpu.facts import CompiledFacts
from kopt.gpu.occupancy import resident_ctas
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.trace import Kernel

_VERSION = "1"
_SASS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_CLASSES = {
    "FFMA": "ffma", "FADD": "fadd", "FMUL": "fmul", "HMMA": "hmma", "IMMA": "imma", "LDG": "ldg",
    "STG": "stg", "LDS": "lds", "STS": "sts", "LDSM": "ldsm", "LDGSTS": "ldgsts", "LDL": "ldl",
    "STL": "stl", "MUFU": "mufu", "BAR": "bar", "SHFL": "shfl", "RED": "red", "ATOMG": "atomg",
    "ATOMS": "atoms", "DFMA": "dfma", "HFMA2": "hfma2", "HADD2": "hadd2",
}  # fmt: skip


class AssemblyError(Unsupported):
    """ptxas refused the PTX; a candidate whose PTX does this is a `compile_error`."""


def _tool(name: str) -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise EnvironmentLacks("Triton is not installed", "pip install triton")
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise EnvironmentLacks(f"this Triton brings no {name}", "install Triton's wheel from PyPI")
    return path


def facts(kernel: Kernel, spec: DeviceSpec) -> CompiledFacts:
    """Assemble the kernel's PTX for the device. Raises `AssemblyError` if ptxas refuses it."""
    text = f"{_VERSION}|{spec.compute_capability}|{kernel.ptx}"
    key = hashlib.sha256(text.encode()).hexdigest()
    stored = _cache() / "cubin" / key[:2] / f"{key}.json"
    raw: dict[str, object] | None = None
    with suppress(OSError, ValueError):
        raw = json.loads(stored.read_text(encoding="utf-8"))
    if raw is None:
        raw = _assemble(kernel, spec)
        with suppress(OSError):
            stored.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=stored.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(raw, file)
            Path(name).replace(stored)
    registers, static = int(str(raw["registers"])), int(str(raw["static"]))
    threads = 32 * kernel.num_warps
    ctas, limiter = resident_ctas(spec, threads, registers, static + kernel.shared_bytes)
    sass = raw["sass"]
    assert isinstance(sass, dict)
    return CompiledFacts(
        registers=registers,
        spill_store_bytes=int(str(raw["spill_stores"])),
        spill_load_bytes=int(str(raw["spill_loads"])),
        static_shared_bytes=static,
        dynamic_shared_bytes=kernel.shared_bytes,
        ctas_per_sm=ctas,
        limiter=limiter,
        occupancy=min(1.0, ctas * kernel.num_warps / spec.max_warps_per_sm),
        sass={str(k): int(v) for k, v in sass.items()},
    )


def _cache() -> Path:
    chosen = os.environ.get("KOPT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kopt"


def _assemble(kernel: Kernel, spec: DeviceSpec) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="kopt-") as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(kernel.ptx, encoding="utf-8")
        done = subprocess.run(
            [_tool("ptxas"), "-v", f"--gpu-name=sm_{spec.compute_capability}", source, "-o", target],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            raise AssemblyError(f"ptxas refuses {kernel.name}: {done.stderr.strip()[:500]}")
        listing = subprocess.run(
            [_tool("cuobjdump"), "-sass", target],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if listing.returncode:
            raise EnvironmentLacks(f"cuobjdump fails: {listing.stderr.strip()[:300]}")
    census: Counter[str] = Counter()
    for opcode in _SASS.findall(listing.stdout):
        base = opcode.split(".")[0]
        census["total"] += base != "NOP"
        if base in _CLASSES:
            census[_CLASSES[base]] += 1
        if opcode.startswith("HMMA") and "TF32" in opcode:
            census["hmma_tf32"] += 1
    return {
        "registers": _number(r"Used (\d+) registers", done.stderr),
        "spill_stores": _number(r"(\d+) bytes spill stores", done.stderr),
        "spill_loads": _number(r"(\d+) bytes spill loads", done.stderr),
        "static": _number(r"(\d+) bytes smem", done.stderr),
        "sass": dict(census),
    }


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0
