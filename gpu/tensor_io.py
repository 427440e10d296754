"""Tensors on disk, readable without torch: a tree, and one raw file for each storage.

A folder holds `tree.json` with the nested value, `{"tensor": i}` where tensors were, and the list
of tensors; storages are `s0.bin`, `s1.bin`, … Two tensors that share a storage share its file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.errors import UsageError
from kopt.gpu.trace import Json, TensorRef

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one element, by torch's dtype name."""


@dataclass
class Tensors:
    """A nested value with its tensors apart. `TensorRef.buffer` is an index into `storages`."""

    tree: Json
    tensors: list[TensorRef]
    storages: list[NDArray[np.uint8]]

    @property
    def nbytes(self) -> int:
        """Bytes of all storages."""
        return sum(len(s) for s in self.storages)


def save(value: Tensors, folder: Path) -> None:
    """Write the value; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, storage in enumerate(value.storages):
        with (folder / f"s{number}.bin").open("wb") as file:  # `tofile` loses the errno
            file.write(np.ascontiguousarray(storage).data)
    document = {
        "tree": value.tree,
        "tensors": [asdict(t) for t in value.tensors],
        "storages": [len(s) for s in value.storages],
    }
    (folder / "tree.json").write_text(json.dumps(document), encoding="utf-8")


def load(folder: Path, *, memory_map: bool = False) -> Tensors:
    """Read what `save` wrote and check it: the folder may come from a hostile process.

    Raises `UsageError` if sizes, views and files do not fit together.
    """
    document = json.loads((folder / "tree.json").read_text(encoding="utf-8"))
    storages: list[NDArray[np.uint8]] = []
    for number, size in enumerate(document["storages"]):
        path = folder / f"s{number}.bin"
        if path.is_symlink() or path.stat().st_size != size:
            raise UsageError(f"{path.name} does not hold the {size} bytes that tree.json promises")
        if memory_map and size:
            storages.append(np.memmap(path, np.uint8, "r"))
        else:
            storages.append(np.fromfile(path, np.uint8))
    tensors = [reference(raw) for raw in document["tensors"]]
    for tensor in tensors:
        check(tensor, storages)
    return Tensors(document["tree"], tensors, storages)


def reference(raw: dict[str, Json]) -> TensorRef:
    """A `TensorRef` from its JSON."""
    shape, stride = raw["shape"], raw["stride"]
    if not isinstance(shape, list) or not isinstance(stride, list):
        raise UsageError("a tensor's shape and stride must be lists")
    return TensorRef(
        int(str(raw["buffer"])),
        str(raw["dtype"]),
        tuple(int(str(n)) for n in shape),
        tuple(int(str(n)) for n in stride),
        int(str(raw["offset"])),
    )


def check(tensor: TensorRef, storages: list[NDArray[np.uint8]]) -> None:
    """Raise `UsageError` unless every element of the view lies inside its storage."""
    size = ITEM_BYTES.get(tensor.dtype)
    if size is None:
        raise UsageError(f"tensors of dtype {tensor.dtype} are not supported")
    if not 0 <= tensor.buffer < len(storages) or len(tensor.shape) != len(tensor.stride):
        raise UsageError("a tensor does not fit its storage")
    if any(n < 0 for n in (*tensor.shape, *tensor.stride, tensor.offset)):
        raise UsageError("a tensor has a negative shape, stride or offset")
    if 0 in tensor.shape:
        return
    last = tensor.offset + sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride, strict=True)
    )
    if (last + 1) * size > len(storages[tensor.buffer]):
        raise UsageError("a tensor reaches past the end of its storage")


def raw_view(tensor: TensorRef, storage: NDArray[np.uint8]) -> NDArray[np.void]:
    """The tensor's elements as opaque items of its size, strided over the storage's bytes."""
    size = ITEM_BYTES[tensor.dtype]
    items = storage[: len(storage) // size * size].view(np.dtype((np.void, size)))
    return np.lib.stride_tricks.as_strided(
        items[tensor.offset :],
        tensor.shape,
        tuple(s * size for s in tensor.stride),
        writeable=False,
    )


_NUMPY = {
    name: np.dtype(name)
    for name in (
        "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
        "uint16", "uint32", "uint64", "complex64", "complex128",
    )
}  # fmt: skip


def to_numpy(tensor: TensorRef, storage: NDArray[np.uint8]) -> NDArray[np.generic]:
    """The tensor's values. `bfloat16` becomes float32, which holds all its values exactly."""
    raw = np.ascontiguousarray(raw_view(tensor, storage))
    if tensor.dtype == "bfloat16":
        wide = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(tensor.shape)
    if tensor.dtype not in _NUMPY:
        raise UsageError(f"tensors of dtype {tensor.dtype} are not supported")
    return raw.view(_NUMPY[tensor.dtype]).reshape(tensor.shape)
