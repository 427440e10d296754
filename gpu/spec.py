"""Device facts, read from `gpu/specs/*.toml` or from a user's own file of the same form."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from kopt.gpu.errors import UsageError

FOLDER = Path(__file__).parent / "specs"


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU. Rates are per SM and clock cycle unless the name says otherwise."""

    name: str
    marketing_name: str
    aliases: tuple[str, ...]
    executes: bool
    """Whether the virtual GPU executes its code; otherwise the facts only serve bounds."""
    compute_capability: int
    """80 for 8.0."""
    sms: int
    schedulers_per_sm: int
    clock_hz: float
    """Sustained SM clock."""
    max_warps_per_sm: int
    max_ctas_per_sm: int
    registers_per_sm: int
    register_granularity: int
    """Registers are given to a warp in multiples of this."""
    max_registers_per_thread: int
    shared_per_sm: int
    """Bytes."""
    max_shared_per_cta: int
    reserved_shared_per_cta: int
    shared_granularity: int
    l1_bytes: int
    """Unified L1 and shared memory per SM."""
    l2_bytes: int
    dram_bytes: int
    dram_bytes_per_s: float
    """Datasheet peak."""
    dram_efficiency: float
    """Measured ceiling of a copy over the peak."""
    l2_bytes_per_s: float
    fp32_lanes: float
    """FMA per SM and cycle; 128 for 128 lanes."""
    fp64_lanes: float
    fp16_lanes: float
    int_lanes: float
    sfu_lanes: float
    """Special functions and the slow conversions."""
    shuffle_lanes: float
    lsu_lanes: float
    """A warp's request takes 32 / `lsu_lanes` cycles."""
    shared_bytes_per_cycle: float
    l2_bytes_per_cycle_per_sm: float
    """The most that one SM gets from the L2."""
    mma_fp16_fma: float
    """Tensor-core FMA with fp16 or bf16 inputs, dense."""
    mma_tf32_fma: float
    mma_int8_fma: float
    l1_latency_cycles: float
    shared_latency_cycles: float
    l2_latency_cycles: float
    dram_latency_cycles: float
    launch_overhead_us: float
    """Between dependent kernels of one stream."""
    atomics_per_cycle: float
    """Atomic 32-byte sectors that the whole L2 takes."""
    atomic_cycles: float
    """Cycles between two atomic requests on one sector."""
    host_copy_bytes_per_s: float
    synchronise_us: float
    dram_uncertainty: float
    """Relative; the same for both arms of a comparison."""
    l2_uncertainty: float
    issue_uncertainty: float
    latency_uncertainty: float
    launch_uncertainty: float
    operator_uncertainty: float
    """Of the library efficiencies in gpu/operators.py."""
    sources: tuple[str, ...]

    @property
    def dram_ceiling_bytes_per_s(self) -> float:
        """What a copy reaches."""
        return self.dram_bytes_per_s * self.dram_efficiency

    @property
    def arch(self) -> str:
        """`sm_80`, …"""
        return f"sm_{self.compute_capability}"


def _read(path: Path) -> DeviceSpec:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    wanted = {f.name: f for f in fields(DeviceSpec)}
    for key in raw:
        if key not in wanted:
            close = difflib.get_close_matches(key, wanted, 1)
            hint = f"did you mean '{close[0]}'?" if close else "see gpu/specs/a100.toml"
            raise UsageError(f"{path}: unknown key '{key}'", hint)
    missing = [name for name in wanted if name not in raw]
    if missing:
        raise UsageError(f"{path}: missing {', '.join(missing)}", "see gpu/specs/a100.toml")
    values: dict[str, object] = {}
    for name, field in wanted.items():
        value = raw[name]
        kind = str(field.type)
        if kind.startswith("tuple"):
            values[name] = tuple(str(v) for v in value)
        elif kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = float(value)
        elif kind == type(value).__name__:
            values[name] = value
        else:
            raise UsageError(f"{path}: '{name}' must be {kind}, not {value!r}")
    return DeviceSpec(**values)  # type: ignore[arg-type]


def list_specs() -> list[DeviceSpec]:
    """The devices that kopt knows, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.toml"))]


def load_spec(name: str) -> DeviceSpec:
    """A device by name, alias or path of a TOML file. Raises `UsageError` with what there is."""
    if name.endswith(".toml"):
        return _read(Path(name))
    wanted = name.lower().replace("-", "_")
    specs = list_specs()
    for spec in specs:
        if wanted == spec.name or wanted in spec.aliases:
            return spec
    names = [s.name for s in specs]
    close = difflib.get_close_matches(wanted, [*names, *(a for s in specs for a in s.aliases)], 1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise UsageError(
        f"no GPU is called '{name}'", f"{hint}known: {', '.join(names)}; or a TOML file of your own"
    )
