"""Runs compiled PTX on the CPU: grids of CTAs over the buffers of the virtual GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.counters import Finding, LaunchCounters
from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.counting import count
from kopt.gpu.virtual.findings import findings
from kopt.gpu.virtual.launch_context import Context, Shape
from kopt.gpu.virtual.ptx.flow import analyse
from kopt.gpu.virtual.ptx.jit import Compiled
from kopt.gpu.virtual.ptx.parse import Param, parse
from kopt.gpu.virtual.ptx.registers import CONSTANT_BASE
from kopt.gpu.virtual.ptx.translate import Translation, Translator, translation
from kopt.gpu.virtual.ptx.wide import Wide
from kopt.gpu.virtual.segments import Segment

Arithmetic = Literal["ieee", "wide"]

_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_CHUNK = 16
"""CTAs that a thread takes at a time."""


@dataclass(frozen=True)
class LaunchResult:
    """What one launch left besides its outputs."""

    counters: LaunchCounters | None
    findings: tuple[Finding, ...]


class LoadedKernel:
    """A kernel ready to launch."""

    def __init__(self, translation: Translation, code: Compiled, counted: bool, wide: bool) -> None:
        self.translation = translation
        self._code = code
        self._counted = counted
        self._wide = wide
        self._run = _RUN(code.address("run_ctas"))
        data = np.frombuffer(bytes(translation.entry.constant_data), np.uint8).copy()
        self._constant_data = data
        self._constants = (
            [Segment(CONSTANT_BASE, len(data), data.ctypes.data, "")] if len(data) else []
        )

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters that `launch` expects, in order."""
        return tuple(self.translation.entry.params)

    @property
    def was_cached(self) -> bool:
        """Whether its machine code came from the disk."""
        return self._code.was_cached

    def launch(
        self,
        grid: tuple[int, int, int],
        threads_per_cta: int,
        shared_bytes: int,
        params: Sequence[int | float],
        segments: Sequence[Segment],
        *,
        threads: int | None = None,
        ctas: Sequence[int] | None = None,
        max_findings: int = 64,
        line_sampling: int = 1,
    ) -> LaunchResult:
        """Run a grid to its end.

        `params` has one value for each PTX parameter; pointers are virtual addresses inside
        `segments`. An access outside every segment is a finding: a load gives 0, a store is
        dropped. `ctas` runs only those linear CTAs. Kernels with float atomics run on one thread.
        `line_sampling` (a power of two) thins the line log from the start.

        Raises `Unsupported` if a CTA waits for a CTA that comes after it.
        """
        total = grid[0] * grid[1] * grid[2]
        if total <= 0:
            return LaunchResult(None, ())
        todo = np.asarray(range(total) if ctas is None else ctas, np.int64)
        shape = Shape(
            grid, threads_per_cta, shared_bytes, max_findings, self._counted, line_sampling
        )
        workers = 1 if self.translation.ordered else max(1, threads or os.cpu_count() or 1)
        workers = min(workers, max(1, len(todo) // 2))
        every = [*segments, *self._constants]
        contexts = [
            Context(self.translation, shape, params, every, workers, self._wide)
            for _ in range(workers)
        ]
        if workers == 1:
            self._chunk(contexts[0], todo)
        else:
            self._parallel(contexts, todo)
        if any(context.stuck for context in contexts):
            raise Unsupported(
                f"{self.translation.entry.name} waits for memory that no earlier CTA writes;"
                " the virtual GPU runs CTAs one after the other"
            )
        found = findings(self.translation, contexts, every, max_findings)
        if not self._counted:
            return LaunchResult(None, found)
        counters = count(self.translation, contexts, grid, threads_per_cta, len(todo), every)
        return LaunchResult(counters, found)

    def _chunk(self, context: Context, ctas: NDArray[np.int64]) -> None:
        self._run(context.address, ctas.ctypes.data, len(ctas))

    def _parallel(self, contexts: list[Context], todo: NDArray[np.int64]) -> None:
        lock = threading.Lock()
        position = 0
        step = max(1, min(_CHUNK, len(todo) // (2 * len(contexts))))

        def work(context: Context) -> None:
            nonlocal position
            while True:
                with lock:
                    start = position
                    position += step
                if start >= len(todo) or context.stuck:
                    return
                self._chunk(context, np.ascontiguousarray(todo[start : start + step]))

        workers = [threading.Thread(target=work, args=(c,)) for c in contexts[1:]]
        for worker in workers:
            worker.start()
        work(contexts[0])
        for worker in workers:
            worker.join()


_LOADED: OrderedDict[str, LoadedKernel] = OrderedDict()
_LOADING = threading.Lock()
_KEEP = 256


def load_kernel(
    ptx: str, entry: str, *, arithmetic: Arithmetic = "ieee", counted: bool = False
) -> LoadedKernel:
    """Translate and compile a PTX entry, or take it from memory or the user's cache.

    Raises `Unsupported` with the name of what the executor does not know.
    """
    key = hashlib.sha256(f"{entry}|{arithmetic}|{counted}|{ptx}".encode()).hexdigest()
    with _LOADING:
        if key not in _LOADED:
            parsed = parse(ptx, entry)
            translator = Wide if arithmetic == "wide" else Translator
            module = translation(translator(parsed, analyse(parsed), counted))
            code = Compiled(
                module.text, module.routines, 0 if arithmetic == "wide" else module.effort
            )
            _LOADED[key] = LoadedKernel(module, code, counted, arithmetic == "wide")
            while len(_LOADED) > _KEEP:
                _LOADED.popitem(last=False)
        _LOADED.move_to_end(key)
        return _LOADED[key]
