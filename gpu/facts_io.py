"""`CallFacts` as JSON. The line log stays behind: only the cache model needs it."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

import numpy as np

from kopt.gpu.counters import Finding, LaunchCounters, Site
from kopt.gpu.facts import (
    CacheTraffic,
    CallFacts,
    CompiledFacts,
    LaunchFacts,
    OperatorFacts,
    WarpPath,
)
from kopt.gpu.trace import Json

T = TypeVar("T")


def to_json(facts: CallFacts) -> Json:
    """The facts as plain JSON."""
    return _plain(facts)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value


def from_json(raw: Any) -> CallFacts:
    """The inverse of `to_json`. Raises `KeyError` or `TypeError` for something else."""
    return _build(CallFacts, raw)


_CLASSES = (CallFacts, LaunchFacts, OperatorFacts, CompiledFacts, CacheTraffic, Finding,
            LaunchCounters, Site, WarpPath)  # fmt: skip


def _build(kind: type[T], raw: dict[str, Any]) -> T:
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name == "lines" and kind is LaunchCounters:
            continue
        values[field.name] = _value(hints[field.name], raw[field.name])
    return kind(**values)


def _value(hint: Any, raw: Any) -> Any:
    if hint in _CLASSES:
        return _build(hint, raw)
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = typing.get_args(hint)
        return tuple(_value(inner[0], v) for v in raw)
    if origin is types.UnionType or origin is typing.Union:
        return raw
    return raw
