"""Index arithmetic as polynomials: what `pid * BLOCK + arange`, `//` and `%` compute, compared
without regard to names, order or which intermediate results have variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Self

Kind = Literal["program", "argument", "loop", "range", "quotient", "remainder", "opaque"]


@dataclass(frozen=True, order=True)
class Symbol:
    """Something an index is computed from.

    `name` is the axis of a program id, the name of a kernel argument, the number of a loop in
    program order, or
    `start:end:dimension` of a range; a quotient and a remainder have their operands in `inner`.
    """

    kind: Kind
    name: str
    inner: tuple[Polynomial, ...] = ()


Monomial = tuple[Symbol, ...]


@dataclass(frozen=True, order=True)
class Polynomial:
    """A sum of integer multiples of products of symbols, in one order."""

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def build(cls, terms: Iterable[tuple[Monomial, int]]) -> Self:
        """The polynomial of these terms, equal monomials added."""
        total: dict[Monomial, int] = {}
        for monomial, factor in terms:
            key = tuple(sorted(monomial))
            total[key] = total.get(key, 0) + factor
        return cls(tuple(sorted((m, f) for m, f in total.items() if f)))

    @classmethod
    def constant(cls, value: int) -> Self:
        """A number."""
        return cls.build([((), value)])

    @classmethod
    def of(cls, symbol: Symbol) -> Self:
        """One symbol."""
        return cls.build([((symbol,), 1)])

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.build([*self.terms, *other.terms])

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((m, -f) for m, f in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial.build(((*a, *b), f * g) for a, f in self.terms for b, g in other.terms)

    @property
    def number(self) -> int | None:
        """Its value if it is a number."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def symbols(self) -> Iterator[Symbol]:
        """All symbols, those inside quotients and remainders too."""
        for monomial, _ in self.terms:
            for symbol in monomial:
                yield symbol
                for inner in symbol.inner:
                    yield from inner.symbols()

    def has(self, test: Callable[[Symbol], bool]) -> bool:
        """Whether some symbol passes the test."""
        return any(test(symbol) for symbol in self.symbols())

    def split(self, test: Callable[[Symbol], bool]) -> tuple[Polynomial, Polynomial]:
        """The terms with a factor that passes the test, and the others."""
        chosen: list[tuple[Monomial, int]] = []
        rest: list[tuple[Monomial, int]] = []
        for monomial, factor in self.terms:
            deep = any(test(s) or any(i.has(test) for i in s.inner) for s in monomial)
            (chosen if deep else rest).append((monomial, factor))
        return Polynomial.build(chosen), Polynomial.build(rest)

    def factor(self, symbol: Symbol) -> Polynomial:
        """What a symbol is multiplied with, where it appears to the first power."""
        found = []
        for monomial, factor in self.terms:
            if monomial.count(symbol) == 1:
                rest = list(monomial)
                rest.remove(symbol)
                found.append((tuple(rest), factor))
        return Polynomial.build(found)

    def over(self, divisor: Polynomial) -> Polynomial | None:
        """The exact quotient by a polynomial of one term, or None."""
        if len(divisor.terms) != 1:
            return None
        below, by = divisor.terms[0]
        found = []
        for monomial, factor in self.terms:
            rest = list(monomial)
            for symbol in below:
                if symbol not in rest:
                    return None
                rest.remove(symbol)
            if factor % by:
                return None
            found.append((tuple(rest), factor // by))
        return Polynomial.build(found)

    def replace(self, values: dict[Symbol, Polynomial]) -> Polynomial:
        """With symbols replaced, inside quotients and remainders too."""
        total = ZERO
        for monomial, factor in self.terms:
            product = Polynomial.constant(factor)
            for symbol in monomial:
                if symbol in values:
                    product = product * values[symbol]
                elif symbol.inner:
                    product = product * _again(symbol, [i.replace(values) for i in symbol.inner])
                else:
                    product = product * Polynomial.of(symbol)
            total = total + product
        return total


ZERO = Polynomial.constant(0)
ONE = Polynomial.constant(1)


def _again(symbol: Symbol, inner: list[Polynomial]) -> Polynomial:
    if symbol.kind == "quotient":
        return quotient(*inner)
    if symbol.kind == "remainder":
        return remainder(*inner)
    return Polynomial.of(Symbol(symbol.kind, symbol.name, tuple(inner)))


def quotient(value: Polynomial, divisor: Polynomial) -> Polynomial:
    """`value // divisor` of non-negative numbers, in a normal form of digits.

    `(x // a) // b` is `x // (a·b)`, and `(x % (a·b)) // b` is `(x // b) % a`.
    """
    if divisor == ONE:
        return value
    a, b = value.number, divisor.number
    if a is not None and b:
        return Polynomial.constant(a // b)
    exact = value.over(divisor)
    if exact is not None:
        return exact
    only = _single(value)
    if only is not None and only.kind == "quotient":
        return quotient(only.inner[0], only.inner[1] * divisor)
    if only is not None and only.kind == "remainder":
        radix = only.inner[1].over(divisor)
        if radix is not None:
            return remainder(quotient(only.inner[0], divisor), radix)
    return Polynomial.of(Symbol("quotient", "", (value, divisor)))


def remainder(value: Polynomial, divisor: Polynomial) -> Polynomial:
    """`value % divisor` of non-negative numbers; `(x % (a·b)) % b` is `x % b`."""
    if divisor == ONE:
        return ZERO
    a, b = value.number, divisor.number
    if a is not None and b:
        return Polynomial.constant(a % b)
    only = _single(value)
    if only is not None and only.kind == "remainder" and only.inner[1].over(divisor) is not None:
        return remainder(only.inner[0], divisor)
    return Polynomial.of(Symbol("remainder", "", (value, divisor)))


def difference(left: Polynomial, right: Polynomial) -> Polynomial:
    """`left - right`; `x - (x // n) * n` is `x % n`."""
    for monomial, _ in right.terms:
        for symbol in monomial:
            if symbol.kind == "quotient" and symbol.inner[0] == left:
                whole = Polynomial.of(symbol) * symbol.inner[1]
                if whole == right:
                    return remainder(left, symbol.inner[1])
    return left - right


def _single(value: Polynomial) -> Symbol | None:
    """The symbol that a polynomial is."""
    if len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        return value.terms[0][0][0]
    return None


def program(axis: int) -> Symbol:
    """A program id."""
    return Symbol("program", str(axis))


def argument(name: str) -> Symbol:
    """A kernel argument."""
    return Symbol("argument", name)


def span(start: int, end: int, dimension: int = 0) -> Symbol:
    """The numbers from start to end along one dimension of a tensor."""
    return Symbol("range", f"{start}:{end}:{dimension}")


def bounds(symbol: Symbol) -> tuple[int, int, int]:
    """Start, end and dimension of a range."""
    start, end, dimension = symbol.name.split(":")
    return int(start), int(end), int(dimension)


def moved(value: Polynomial, place: Callable[[int], int]) -> Polynomial:
    """With the dimension of every range changed, as by `[:, None]` or a transpose."""
    table = {
        s: Polynomial.of(span(bounds(s)[0], bounds(s)[1], place(bounds(s)[2])))
        for s in value.symbols()
        if s.kind == "range"
    }
    return value.replace(table)
