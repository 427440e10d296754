"""PTX text to instructions. Grammar: NVIDIA, PTX ISA 8.8, chapters 4 (syntax) and 9."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual.ptx.instruction import (
    WIDTHS,
    Address,
    Imm,
    Instruction,
    Operand,
    Reg,
    Special,
    Symbol,
    Vector,
)


@dataclass(frozen=True)
class Param:
    """A kernel parameter of `width` bits at byte `offset` of the parameter block."""

    name: str
    width: int
    type: str
    offset: int


@dataclass
class Entry:
    """One kernel of a PTX module."""

    name: str
    params: list[Param] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    """Register name to PTX type."""
    body: list[Instruction | str] = field(default_factory=list)
    """Instructions and label names, in program order."""
    shared: dict[str, int] = field(default_factory=dict)
    """Shared variable to its byte offset."""
    static_shared_bytes: int = 0
    constants: dict[str, int] = field(default_factory=dict)
    """Module-level constant to its offset in `constant_data`."""
    constant_data: bytearray = field(default_factory=bytearray)
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    max_threads: int = 0
    """Threads per CTA that the entry declares; 0 if it declares none."""
    generic_local: bool = False
    """Whether it takes the generic address of local memory."""


_TOKEN = re.compile(
    r"""(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
      |(?P<int>-?0[xX][0-9a-fA-F]+U?|-?\d+U?)
      |(?P<name>[%$A-Za-z_][\w$]*(?:\.[xyzw](?!\w))?)
      |(?P<punct>[\[\]{},+|!])
      |(?P<space>\s+)""",
    re.VERBOSE,
)
_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)\.[xyz]$|%(laneid|warpid|nwarpid|smid|nsmid|"
    r"gridid|clock|clock64|clock_hi|globaltimer|globaltimer_lo|globaltimer_hi|lanemask_\w+|"
    r"dynamic_smem_size|total_smem_size|cluster_ctarank|cluster_nctarank|is_explicit_cluster)$"
)
_REG_DECL = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.DOTALL)
_VAR_DECL = re.compile(
    r"\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?(.*)$",
    re.DOTALL,
)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)[^,]*?\s([\w$]+)(?:\[(\d+)\])?\s*$")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(.*)$", re.DOTALL)
_INLINE = re.compile(r"// begin inline asm.*?// end inline asm", re.DOTALL)
_LOC_LINE = re.compile(r"^[ \t]*\.loc\s[^\n]*\n", re.MULTILINE)
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"(?:[ \t]+"([^"]*)")?')


def parse(text: str, name: str) -> Entry:
    """The entry `name` of a PTX module. Raises `Unsupported` for syntax it does not know."""
    files = {int(n): f"{path}/{last}" if last else path for n, path, last in _FILE.findall(text)}
    text = _INLINE.sub(_one_location, text)
    clean = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    module_shared = list(
        re.finditer(r"^[ \t]*(?:\.(?:extern|visible|weak)\s+)*(\.shared[^;]*);", clean, re.M)
    )
    head = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)([^{{]*)\{{", clean)
    if head is None:
        raise Unsupported(f"the PTX has no entry '{name}'")
    entry = Entry(name)
    _params(entry, head.group(1))
    limit = re.search(r"\.(?:req|max)ntid\s+([\d,\s]+)", head.group(2))
    if limit:
        entry.max_threads = 1
        for part in limit.group(1).split(","):
            entry.max_threads *= int(part)
    for match in module_shared:
        _variable(entry, match.group(1), extern="extern" in match.group(0))
    for match in re.finditer(
        r"^[ \t]*(?:\.(?:visible|weak)\s+)*(\.(?:global|const)\s[^;]*);", clean, re.M
    ):
        _constant(entry, match.group(1))
    _Body(entry, files).read(_block(clean, head.end()))
    return entry


def _one_location(block: re.Match[str]) -> str:
    """Inline assembly at one place: LLVM counts the source line up for each of its lines."""
    first = _LOC_LINE.search(block.group())
    if first is None:
        return block.group()
    rest = _LOC_LINE.sub("", block.group()[first.end() :])
    return block.group()[: first.end()] + rest


def _constant(entry: Entry, text: str) -> None:
    """A module-level array; without an initialiser it is zero."""
    match = re.match(
        r"\.(?:global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*(.*))?$",
        text.strip(),
        re.DOTALL,
    )
    if match is None or match.group(2) not in WIDTHS:
        raise Unsupported(f"PTX variable: {text.strip()[:60]}")
    align, kind, name, count, initial = match.groups()
    size = WIDTHS[kind] // 8
    values = [v.strip() for v in (initial or "").strip("{} \n").split(",") if v.strip()]
    step = int(align or size)
    entry.constant_data.extend(bytes(-len(entry.constant_data) % step))
    entry.constants[name] = len(entry.constant_data)
    for value in values:
        number = int(value[2:], 16) if value[:2] in {"0f", "0F", "0d", "0D"} else _integer(value)
        entry.constant_data.extend((number & ((1 << (8 * size)) - 1)).to_bytes(size, "little"))
    missing = (int(count) if count else max(1, len(values))) - len(values)
    entry.constant_data.extend(bytes(size * missing))


def _block(text: str, start: int) -> str:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    raise Unsupported("the PTX entry has no closing brace")


def _params(entry: Entry, text: str) -> None:
    offset = 0
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = _PARAM.search(part)
        if match is None:
            raise Unsupported(f"PTX parameter: {part}")
        align, kind, name, count = match.groups()
        width = WIDTHS[kind] * (int(count) if count else 1)
        step = max(int(align or 1), WIDTHS[kind] // 8)
        offset = -(-offset // step) * step
        entry.params.append(Param(name, width, kind, offset))
        offset += width // 8


def _variable(entry: Entry, text: str, extern: bool) -> None:
    match = _VAR_DECL.match(text.strip())
    if match is None:
        raise Unsupported(f"PTX variable: {text.strip()}")
    space, align, kind, name, count, _ = match.groups()
    size = WIDTHS[kind] // 8 * (int(count) if count else (0 if extern else 1))
    step = int(align or WIDTHS[kind] // 8)
    if space == "shared":
        start = -(-entry.static_shared_bytes // step) * step
        entry.shared[name] = -1 if extern and not size else start
        entry.static_shared_bytes = start + size if not (extern and not size) else start
    elif space == "local":
        start = -(-entry.local_bytes // step) * step
        entry.local[name] = start
        entry.local_bytes = start + size
    else:
        raise Unsupported(f"PTX variable in {space} space: {name}")


class _Body:
    """Reads the statements of an entry, with nested scopes of registers."""

    def __init__(self, entry: Entry, files: dict[int, str]) -> None:
        self.entry = entry
        self.files = files
        self.scopes: list[dict[str, str]] = [{}]
        self.scope_count = 0
        self.file, self.line = "", 0
        self.callers: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Where the function at an inlined place was called from."""

    def read(self, text: str) -> None:
        for raw in _statements(text):
            self.statement(raw)

    def statement(self, raw: str) -> None:
        if raw == "{":
            self.scope_count += 1
            self.scopes.append({})
        elif raw == "}":
            self.scopes.pop()
        elif raw.endswith(":"):
            self.entry.body.append(raw[:-1].strip())
        elif re.match(r"\.loc\s", raw):
            self.location(raw)
        elif raw.startswith(".reg"):
            self.registers(raw)
        elif raw.startswith((".shared", ".local")):
            _variable(self.entry, raw, extern=False)
        elif raw.startswith((".pragma", ".file", ".section", ".branchtargets")):
            return
        elif raw.startswith("."):
            raise Unsupported(f"PTX directive: {raw[:60]}")
        else:
            self.instruction(raw)

    def location(self, raw: str) -> None:
        match = _LOC.match(raw)
        if match is None:
            raise Unsupported(f"PTX directive: {raw[:60]}")
        here = match.group(1, 2, 3)
        inlined = _INLINED.search(match.group(4))
        if inlined:
            self.callers[here] = inlined.group(1, 2, 3)
        for _ in range(len(self.callers)):
            # Triton's own library is not what a person can change: its caller is.
            if here not in self.callers or "/triton/" not in self.files.get(int(here[0]), ""):
                break
            here = self.callers[here]
        if int(here[1]):
            self.file, self.line = self.files.get(int(here[0]), ""), int(here[1])

    def registers(self, raw: str) -> None:
        match = _REG_DECL.match(raw)
        if match is None:
            raise Unsupported(f"PTX register declaration: {raw}")
        kind, names = match.groups()
        if kind.startswith("v"):
            raise Unsupported(f"PTX register declaration: {raw}")
        for item in names.split(","):
            name = item.strip()
            many = re.match(r"([%\w$]+)<(\d+)>$", name)
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                unique = one if len(self.scopes) == 1 else f"{one}@{self.scope_count}"
                self.scopes[-1][one] = unique
                self.entry.registers[unique] = kind

    def resolve(self, name: str) -> Operand:
        for scope in reversed(self.scopes):
            if name in scope:
                return Reg(scope[name])
        if name.startswith("%"):
            if _SPECIAL.match(name):
                return Special(name)
            raise Unsupported(f"PTX special register {name}")
        if name == "WARP_SZ":
            return Imm(32)
        return Symbol(name)

    def instruction(self, raw: str) -> None:
        match = re.match(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", raw, re.DOTALL)
        if match is None:
            raise Unsupported(f"PTX statement: {raw[:60]}")
        bang, guard, opcode, rest = match.groups()
        register = self.resolve(guard) if guard else None
        if register is not None and not isinstance(register, Reg):
            raise Unsupported(f"PTX guard: {raw[:60]}")
        operands = _Operands(rest, self.resolve).all()
        if opcode.startswith("cvta.local"):
            self.entry.generic_local = True
        index = len(self.entry.body)
        self.entry.body.append(
            Instruction(index, opcode, tuple(operands), register, bool(bang), self.file, self.line)
        )


def _statements(text: str) -> list[str]:
    """Statements, labels and scope braces of an entry's body, in order."""
    found: list[str] = []
    current = ""
    for piece in re.split(r"([;{}])", text):
        if piece == ";":
            if current.strip():
                found.append(" ".join(current.split()))
            current = ""
        elif piece == "{":
            if current.strip() and not re.search(r":\s*$", current):
                current += "{"
            else:
                found.extend(_lines(current))
                found.append("{")
                current = ""
        elif piece == "}":
            if current.count("{") > current.count("}"):
                current += "}"
            else:
                found.extend(_lines(current))
                found.append("}")
                current = ""
        else:
            *heads, current_tail = _split_lines(piece) if not current.strip() else [piece]
            found.extend(heads)
            current += current_tail
    found.extend(_lines(current))
    return found


def _split_lines(piece: str) -> list[str]:
    """Leading labels and `.loc` lines (which have no semicolon), then what is left."""
    heads: list[str] = []
    rest = piece
    while True:
        match = re.match(r"\s*([%$\w]+:(?!:)|\.loc\s[^\n]*(?:\n|$))", rest)
        if match is None:
            return [*heads, rest]
        heads.append(match.group(1).strip())
        rest = rest[match.end() :]


def _lines(text: str) -> list[str]:
    return [part for part in _split_lines(text) if part.strip()]


class _Operands:
    def __init__(self, text: str, resolve: Callable[[str], Operand]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.resolve = resolve
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise Unsupported(f"PTX operand: {text[position : position + 40]}")
            position = match.end()
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match.group()))
        self.at = 0

    def all(self) -> list[Operand]:
        found: list[Operand] = []
        while self.at < len(self.tokens):
            if self.tokens[self.at][1] in {",", "|"}:
                self.at += 1
                continue
            found.append(self.one())
        return found

    def one(self) -> Operand:
        kind, text = self.tokens[self.at]
        self.at += 1
        if text == "{":
            items: list[Operand] = []
            while self.tokens[self.at][1] != "}":
                if self.tokens[self.at][1] == ",":
                    self.at += 1
                else:
                    items.append(self.one())
            self.at += 1
            return Vector(tuple(items))
        if text == "[":
            return self.address()
        if text == "!":
            raise Unsupported("PTX negated operand")
        return self.plain(kind, text)

    def address(self) -> Operand:
        base = self.one()
        offset = 0
        while self.tokens[self.at][1] != "]":
            kind, text = self.tokens[self.at]
            self.at += 1
            if text == "+":
                continue
            if kind != "int":
                raise Unsupported(f"PTX address with {text}")
            offset += _integer(text)
        self.at += 1
        if isinstance(base, Reg | Symbol | Imm):
            return Address(base, offset)
        raise Unsupported("PTX address")

    def plain(self, kind: str, text: str) -> Operand:
        if kind == "float":
            return Imm(int(text[2:], 16), 32 if len(text) == 10 else 64)
        if kind == "int":
            return Imm(_integer(text))
        if text == "_":
            return Symbol("_")
        return self.resolve(text)


def _integer(text: str) -> int:
    return int(text.rstrip("U"), 0)


def float_bits(value: float, width: int) -> int:
    """The IEEE bits of a Python float as fp32 or fp64."""
    if width == 32:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
