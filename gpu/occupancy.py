"""How many CTAs an SM holds. Source: CUDA C++ Programming Guide and the CUDA occupancy tables."""

from __future__ import annotations

from typing import Literal

from kopt.gpu.spec import DeviceSpec

Limiter = Literal["registers", "shared_memory", "warps", "ctas"]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def resident_ctas(
    spec: DeviceSpec, threads: int, registers: int, shared_bytes: int
) -> tuple[int, Limiter]:
    """Resident CTAs per SM and what limits them; 0 if one CTA does not fit.

    `shared_bytes` is static plus dynamic, without what the system reserves.
    """
    warps = -(-threads // 32)
    limits: dict[Limiter, int] = {
        "warps": spec.max_warps_per_sm // warps,
        "ctas": spec.max_ctas_per_sm,
    }
    if registers:
        per_warp = _up(registers * 32, spec.register_granularity)
        # Each of the schedulers has its own slice of the register file.
        slices = spec.schedulers_per_sm
        warps_that_fit = spec.registers_per_sm // slices // per_warp * slices
        limits["registers"] = warps_that_fit // warps
    each = _up(shared_bytes + spec.reserved_shared_per_cta, spec.shared_granularity)
    limits["shared_memory"] = spec.shared_per_sm // each
    best = min(limits, key=lambda name: limits[name])
    return limits[best], best
