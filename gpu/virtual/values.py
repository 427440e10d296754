"""Nested Python values with tensors, to and from `kopt.gpu.tensor_io`.

Leaves of the tree are JSON scalars, `{"tensor": i}` for device tensors, `{"host_tensor": i}` for
host tensors, `{"dtype": name}`; a tuple is `{"tuple": […]}` and a dict `{"dict": {…}}`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kopt.gpu.errors import TargetError
from kopt.gpu.tensor_io import Tensors
from kopt.gpu.trace import Json, TensorRef
from kopt.gpu.virtual.device import VirtualGPU


def flatten(value: object, gpu: VirtualGPU, what: str) -> tuple[Tensors, list[torch.Tensor]]:
    """The value with its tensors apart, and those tensors.

    Raises `TargetError` naming `what` for values that cannot be passed between processes.
    """
    tensors: list[torch.Tensor] = []

    def walk(item: object) -> Json:
        if isinstance(item, torch.Tensor):
            if item.is_sparse or item.layout != torch.strided:
                raise TargetError(f"{what} holds a sparse tensor; only strided ones are supported")
            tensors.append(item)
            kind = "tensor" if gpu.memory.find(item) is not None else "host_tensor"
            leaf: dict[str, Json] = {kind: len(tensors) - 1}
            if item.requires_grad:
                leaf["requires_grad"] = True
            return leaf
        if isinstance(item, torch.dtype):
            return {"dtype": str(item).removeprefix("torch.")}
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise TargetError(f"{what} holds a dict whose keys are not strings")
            return {"dict": {key: walk(inner) for key, inner in item.items()}}
        if isinstance(item, tuple):
            return {"tuple": [walk(inner) for inner in item]}
        if isinstance(item, list):
            return [walk(inner) for inner in item]
        if item is None or isinstance(item, bool | int | float | str):
            return item
        raise TargetError(
            f"{what} holds a {type(item).__name__}",
            "use tensors, numbers, strings, None, and lists, tuples or dicts of them",
        )

    tree = walk(value)
    storages: list[NDArray[np.uint8]] = []
    index: dict[int, int] = {}
    references = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in index:
            index[key] = len(storages)
            storages.append(storage_bytes(storage))
        references.append(
            TensorRef(
                index[key],
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tuple(tensor.stride()),
                int(tensor.storage_offset()),
            )
        )
    return Tensors(tree, references, storages), tensors


def storage_bytes(storage: torch.UntypedStorage) -> NDArray[np.uint8]:
    """The storage's memory, shared, not copied."""
    import ctypes

    size = storage.nbytes()
    if not size:
        return np.zeros(0, np.uint8)
    pointer = ctypes.cast(storage.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, (size,))


def view(reference: TensorRef, storage: NDArray[np.uint8]) -> torch.Tensor:
    """A torch tensor over the bytes of a numpy array, which it keeps alive."""
    dtype = getattr(torch, reference.dtype)
    base = torch.from_numpy(storage) if len(storage) else torch.empty(0, dtype=torch.uint8)
    return torch.empty(0, dtype=dtype).set_(
        base.untyped_storage(), reference.offset, reference.shape, reference.stride
    )


def unflatten(value: Tensors, gpu: VirtualGPU) -> tuple[object, list[torch.Tensor]]:
    """The nested value with fresh copies of its tensors, device tensors on the GPU."""
    device: set[int] = set()
    gradients: set[int] = set()

    def find(item: Json) -> None:
        if isinstance(item, dict):
            for kind in ("tensor", "host_tensor"):
                if kind in item:
                    position = item[kind]
                    assert isinstance(position, int)
                    if kind == "tensor":
                        device.add(position)
                    if item.get("requires_grad"):
                        gradients.add(position)
            for inner in item.values():
                find(inner)
        elif isinstance(item, list):
            for inner in item:
                find(inner)

    find(value.tree)
    storages = [np.array(s, copy=True) for s in value.storages]
    tensors = [view(reference, storages[reference.buffer]) for reference in value.tensors]
    for position in sorted(device):
        if gpu.memory.find(tensors[position]) is None:
            gpu.memory.add(tensors[position], f"input {position}")
    for position in gradients:
        tensors[position].requires_grad_(True)

    def build(item: Json) -> object:
        if isinstance(item, list):
            return [build(inner) for inner in item]
        if isinstance(item, dict):
            for kind in ("tensor", "host_tensor"):
                if kind in item:
                    position = item[kind]
                    assert isinstance(position, int)
                    return tensors[position]
            if "dtype" in item:
                return getattr(torch, str(item["dtype"]))
            if "tuple" in item:
                inner = item["tuple"]
                assert isinstance(inner, list)
                return tuple(build(one) for one in inner)
            inner = item["dict"]
            assert isinstance(inner, dict)
            return {key: build(one) for key, one in inner.items()}
        return item

    return build(value.tree), tensors
