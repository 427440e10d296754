"""A small writer of LLVM IR text. Values are a type and a name; a warp is 32 lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LANES = 32


@dataclass(frozen=True)
class Value:
    """An LLVM value: its type and how to refer to it."""

    type: str
    ref: str

    @property
    def vector(self) -> bool:
        """Whether it has one element per lane."""
        return self.type.startswith("<32 x ")

    @property
    def element(self) -> str:
        """The scalar type."""
        return self.type[6:-1] if self.vector else self.type

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


FLOATS = {16: "half", 32: "float", 64: "double"}


def lanes(element: str) -> str:
    """The type of 32 lanes of `element`."""
    return f"<{LANES} x {element}>"


def width(type_: str) -> int:
    """Bits of a scalar type, or of one lane of a vector type."""
    element = type_[6:-1] if type_.startswith("<32 x ") else type_
    return {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}.get(element) or int(
        element[1:]
    )


def constant(type_: str, value: int | float | str) -> Value:
    """A scalar constant, or the same constant in every lane."""
    if type_.startswith("<"):
        element = type_[type_.index("x") + 2 : -1]
        count = int(type_[1 : type_.index(" ")])
        return Value(type_, "<" + ", ".join([f"{element} {value}"] * count) + ">")
    return Value(type_, str(value))


def per_lane(element: str, values: Iterable[int]) -> Value:
    """A constant with its own value for each lane."""
    items = list(values)
    return Value(
        f"<{len(items)} x {element}>", "<" + ", ".join(f"{element} {v}" for v in items) + ">"
    )


@dataclass(frozen=True)
class Routine:
    """A function that many kernels share: compiled once and kept."""

    name: str
    result: str
    arguments: tuple[str, ...]
    text: str
    calls: tuple[Routine, ...] = ()

    @property
    def declaration(self) -> str:
        """How another module declares it."""
        return f"declare fastcc {self.result} @{self.name}({', '.join(self.arguments)}) #0"


def load_slots(**slots: int) -> str:
    """Text that loads slots of the context `%ctx` into values of these names."""
    return "\n".join(
        f"  %{name}.p = getelementptr i64, ptr %ctx, i64 {index}\n"
        f"  %{name} = load i64, ptr %{name}.p"
        for name, index in slots.items()
    )


def load_pointers(**slots: int) -> str:
    """Text that loads slots of the context `%ctx` as pointers of these names."""
    return "\n".join(
        load_slots(**{name + ".i": index}) + f"\n  %{name} = inttoptr i64 %{name}.i to ptr"
        for name, index in slots.items()
    )


def iota(step: int, count: int = LANES) -> str:
    """Text of the constant vector `0, step, 2 * step, …` of i64."""
    return "<" + ", ".join(f"i64 {i * step}" for i in range(count)) + ">"


class Code:
    """The body of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.routines: dict[str, Routine] = {}
        """Shared routines that the function calls."""

    def name(self) -> str:
        self.count += 1
        return f"%t{self.count}"

    def raw(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def emit(self, type_: str, text: str) -> Value:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return Value(type_, name)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        return self.emit(a.type, f"{op} {a.type} {a.ref}, {b.ref}")

    def compare(self, kind: str, predicate: str, a: Value, b: Value) -> Value:
        type_ = lanes("i1") if a.vector else "i1"
        return self.emit(type_, f"{kind} {predicate} {a.type} {a.ref}, {b.ref}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(a.type, f"select {condition}, {a}, {b}")

    def cast(self, op: str, value: Value, element: str) -> Value:
        type_ = lanes(element) if value.vector else element
        if type_ == value.type:
            return value
        return self.emit(type_, f"{op} {value} to {type_}")

    def bits(self, value: Value) -> Value:
        """The value as an integer of its width."""
        return self.cast("bitcast", value, f"i{width(value.type)}")

    def splat(self, value: Value) -> Value:
        type_ = lanes(value.type)
        first = self.emit(type_, f"insertelement {type_} poison, {value}, i32 0")
        return self.emit(
            type_, f"shufflevector {type_} {first.ref}, {type_} poison, <32 x i32> zeroinitializer"
        )

    def shuffle(self, a: Value, mask: Sequence[int], b: Value | None = None) -> Value:
        element = a.type[a.type.index("x") + 2 : -1]
        type_ = f"<{len(mask)} x {element}>"
        other = b.ref if b else "poison"
        picks = ", ".join(f"i32 {i}" for i in mask)
        return self.emit(
            type_, f"shufflevector {a}, {a.type} {other}, <{len(mask)} x i32> <{picks}>"
        )

    def intrinsic(self, name: str, type_: str, arguments: Sequence[Value]) -> Value:
        """Call `@llvm.<name>`, whose suffix is made from `type_` where `name` ends in a dot."""
        full = "llvm." + name + (suffix(type_) if name.endswith(".") else "")
        return self.call(full, type_, arguments)

    def call(self, name: str, type_: str, arguments: Sequence[Value]) -> Value:
        """Call an LLVM intrinsic by its whole name."""
        text = ", ".join(str(a) for a in arguments)
        if type_ == "void":
            self.raw(f"call void @{name}({text})")
            return Value("void", "")
        return self.emit(type_, f"call {type_} @{name}({text})")

    def routine(self, routine: Routine, arguments: Sequence[Value]) -> Value:
        """Call a shared routine."""
        self.routines[routine.name] = routine
        text = ", ".join(str(a) for a in arguments)
        call = f"call fastcc {routine.result} @{routine.name}({text})"
        if routine.result == "void":
            self.raw(call)
            return Value("void", "")
        return self.emit(routine.result, call)

    def extract(self, pack: Value, element: str, index: int) -> Value:
        """Element `index` of an aggregate whose elements are `element`s."""
        return self.emit(element, f"extractvalue {pack}, {index}")


def suffix(type_: str) -> str:
    """How LLVM mangles a type in an intrinsic's name."""
    if type_.startswith("<"):
        count = type_[1 : type_.index(" ")]
        return f"v{count}" + suffix(type_[type_.index("x") + 2 : -1])
    return {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(
        type_, type_
    )
