"""PyTorch in fp64 whatever precision the code asks for: the oracle of a PyTorch reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CASTS = frozenset({torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16})


class Raised(TorchFunctionMode):
    """Inside, casts to and creation of narrower floats give fp64.

    A reference that says `x.float()` means "in good precision", not "round here": without this its
    fp64 run would be rounded to fp32 at that place. Integers, booleans and complex numbers are not
    touched.
    """

    def __enter__(self) -> Raised:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._before)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run a torch function with its dtypes raised."""
        if func in _CASTS:
            return torch.Tensor.double(args[0])  # type: ignore[arg-type]
        named = {key: _raise(value) for key, value in (kwargs or {}).items()}
        return func(*(_raise(value) for value in args), **named)


def _raise(value: object) -> object:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
