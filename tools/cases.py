"""On which inputs a candidate is judged: small shapes, held-out shapes, and value laws."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import JsonValue

from kopt.tools.laws import AS_GIVEN, laws_for
from kopt.tools.models import Target

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
    optional: bool
    """Held-out shapes may be refused by the target itself."""


@dataclass(frozen=True)
class Case:
    """One shape filled by one law."""

    name: str
    shape: str
    law: str
    seed: int
    optional: bool


def seed_of(secret: bytes, *parts: str) -> int:
    """A seed for one purpose, from the run's secret."""
    digest = hashlib.sha256(secret + "|".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "little")


def _integers(params: dict[str, JsonValue]) -> dict[str, int]:
    return {
        k: v for k, v in params.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0
    }


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
    """The small shape of each workload, and shapes that no workload has: one off, prime, one."""
    found: list[Shape] = []
    seen: list[dict[str, JsonValue]] = []

    def add(name: str, params: dict[str, JsonValue], optional: bool) -> None:
        if params not in seen:
            seen.append(params)
            found.append(Shape(name, params, optional))

    for workload in target.workloads:
        base = small(workload.params)
        add(f"{workload.name}.small", base, False)
        numbers = _integers(base)
        if not numbers:
            continue
        largest = max(numbers, key=lambda n: numbers[n])
        add(f"{workload.name}.one_more", {**base, **{n: v + 1 for n, v in numbers.items()}}, True)
        add(f"{workload.name}.prime", {**base, largest: _prime(numbers[largest])}, True)
        add(f"{workload.name}.short", {**base, largest: max(1, numbers[largest] // 16 - 3)}, True)
    return found


def _prime(limit: int) -> int:
    """The largest prime below."""
    for number in range(max(limit - 1, 2), 2, -1):
        if all(number % d for d in range(2, int(number**0.5) + 1)):
            return number
    return 2


def cases(target: Target, secret: bytes, *, full: bool) -> list[Case]:
    """The cases of a quick or a full judgement, cheapest first."""
    found = []
    laws = laws_for(target.laws) if full else QUICK_LAWS
    if not full and target.laws is not None:
        laws = tuple(law for law in QUICK_LAWS if law == AS_GIVEN or law in target.laws)
    for shape in shapes(target):
        if shape.optional and not full:
            continue
        wanted = laws if not shape.optional else (AS_GIVEN,)
        for law in wanted:
            name = f"{shape.name}.{law}"
            seed = seed_of(secret, "law", name)
            # A law may make the original itself fail or give no finite result.
            optional = shape.optional or law != AS_GIVEN
            found.append(Case(name, shape.name, law, seed, optional))
    return found
