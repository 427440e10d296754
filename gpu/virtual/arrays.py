"""Kernels over numpy arrays, with no front end: what tests and benchmarks of the executor use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.virtual.executor import Arithmetic, LaunchResult, load_kernel
from kopt.gpu.virtual.segments import FIRST_ADDRESS, Segment, next_address

Array = NDArray[Any]
Argument = Array | int | float
_TYPES = {
    "float32": "*fp32", "float16": "*fp16", "float64": "*fp64", "int8": "*i8", "int16": "*i16",
    "int32": "*i32", "int64": "*i64", "uint8": "*u8", "uint16": "*bf16", "uint32": "*u32",
    "uint64": "*u64", "bool": "*i1",
}  # fmt: skip
"""numpy has no bfloat16: an array of uint16 stands for one."""


@dataclass(frozen=True)
class Program:
    """One compiled kernel, ready for arrays."""

    ptx: str
    entry: str
    threads: int
    shared_bytes: int

    def run(
        self,
        grid: Sequence[int],
        *arguments: Argument,
        counted: bool = False,
        arithmetic: Arithmetic = "ieee",
        shadows: Sequence[Array | None] = (),
        **options: Any,
    ) -> LaunchResult:
        """Launch over a grid of one to three axes; arrays are read and written in place.

        `shadows` has a float64 array, one element for every two bytes, for each array argument
        that needs one; `options` are those of `LoadedKernel.launch`.
        """
        kernel = load_kernel(self.ptx, self.entry, arithmetic=arithmetic, counted=counted)
        segments: list[Segment] = []
        values: list[int | float] = []
        address = FIRST_ADDRESS
        for position, argument in enumerate(arguments):
            if not isinstance(argument, np.ndarray):
                values.append(argument)
                continue
            shadow = shadows[position] if position < len(shadows) else None
            where = 0 if shadow is None else shadow.ctypes.data
            name = f"arg{position}"
            segments.append(Segment(address, argument.nbytes, argument.ctypes.data, name, where))
            values.append(address)
            address = next_address(address + argument.nbytes, 0)
        missing = len(kernel.params) - len(values)
        x, y, z = (*grid, 1, 1, 1)[:3]
        return kernel.launch(
            (x, y, z), self.threads, self.shared_bytes, [*values, *[0] * missing], segments,
            **options,
        )  # fmt: skip

    def wide(self, grid: Sequence[int], *arguments: Argument) -> list[Array]:
        """Launch in `wide` arithmetic; the wide values of each float array afterwards."""
        shadows = [
            np.zeros(max(1, a.nbytes // 2)) if isinstance(a, np.ndarray) else None
            for a in arguments
        ]
        self.run(grid, *arguments, arithmetic="wide", shadows=shadows)
        found = []
        for argument, shadow in zip(arguments, shadows, strict=True):
            if isinstance(argument, np.ndarray) and shadow is not None:
                step = max(1, argument.itemsize // 2)
                found.append(values(argument) + shadow[::step].reshape(argument.shape))
        return found


def values(array: Array) -> Array:
    """An array's numbers as float64; uint16 is read as bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def bfloat16(array: Array) -> NDArray[np.uint16]:
    """Numbers rounded to the nearest bfloat16, as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return rounded.astype(np.uint16)


def compile_triton(
    function: Any,
    arguments: Sequence[Argument],
    constants: Mapping[str, object],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    capability: int = 80,
) -> Program:
    """Compile a `triton.jit` function for these arguments, specialised as Triton does at launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    given = iter(arguments)
    for position, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        argument = next(given)
        aligned = True
        if isinstance(argument, np.ndarray):
            signature[name] = _TYPES[argument.dtype.name]
        elif isinstance(argument, float):
            signature[name], aligned = "fp32", False
        else:
            signature[name] = "i32" if -(1 << 31) <= argument < 1 << 31 else "i64"
            aligned = argument % 16 == 0
        if aligned:
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constexprs=dict(constants), attrs=attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Program(
        compiled.asm["ptx"], compiled.metadata.name, 32 * num_warps, compiled.metadata.shared
    )
