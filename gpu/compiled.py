"""What ptxas makes of a kernel: registers, spills, shared memory, occupancy, SASS.

Uses the `ptxas` and `cuobjdump` that the Triton wheel brings, so no CUDA toolkit is needed, and
finds them without importing Triton. What they say is kept per user, by content.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kopt.gpu import sass
from kopt.gpu.errors import EnvironmentLacks, Unsupported
from kopt.gpu.facts import CompiledFacts, WarpPath
from kopt.gpu.occupancy import resident_ctas
from kopt.gpu.spec import DeviceSpec
from kopt.gpu.trace import Kernel

_VERSION = "4"
"""Of what is stored; a change makes every stored entry stale."""
TIMEOUT_S = 120


class AssemblyError(Unsupported):
    """ptxas refused the PTX; a candidate whose PTX does this is a `compile_error`."""


@dataclass(frozen=True)
class Assembled:
    """What the tools say of one kernel on one device, launch parameters aside."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    straight_census: dict[str, int]
    loop_census: dict[str, int]
    straight: WarpPath
    loop: WarpPath
    loads_in_flight: float


def facts(kernel: Kernel, spec: DeviceSpec) -> CompiledFacts:
    """Assemble the kernel's PTX for the device.

    Raises `AssemblyError` if ptxas refuses it and `EnvironmentLacks` if there are no tools.
    """
    made = _assembled(kernel, spec)
    shared = made.static_shared_bytes + kernel.shared_bytes
    ctas, limiter = resident_ctas(spec, 32 * kernel.num_warps, made.registers, shared)
    names = made.straight_census.keys() | made.loop_census.keys()
    return CompiledFacts(
        registers=made.registers,
        spill_store_bytes=made.spill_store_bytes,
        spill_load_bytes=made.spill_load_bytes,
        static_shared_bytes=made.static_shared_bytes,
        dynamic_shared_bytes=kernel.shared_bytes,
        ctas_per_sm=ctas,
        limiter=limiter,
        occupancy=min(1.0, ctas * kernel.num_warps / spec.max_warps_per_sm),
        sass={
            n: made.straight_census.get(n, 0) + made.loop_census.get(n, 0) for n in sorted(names)
        },
        sass_loop=made.loop_census,
        straight=made.straight,
        loop=made.loop,
        loads_in_flight=made.loads_in_flight,
    )


def _assembled(kernel: Kernel, spec: DeviceSpec) -> Assembled:
    """From the user's cache, else from the tools. The key covers the tools and the latencies."""
    latencies = (spec.l1_latency_cycles, spec.l2_latency_cycles, spec.dram_latency_cycles,
                 spec.shared_latency_cycles)  # fmt: skip
    text = f"{_VERSION}|{_tool('ptxas').stat().st_size}|{spec.arch}|{latencies}|{kernel.name}"
    text += f"|{kernel.ptx}"
    key = hashlib.sha256(text.encode()).hexdigest()
    stored = cache_folder() / "cubin" / key[:2] / f"{key}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        raw = json.loads(stored.read_text(encoding="utf-8"))
        return Assembled(
            **{**raw, "straight": WarpPath(**raw["straight"]), "loop": WarpPath(**raw["loop"])}
        )
    made = assemble(kernel.ptx, kernel.name, spec)
    # A cache that cannot be written costs time, nothing else.
    with suppress(OSError):
        stored.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=stored.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(made), file)
        Path(name).replace(stored)
    return made


def assemble(ptx: str, name: str, spec: DeviceSpec) -> Assembled:
    """Run ptxas and cuobjdump. Raises as `facts` does."""
    with tempfile.TemporaryDirectory(prefix="kopt-") as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        options = ("-v", f"--gpu-name={spec.arch}", f"--entry={name}", "-o", str(target))
        report = _run("ptxas", *options, str(source))
        if report.returncode:
            raise AssemblyError(f"ptxas refuses {name}: {report.stderr.strip()[:500]}")
        listed = _run("cuobjdump", "-sass", str(target))
        if listed.returncode:
            raise EnvironmentLacks(f"cuobjdump fails: {listed.stderr.strip()[:300]}")
    listing = sass.parse(listed.stdout)
    return Assembled(
        registers=_number(r"Used (\d+) registers", report.stderr),
        spill_store_bytes=_number(r"(\d+) bytes spill stores", report.stderr),
        spill_load_bytes=_number(r"(\d+) bytes spill loads", report.stderr),
        static_shared_bytes=_number(r"(\d+) bytes smem", report.stderr),
        straight_census=sass.census(listing, False),
        loop_census=sass.census(listing, True),
        straight=sass.path(listing, False, spec),
        loop=sass.path(listing, True, spec),
        loads_in_flight=sass.loads_in_flight(listing),
    )


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(_tool(name)), *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AssemblyError(f"{name} did not finish in {TIMEOUT_S} s") from error
    except OSError as error:
        raise EnvironmentLacks(
            f"{name} cannot be run: {error.strerror}", "pip install --force-reinstall triton"
        ) from error


def _tool(name: str) -> Path:
    """The tool in the Triton wheel; `ptxas-blackwell` is for later devices."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise EnvironmentLacks("Triton is not installed", "pip install triton")
    path = Path(found.origin).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise EnvironmentLacks(f"this Triton brings no {name}", "install Triton's wheel from PyPI")
    return path


def cache_folder() -> Path:
    """The user's cache: `KOPT_CACHE_DIR`, else `kopt` in the XDG cache folder."""
    chosen = os.environ.get("KOPT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kopt"


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0
