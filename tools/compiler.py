"""What the compilers make of a file's kernels, or why they refuse."""

from __future__ import annotations

from kopt.gpu.facts import CallFacts, CompiledFacts
from kopt.tools.models import Model


class CompiledKernel(Model):
    """One launched kernel as ptxas left it. Every number is `compiled`."""

    name: str
    grid: tuple[int, int, int]
    threads_per_cta: int
    registers: int
    """Per thread."""
    spill_store_bytes: int
    spill_load_bytes: int
    """Per thread, static."""
    shared_bytes: int
    """Static and dynamic, per CTA."""
    ctas_per_sm: int
    limiter: str
    occupancy: float
    sass: dict[str, int]
    """Static SASS instructions by class."""


class Compilation(Model):
    """The kernels of one call, or the error."""

    kernels: tuple[CompiledKernel, ...] = ()
    error: str = ""


def compiled_kernels(facts: CallFacts) -> tuple[CompiledKernel, ...]:
    """Each kernel of a call once, in the order of its first launch."""
    found: dict[str, CompiledKernel] = {}
    for launch in facts.launches:
        if launch.key not in found:
            found[launch.key] = _kernel(
                launch.kernel, launch.grid, launch.threads_per_cta, launch.compiled
            )
    return tuple(found.values())


def _kernel(
    name: str, grid: tuple[int, int, int], threads: int, facts: CompiledFacts
) -> CompiledKernel:
    return CompiledKernel(
        name=name,
        grid=grid,
        threads_per_cta=threads,
        registers=facts.registers,
        spill_store_bytes=facts.spill_store_bytes,
        spill_load_bytes=facts.spill_load_bytes,
        shared_bytes=facts.static_shared_bytes + facts.dynamic_shared_bytes,
        ctas_per_sm=facts.ctas_per_sm,
        limiter=facts.limiter,
        occupancy=facts.occupancy,
        sass=dict(facts.sass),
    )
