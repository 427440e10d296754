"""Triton's TTIR text as a graph of operations: enough of MLIR to see loops, loads and reductions.

The text is what the compiler left beside the PTX: SSA operations, one a line, with regions in
braces and source locations as `loc(#n)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_ASSIGN = re.compile(r"^(?:(%[\w$.]+)(?::(\d+))?\s*=\s*)?(.*)$", re.DOTALL)
_NAME = re.compile(r'^"?([a-z_]+\.[a-z_0-9.]+)"?')
_VALUE = re.compile(r"%[\w$.]+(?:#\d+)?")
_TRAILING_LOC = re.compile(r"\s*loc\((#loc\d*|unknown|\"[^\"]*\"[^)]*)\)\s*$")
_LOC_DEF = re.compile(r"^(#loc\d*)\s*=\s*loc\((.*)\)\s*$", re.MULTILINE)
_PLACE = re.compile(r'^"([^"]+)":(\d+):(\d+)')
_ARGUMENT = re.compile(
    r"(%[\w$.]+):\s*([^,{]+?)(?:\s*\{[^}]*\})?\s*(?:loc\([^)]*(?:\([^)]*\))?\))?\s*(?:,|$)"
)


Place = tuple[str, int]
"""File and line."""


@dataclass
class Operation:
    """One operation. `results` and `operands` are SSA names, e.g. `%acc_3` or `%for#1`."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    """The operation without results and location."""
    file: str
    line: int
    """Where the kernel has it: of an inlined call, the outermost call site; 0 if nowhere."""
    inner: tuple[str, int] = ("", 0)
    """Where it is written: in a helper function, the line there."""
    block: Block | None = None
    """The block that holds it."""
    regions: list[Block] = field(default_factory=list)

    @property
    def type(self) -> str:
        """What follows the last colon: the result's type for most operations."""
        return self.text.rsplit(" : ", 1)[-1].strip() if " : " in self.text else ""


@dataclass
class Block:
    """Straight-line operations; `arguments` of loops are the induction variable, then the carried
    values."""

    arguments: tuple[str, ...]
    operations: list[Operation] = field(default_factory=list)
    parent: Operation | None = None


@dataclass(frozen=True)
class Loop:
    """An `scf.for`."""

    operation: Operation
    variable: str
    lower: str
    upper: str
    step: str
    initial: tuple[str, ...]
    carried: tuple[str, ...]
    """Names of the carried values inside the body."""
    body: Block

    @property
    def yields(self) -> tuple[str, ...]:
        """What the body hands to the next iteration."""
        last = self.body.operations[-1] if self.body.operations else None
        return last.operands if last is not None and last.name == "scf.yield" else ()


@dataclass
class Module:
    """One kernel."""

    arguments: tuple[str, ...]
    """Names without `%`, in order."""
    body: Block
    definitions: dict[str, Operation]

    def walk(self, block: Block | None = None) -> Iterator[Operation]:
        """All operations, outer before inner, in program order."""
        for operation in (block or self.body).operations:
            yield operation
            for region in operation.regions:
                yield from self.walk(region)

    def loops(self) -> list[Loop]:
        """All `scf.for` loops in program order."""
        return [_loop(op) for op in self.walk() if op.name == "scf.for"]

    def constant(self, value: str) -> float | None:
        """The number that a value is known to be, splats included."""
        operation = self.definitions.get(value)
        if operation is None:
            return None
        if operation.name in {"tt.splat", "arith.extsi", "arith.extui"}:
            return self.constant(operation.operands[0])
        if operation.name != "arith.constant":
            return None
        text = operation.text.split(" ", 1)[1].split(" : ")[0].strip()
        inner = re.match(r"dense<(.*)>", text)
        return _number(inner.group(1) if inner else text)

    def argument(self, value: str) -> str | None:
        """The kernel argument that a value is, through casts and splats."""
        name = value.removeprefix("%")
        if name in self.arguments:
            return name
        operation = self.definitions.get(value)
        if operation is not None and operation.name in {
            "tt.splat", "arith.extsi", "arith.extui", "arith.trunci", "tt.broadcast",
            "tt.expand_dims", "tt.bitcast",
        }:  # fmt: skip
            return self.argument(operation.operands[0])
        return None

    def base(self, pointer: str) -> str | None:
        """The pointer argument at the root of an address computation."""
        seen: set[str] = set()
        while pointer not in seen:
            seen.add(pointer)
            name = pointer.removeprefix("%")
            if name in self.arguments:
                return name
            operation = self.definitions.get(pointer)
            if operation is None:
                carried = self._initial(pointer)
                if carried is None:
                    return None
                pointer = carried
                continue
            if not operation.operands:
                return None
            if operation.name == "scf.for":
                index = operation.results.index(pointer) if pointer in operation.results else 0
                pointer = _loop(operation).initial[index]
                continue
            pointer = operation.operands[0]
        return None

    def _initial(self, value: str) -> str | None:
        """What a loop-carried value starts as."""
        for loop in self.loops():
            if value in loop.carried:
                return loop.initial[loop.carried.index(value)]
        return None

    def key(self, value: str, rename: dict[str, str], depth: int = 0) -> str:
        """The expression that computes a value, equal for equal expressions; `rename` gives names
        to values that are to be taken as the same, such as the induction variables of two loops."""
        if value in rename:
            return rename[value]
        operation = self.definitions.get(value)
        if operation is None or depth > 60 or operation.regions:
            return value
        inner = ",".join(self.key(o, rename, depth + 1) for o in operation.operands)
        shape = _VALUE.sub("", operation.text)
        return f"{shape}({inner})"

    def depends(self, value: str, on: str) -> bool:
        """Whether a value is computed from another."""
        stack, seen = [value], set()
        while stack:
            current = stack.pop()
            if current == on:
                return True
            if current in seen:
                continue
            seen.add(current)
            operation = self.definitions.get(current)
            if operation is not None:
                stack.extend(operation.operands)
                for region in operation.regions:
                    for inner in self.walk(region):
                        stack.extend(inner.operands)
            else:
                start = self._initial(current)
                if start is not None:
                    stack.append(start)
        return False

    def combine(self, reduce: Operation) -> str:
        """The operation that a `tt.reduce` combines with, e.g. `arith.addf`; "" if it is a mix."""
        names = [
            op.name
            for region in reduce.regions
            for op in self.walk(region)
            if op.name != "tt.reduce.return"
        ]
        return names[0] if len(names) == 1 else ""


def _number(text: str) -> float | None:
    if text in {"true", "false"}:
        return float(text == "true")
    if text.startswith("0x"):
        import struct

        bits = int(text, 16)
        form = {4: "<e", 8: "<f", 16: "<d"}.get(len(text) - 2)
        if form is None:
            return None
        return float(struct.unpack(form, bits.to_bytes((len(text) - 2) // 2, "little"))[0])
    try:
        return float(text)
    except ValueError:
        return None


def _loop(operation: Operation) -> Loop:
    head = re.search(
        r"scf\.for\s+(%[\w$.]+)\s*=\s*(%[\w$.#]+)\s+to\s+(%[\w$.#]+)\s+step\s+(%[\w$.#]+)",
        operation.text,
    )
    assert head is not None, operation.text
    carried = re.search(r"iter_args\((.*?)\)\s*->", operation.text)
    pairs = re.findall(r"(%[\w$.]+)\s*=\s*(%[\w$.#]+)", carried.group(1)) if carried else []
    variable, lower, upper, step = head.groups()
    return Loop(
        operation,
        variable,
        lower,
        upper,
        step,
        tuple(start for _, start in pairs),
        tuple(name for name, _ in pairs),
        operation.regions[0],
    )


def parse(text: str) -> Module:
    """The graph of the public kernel in a TTIR module."""
    places = _Places(text)
    lines = [line.strip() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("tt.func public"))
    head = lines[start]
    inside = head[head.index("(") + 1 : _closing(head, head.index("("))]
    arguments = tuple(m.group(1)[1:] for m in _ARGUMENT.finditer(inside))
    body = Block(arguments)
    definitions: dict[str, Operation] = {}
    stack: list[Block] = [body]
    scopes = _Scopes()
    for raw in lines[start + 1 :]:
        if not raw or raw.startswith(("#", "//")):
            continue
        if raw.startswith("^"):
            inside = raw[raw.find("(") + 1 : raw.rfind(")")]
            names = tuple(scopes.define(m.group(1)) for m in _ARGUMENT.finditer(inside))
            block = stack[-1]
            if block.operations:
                # Blocks behind an early return hang on the branch that leads to them.
                above = block.parent or block.operations[-1]
                block = Block(names, parent=above)
                above.regions.append(block)
                stack[-1] = block
            else:
                block.arguments = names
            continue
        if raw.startswith("}"):
            closed = stack.pop()
            if not stack:
                break
            scopes.close()
            owner = closed.parent
            rest, place = places.split(raw)
            if owner is not None and place is not None:
                (owner.file, owner.line), owner.inner = place
            rest = scopes.resolved(rest)
            if rest.rstrip().endswith("{"):
                scopes.open()
                # `} else {` or `} do {`: the next region of the same operation.
                assert owner is not None
                block = Block((), parent=owner)
                owner.regions.append(block)
                stack.append(block)
            elif owner is not None:
                owner.text += " " + rest.lstrip("}) ")
            continue
        stripped, place = places.split(raw)
        match = _ASSIGN.match(stripped)
        assert match is not None
        result, count, rest = match.groups()
        name = _NAME.match(rest)
        opens = rest.rstrip().endswith("{") or rest.rstrip().endswith("({")
        own = _own_names(rest)
        rest = scopes.resolved(rest, keep=own)
        if result is not None:
            result = scopes.define(result)
        if opens:
            scopes.open()
            for local in own:
                rest = re.sub(rf"{re.escape(local)}(?![\w$.#])", scopes.define(local), rest)
        (file, line), inner = place or (("", 0), ("", 0))
        results = (
            ()
            if result is None
            else ((result,) if count is None else tuple(f"{result}#{i}" for i in range(int(count))))
        )
        operation = Operation(
            name.group(1) if name else rest.split(" ")[0],
            results,
            tuple(_VALUE.findall(_arguments(rest))),
            rest,
            file,
            line,
            inner,
            stack[-1],
        )
        stack[-1].operations.append(operation)
        for one in results:
            definitions[one] = operation
        if opens:
            block = Block((), parent=operation)
            operation.regions.append(block)
            stack.append(block)
    module = Module(arguments, body, definitions)
    for loop in module.loops():
        loop.body.arguments = (loop.variable, *loop.carried)
    return module


def _own_names(rest: str) -> tuple[str, ...]:
    """Names that a loop's head defines for its body."""
    if not rest.startswith("scf.for"):
        return ()
    head = rest.split("->")[0]
    return tuple(re.findall(r"(%[\w$.]+)\s*=\s*%", head))


class _Scopes:
    """SSA names are printed anew in sibling regions; here each gets a name of its own."""

    def __init__(self) -> None:
        self.names: list[dict[str, str]] = [{}]
        self.used: set[str] = set()

    def open(self) -> None:
        self.names.append({})

    def close(self) -> None:
        self.names.pop()

    def define(self, name: str) -> str:
        unique, number = name, 2
        while unique in self.used:
            unique, number = f"{name}.r{number}", number + 1
        self.used.add(unique)
        self.names[-1][name] = unique
        return unique

    def resolved(self, text: str, keep: tuple[str, ...] = ()) -> str:
        """The text with every name but `keep` replaced by its unique one."""

        def one(match: re.Match[str]) -> str:
            base, _, index = match.group().partition("#")
            if base in keep:
                return match.group()
            for scope in reversed(self.names):
                if base in scope:
                    return scope[base] + (f"#{index}" if index else "")
            return match.group()

        return _VALUE.sub(one, text)


def _arguments(rest: str) -> str:
    """The part of an operation with its operands; of a loop, without the names it defines."""
    if rest.startswith("scf.for"):
        return re.sub(r"(%[\w$.]+)\s*=\s*(?=%)", "", rest)
    return rest


def _closing(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text)


class _Places:
    """Source places of `loc` references."""

    def __init__(self, text: str) -> None:
        self.table = dict(_LOC_DEF.findall(text))

    def split(self, raw: str) -> tuple[str, tuple[Place, Place] | None]:
        """A line without its location, and the outermost and innermost places."""
        match = _TRAILING_LOC.search(raw)
        if match is None:
            return raw, None
        outer = self.place(match.group(1), outermost=True)
        inner = self.place(match.group(1), outermost=False)
        places = (outer, inner) if outer is not None and inner is not None else None
        return raw[: match.start()], places

    def place(self, reference: str, *, outermost: bool, depth: int = 0) -> Place | None:
        """File and line; of an inlined call, those of the call site or of the callee."""
        body = self.table.get(reference, reference)
        if depth > 30:
            return None
        site = re.match(r"callsite\((.*) at (.*)\)$", body)
        if site:
            order = (2, 1) if outermost else (1, 2)
            for group in order:
                found = self.place(site.group(group), outermost=outermost, depth=depth + 1)
                if found is not None:
                    return found
            return None
        place = _PLACE.match(body)
        if place:
            return place.group(1), int(place.group(2))
        named = re.match(r'^"[^"]*"\((.*)\)$', body)
        if named:
            return self.place(named.group(1), outermost=outermost, depth=depth + 1)
        return None
