"""On which inputs a candidate is judged: small shapes, held-out shapes, and value laws."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import JsonValue

from kopt.tools.laws import AS_GIVEN, laws_for
from kopt.tools.models import Target
from kopt.tools.target import integer_defaults

QUICK_LAWS = (AS_GIVEN, "normal")
SMALL = 64
"""Integer parameters up to this are kept as they are."""
LONGEST = 2048
"""What the largest parameter becomes at most, where it stands alone."""
SEVERAL = 512
"""The same where several parameters are as large."""


@dataclass(frozen=True)
class Shape:
    """Parameters of `make_inputs`."""

    name: str
    params: dict[str, JsonValue]
    workload: str
    held_out: bool
    """A shape of the judge's choice, which the target itself may refuse or get wrong."""


@dataclass(frozen=True)
class Case:
    """One shape filled by one law."""

    name: str
    shape: str
    law: str
    seed: int
    must_hold: bool
    """The original must agree with its reference here; elsewhere it is left out if it does not."""


def seed_of(secret: bytes, *parts: str) -> int:
    """A seed for one purpose, from the run's secret."""
    digest = hashlib.sha256(secret + "|".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "little")


def small(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The parameters with large integers made small, their powers of two kept."""
    numbers = _integers(params)
    if not numbers:
        return dict(params)
    largest = max(numbers.values())
    alone = sum(v == largest for v in numbers.values()) == 1
    found = dict(params)
    for name, value in numbers.items():
        limit = (LONGEST if alone else SEVERAL) if value == largest else SMALL
        if value > limit:
            found[name] = limit
    return found


def shapes(target: Target) -> list[Shape]:
    """The small shape of each workload, and shapes that no workload has: one more, prime, one."""
    found: list[Shape] = []
    seen: list[dict[str, JsonValue]] = []
    defaults: dict[str, JsonValue] = dict(integer_defaults(target))
    for workload in target.workloads:
        base = small({**defaults, **workload.params})

        def add(suffix: str, params: dict[str, JsonValue], of: str = workload.name) -> None:
            if params not in seen:
                seen.append(params)
                found.append(Shape(f"{of}.{suffix}", params, of, suffix != "small"))

        add("small", base)
        numbers = _integers(base)
        by_size = sorted(numbers, key=lambda n: -numbers[n])
        for name in by_size[:2]:
            add(f"{name}_{numbers[name] + 1}", {**base, name: numbers[name] + 1})
        for name in by_size[:1]:
            for value in (_prime_below(numbers[name]), max(1, numbers[name] // 16 - 3), 1):
                add(f"{name}_{value}", {**base, name: value})
    return found


def cases(target: Target, secret: bytes, *, full: bool) -> list[Case]:
    """The cases of a quick or a full judgement, cheapest first."""
    laws = laws_for(target.laws)
    if not full:
        laws = tuple(law for law in laws if law in QUICK_LAWS)
    found = []
    for shape in shapes(target):
        if shape.held_out and not full:
            continue
        for law in (AS_GIVEN,) if shape.held_out else laws:
            name = f"{shape.name}.{law}"
            must_hold = not shape.held_out and law == AS_GIVEN
            found.append(Case(name, shape.name, law, seed_of(secret, "law", name), must_hold))
    return found


def _integers(params: dict[str, JsonValue]) -> dict[str, int]:
    return {
        k: v for k, v in params.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0
    }


def _prime_below(limit: int) -> int:
    for number in range(limit - 1, 2, -1):
        if all(number % d for d in range(2, int(number**0.5) + 1)):
            return number
    return 2
