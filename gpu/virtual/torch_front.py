"""PyTorch on the virtual GPU: CPU tensors stand for device tensors.

Two modes work together. The function mode answers what Python code asks about devices and maps
`device="cuda"`; the dispatch mode sees every ATen operator, keeps track of which storages are
device memory, and notes operators on them in the trace. What modes cannot reach (`torch.cuda.*`,
custom backward functions, which run outside the function mode) is replaced while the GPU is active.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kopt.gpu.errors import Unsupported
from kopt.gpu.trace import DeviceRead, Json, Operator
from kopt.gpu.virtual import cuda_module
from kopt.gpu.virtual.device import POISON, VirtualGPU

CUDA = torch.device("cuda", 0)

Call = Callable[..., Any]

_FRESH = {
    "aten::empty.memory_format", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
    "aten::new_empty_strided", "aten::empty_permuted",
}  # fmt: skip
"""Operators whose result has no defined content."""
_FOLLOWS_HOST = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
"""Operators that bring a value to the host."""


def is_cuda(device: object) -> bool:
    """Whether a `device=` argument means this GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks device memory through ATen operators and records them."""

    def __init__(self, gpu: VirtualGPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu
        self.on_device = 0
        """Above 0 while a factory was called with `device="cuda"`."""
        self.paused = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        inputs = _tensors((args, kwargs))
        memory = self.gpu.memory
        on_device = [t for t in inputs if memory.find(t) is not None]
        if not on_device and not (self.on_device and not inputs):
            return func(*args, **kwargs)
        for tensor in inputs:
            if memory.find(tensor) is None and tensor.dim() > 0:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two"
                    f" devices, cuda:0 and cpu! (operator {func.name()})"
                )
        arguments = self._arguments(args, kwargs) if self.gpu.recording else None
        result = func(*args, **kwargs)
        self._note(func, inputs, arguments, result)
        return result

    def _arguments(self, args: Any, kwargs: Any) -> tuple[Json, Json] | None:
        return _encode(self.gpu, list(args)), _encode(self.gpu, dict(kwargs))

    def _note(self, func: Any, inputs: list[torch.Tensor], arguments: Any, result: object) -> None:
        name = func.name()
        gpu = self.gpu
        if name in _FOLLOWS_HOST:
            for tensor in inputs:
                gpu.device_read(tensor)
            return
        outputs = _tensors(result)
        fresh = [t for t in outputs if gpu.memory.find(t) is None]
        seen: set[int] = set()
        for tensor in fresh:
            key = tensor.untyped_storage()._cdata
            if key not in seen:
                seen.add(key)
                if name in _FRESH:
                    _poison(tensor)
                gpu.allocate(tensor)
        if gpu.recording is None or name in _FRESH:
            return
        writes = any(
            a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments
        )
        if not writes and not fresh:
            return
        if torch.Tag.nondeterministic_seeded in func.tags:
            for tensor in outputs:
                gpu.host_copy(tensor, "random")
            return
        written = outputs or [
            t
            for a, t in zip(func._schema.arguments, inputs, strict=False)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        gpu.note(
            Operator(
                name.replace("::", "."),
                arguments[0],
                arguments[1],
                tuple(gpu.reference(t) for t in written),
            )
        )


def _poison(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    if storage.nbytes():
        torch.tensor([], dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).fill_(
            POISON
        )


def _tensors(value: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, dict):
            stack.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))
    return found


def _encode(gpu: VirtualGPU, value: object) -> Any:
    """An argument tree as JSON; see `kopt.gpu.trace.Operator`."""
    if isinstance(value, torch.Tensor):
        if gpu.memory.find(value) is None:
            return {"scalar": value.item(), "dtype": str(value.dtype).removeprefix("torch.")}
        reference = gpu.reference(value)
        return {
            "tensor": {
                "buffer": reference.buffer,
                "dtype": reference.dtype,
                "shape": list(reference.shape),
                "stride": list(reference.stride),
                "offset": reference.offset,
            }
        }
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": 0}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, dict):
        return {"dict": {k: _encode(gpu, v) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        return [_encode(gpu, v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        raise Unsupported("complex operator arguments are not supported on the virtual GPU")
    raise Unsupported(f"an operator argument of type {type(value).__name__} is not supported")


class DeviceMode(TorchFunctionMode):
    """Answers what Python code asks about devices."""

    def __init__(self, gpu: VirtualGPU, operators: OperatorMode) -> None:
        super().__init__()
        self.gpu = gpu
        self.operators = operators
        self.default_device = 0
        """Above 0 inside `with torch.device("cuda")`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = dict(kwargs or {})
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs)
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = torch.device("cpu")
            return self.create(func, args, kwargs)
        if self.default_device and kwargs.get("device") is None and func in _FACTORIES:
            return self.create(func, args, kwargs)
        if kwargs.get("device") is not None and args and isinstance(args[0], torch.Tensor):
            return self._on_host(func, args, kwargs)
        return func(*args, **kwargs)

    def _on_host(self, func: Call, args: Any, kwargs: Any) -> object:
        """`x.new_empty(…, device="cpu")` and the like: the result is host memory."""
        self.operators.paused += 1
        try:
            return func(*args, **kwargs)
        finally:
            self.operators.paused -= 1

    def create(self, func: Call, args: Any, kwargs: Any) -> object:
        """Call a factory whose result is device memory."""
        kwargs.pop("pin_memory", None)
        if func in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy):
            return self.upload(func(*args, **kwargs))
        inputs = _tensors((args, kwargs))
        if inputs and all(self.gpu.memory.find(t) is None for t in inputs):
            return self.upload(func(*args, **kwargs))
        self.operators.on_device += 1
        try:
            return func(*args, **kwargs)
        finally:
            self.operators.on_device -= 1

    def upload(self, tensor: Any) -> Any:
        """A device copy of a host tensor."""
        if self.gpu.memory.find(tensor) is not None:
            return tensor
        if tensor.requires_grad:
            copy = _Upload.apply(tensor, self)  # type: ignore[no-untyped-call]
        else:
            copy = self.copy_in(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy.detach(), tensor.requires_grad)
        return copy

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy whose storage is device memory."""
        self.operators.paused += 1
        try:
            copy = tensor.detach().clone()
        finally:
            self.operators.paused -= 1
        self.gpu.allocate(copy)
        self.gpu.host_copy(copy, "copy")
        return copy

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host copy of a device tensor."""
        self.gpu.device_read(tensor)
        if not tensor.requires_grad:
            return self.copy_out(tensor)
        return _Download.apply(tensor, self)  # type: ignore[no-untyped-call, no-any-return]

    def copy_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy whose storage is host memory."""
        self.operators.paused += 1
        try:
            return tensor.detach().clone()
        finally:
            self.operators.paused -= 1


class _Upload(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mode: DeviceMode) -> torch.Tensor:
        ctx.mode = mode
        return mode.copy_in(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.mode.copy_out(gradient), None


class _Download(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mode: DeviceMode) -> torch.Tensor:
        ctx.mode = mode
        return mode.copy_out(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.mode.copy_in(gradient), None


def _device(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return CUDA if mode.gpu.memory.find(args[0]) is not None else func(*args, **kwargs)


def _is_cuda(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return mode.gpu.memory.find(args[0]) is not None


def _is_cpu(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return mode.gpu.memory.find(args[0]) is None


def _get_device(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return 0 if mode.gpu.memory.find(args[0]) is not None else func(*args, **kwargs)


def _data_ptr(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    buffer = mode.gpu.memory.find(args[0])
    if buffer is None:
        return func(*args, **kwargs)
    return buffer.base + args[0].storage_offset() * args[0].element_size()


def _cuda(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return mode.upload(args[0])


def _cpu(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return mode.download(args[0]) if mode.gpu.memory.find(args[0]) is not None else args[0]


def _to(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    tensor, rest = args[0], list(args[1:])
    device = kwargs.pop("device", None)
    if rest and (isinstance(rest[0], str | torch.device) or type(rest[0]) is int):
        device = rest.pop(0)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
        device = CUDA if mode.gpu.memory.find(other) is not None else "cpu"
        rest.insert(0, other.dtype)
    kwargs.pop("non_blocking", None)
    if rest and rest[0] is None:
        rest.pop(0)
    here = mode.gpu.memory.find(tensor) is not None
    if device is not None and is_cuda(device) and not here:
        tensor = mode.upload(tensor)
    elif device is not None and not is_cuda(device) and here:
        tensor = mode.download(tensor)
    elif kwargs.get("copy") and not rest:
        return tensor.clone()
    if rest or kwargs.get("dtype") is not None or kwargs.get("memory_format") is not None:
        return func(tensor, *rest, **kwargs)
    return tensor


def _refuse_host_view(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    if mode.gpu.memory.find(args[0]) is not None:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor"
            " to host memory first."
        )
    return func(*args, **kwargs)


def _to_python(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    """`.tolist()`, `repr`: one copy to the host, then no more questions."""
    tensor = args[0]
    if mode.gpu.memory.find(tensor) is None:
        return func(*args, **kwargs)
    copy = mode.download(tensor.detach())
    return func(copy, *args[1:], **kwargs)


def _pin(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    return args[0]


def _copy(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    """`dst.copy_(src)` across the bus."""
    to, source = args[0], args[1]
    there, here = mode.gpu.memory.find(to), mode.gpu.memory.find(source)
    if (there is None) == (here is None) or source.dim() == 0:
        return func(*args, **kwargs)
    if there is not None:
        return func(to, mode.upload(source))
    return func(to, mode.download(source))


def _backward(mode: DeviceMode, func: Call, args: Any, kwargs: Any) -> object:
    """Run with the mode on, so that hooks and custom functions see the device."""
    tensor, rest = args[0], list(args[1:])
    names = ["gradient", "retain_graph", "create_graph", "inputs"]
    given = dict(zip(names, rest, strict=False)) | kwargs
    torch.autograd.backward(
        tensor,
        given.get("gradient"),
        given.get("retain_graph"),
        bool(given.get("create_graph", False)),
        inputs=given.get("inputs"),
    )
    return None


Handler = Callable[[DeviceMode, Call, Any, Any], object]


def _getter(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


_HANDLERS: dict[Any, Handler] = {
    _getter("device"): _device,
    _getter("is_cuda"): _is_cuda,
    _getter("is_cpu"): _is_cpu,
    torch.Tensor.get_device: _get_device,
    torch.Tensor.data_ptr: _data_ptr,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.to: _to,
    torch.Tensor.numpy: _refuse_host_view,
    torch.Tensor.__array__: _refuse_host_view,
    torch.Tensor.__dlpack__: _refuse_host_view,
    torch.Tensor.tolist: _to_python,
    torch.Tensor.__repr__: _to_python,
    torch.Tensor.pin_memory: _pin,
    torch.Tensor.copy_: _copy,
    torch.Tensor.backward: _backward,
}

_FACTORIES = {
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint,
    torch.arange, torch.linspace, torch.eye, torch.tensor, torch.as_tensor, torch.empty_strided,
    torch.randperm,
}  # fmt: skip


@contextlib.contextmanager
def torch_on(gpu: VirtualGPU) -> Iterator[DeviceMode]:
    """PyTorch sees the virtual GPU as `cuda:0` in this thread."""
    operators = OperatorMode(gpu)
    mode = DeviceMode(gpu, operators)
    backward = torch.autograd.function.BackwardCFunction.apply

    def apply_with_mode(self: Any, *args: object) -> object:
        with mode:
            return backward(self, *args)  # type: ignore[no-untyped-call]

    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_module.replaced(gpu, mode))
        torch.autograd.function.BackwardCFunction.apply = apply_with_mode  # type: ignore[method-assign]
        try:
            stack.enter_context(operators)
            stack.enter_context(mode)
            yield mode
        finally:
            torch.autograd.function.BackwardCFunction.apply = backward  # type: ignore[method-assign]


__all__ = ["CUDA", "DeviceMode", "DeviceRead", "OperatorMode", "is_cuda", "torch_on"]
