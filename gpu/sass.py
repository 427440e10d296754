"""What a listing of SASS says: instructions by class and pipe, and how one warp alone runs them.

Straight-line code and the bodies of loops are kept apart, so that the timing model can weigh each
by how often it ran. A warp alone is simulated from the control codes that ptxas puts into every
instruction: stall cycles, the barrier an instruction of variable latency sets, and the barriers an
instruction waits for (bit layout: maxas and TuringAs, unchanged on compute capability 8.x and 9.0).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass

from kopt.gpu.facts import WarpPath
from kopt.gpu.spec import DeviceSpec

_LINE = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)([^;]*);"
    r"\s*/\* 0x[0-9a-f]+ \*/\s*\n\s+/\* 0x([0-9a-f]{16}) \*/",
    re.MULTILINE,
)
_NO_BARRIER = 7

_ALU = {
    "IADD3", "IADD", "LOP3", "LOP", "SHF", "LEA", "ISETP", "FSETP", "FMNMX", "IMNMX", "SEL", "FSEL",
    "PRMT", "F2FP", "SGXT", "BMSK", "MOV", "PLOP3", "P2R", "R2P", "IABS", "VABSDIFF", "CS2R",
    "PSETP", "I2IP", "FCHK", "VOTE", "FSET", "ISCADD", "VIADD", "VIMNMX",
}  # fmt: skip
_FMA = {"FFMA", "FMUL", "FADD", "IMAD", "FFMA32I", "FADD32I", "FMUL32I", "IMUL", "IDP", "FSWZADD"}
_FP16 = {"HFMA2", "HADD2", "HMUL2", "HSETP2", "HMNMX2", "HSET2"}
_FP64 = {"DFMA", "DADD", "DMUL", "DSETP"}
_XU = {"MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "I2I", "I2FP"}
_LSU = {
    "LDG", "STG", "LDS", "STS", "LDSM", "LDGSTS", "ATOM", "ATOMG", "ATOMS", "RED", "SHFL", "LDL",
    "STL", "LD", "ST", "STSM",
}  # fmt: skip
_TENSOR = {"HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA", "BMMA"}
ANCHORS = {
    "LDG", "STG", "LDSM", "LDGSTS", "ATOM", "ATOMG", "ATOMS", "RED", "LD", "ST", "BAR", "SHFL",
} | _TENSOR  # fmt: skip
"""Instructions that ptxas makes one for one from PTX, so that dynamic PTX counts hold for them.
Shared loads are not among them: it joins neighbouring ones."""

_LATENCY_CLASS = {
    "LDG": "global", "LD": "global", "LDL": "l1", "ATOM": "global", "ATOMG": "global",
    "LDS": "shared", "LDSM": "shared", "ATOMS": "shared", "SHFL": "shuffle",
}  # fmt: skip
SHUFFLE_CYCLES = 23.0
"""Jia et al., Dissecting the NVIDIA Volta GPU architecture (arXiv 1804.06826)."""
VARIABLE_CYCLES = 18.0
"""Special functions and conversions: MUFU 17, DocumentSASS latency tables of sm_86."""
DRAIN_CYCLES = 20.0
"""Until a store has read its operands: a guess."""
BARRIER_CYCLES = 25.0
"""A CTA-wide barrier when nobody is late: a guess."""


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction. `target` is the address a branch names, -1 for the others."""

    address: int
    opcode: str
    operands: str
    predicated: bool
    stall: int
    sets: int
    """Scoreboard set when the result is there, 7 for none."""
    sets_read: int
    """Scoreboard set when the operands have been read, 7 for none."""
    waits: int
    """Mask of scoreboards waited for."""

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".")[0]

    @property
    def target(self) -> int:
        """Where a branch goes."""
        found = re.search(r"(?:^|[ ,])0x([0-9a-f]+)\s*$", self.operands)
        return int(found.group(1), 16) if self.base in {"BRA", "JMP"} and found else -1


@dataclass(frozen=True)
class Listing:
    """A kernel's main code: its instructions and which of them are in a loop."""

    instructions: tuple[Instruction, ...]
    in_loop: tuple[bool, ...]


def parse(text: str) -> Listing:
    """The listing that `cuobjdump -sass` prints for one kernel.

    Code behind the last unconditional exit is left out: subroutines for denormals and the like,
    called rarely, and padding.
    """
    found = []
    for address, predicate, opcode, operands, high in _LINE.findall(text):
        control = int(high, 16) >> 41
        found.append(
            Instruction(
                int(address, 16), opcode, operands, bool(predicate), control & 15,
                control >> 5 & 7, control >> 8 & 7, control >> 11 & 63,
            )
        )  # fmt: skip
    ends = [n for n, i in enumerate(found) if i.base == "EXIT" and not i.predicated]
    kept = tuple(found[: ends[-1] + 1]) if ends else tuple(found)
    inside = [False] * len(kept)
    position = {i.address: n for n, i in enumerate(kept)}
    for n, i in enumerate(kept):
        start = position.get(i.target)
        if start is not None and start < n:
            inside[start : n + 1] = [True] * (n + 1 - start)
    return Listing(kept, tuple(inside))


def pipe(opcode: str) -> str:
    """The execution pipe of an instruction: `fma`, `alu`, `fp16`, `fp64`, `xu`, `lsu`, `tensor`,
    `uniform` or `control`. Source: Nsight Compute's documentation of pipelines."""
    base = opcode.split(".")[0]
    for name, members in (
        ("fma", _FMA), ("alu", _ALU), ("fp16", _FP16), ("fp64", _FP64), ("xu", _XU), ("lsu", _LSU),
        ("tensor", _TENSOR),
    ):  # fmt: skip
        if base in members:
            return name
    return "uniform" if base.startswith("U") or base == "R2UR" else "control"


def census(listing: Listing, loops: bool) -> dict[str, int]:
    """Static instructions outside (`loops=False`) or inside loops: `total`, `anchors`,
    `pipe_<pipe>`, and by opcode in lower case."""
    counts: Counter[str] = Counter()
    for i, inside in zip(listing.instructions, listing.in_loop, strict=True):
        if inside != loops or i.base == "NOP":
            continue
        counts["total"] += 1
        counts["anchors"] += i.base in ANCHORS
        counts[f"pipe_{pipe(i.opcode)}"] += 1
        counts[i.base.lower()] += 1
    return dict(counts)


def path(listing: Listing, loops: bool, spec: DeviceSpec) -> WarpPath:
    """One warp alone over the straight-line code, or once around the loops."""
    fixed = {
        "l1": spec.l1_latency_cycles,
        "shared": spec.shared_latency_cycles,
        "shuffle": SHUFFLE_CYCLES,
        "variable": VARIABLE_CYCLES,
        "barrier": BARRIER_CYCLES,
        "drain": DRAIN_CYCLES,
        # A guess: a fence waits for a round trip of what is outstanding.
        "fence": spec.dram_latency_cycles,
    }
    served = (spec.l1_latency_cycles, spec.l2_latency_cycles, spec.dram_latency_cycles)
    first, second, third = (
        _Warp({**fixed, "global": cycles}).run(listing, loops) for cycles in served
    )
    return WarpPath(
        third.issue_cycles, first.cycles, second.cycles, third.cycles, dict(third.waited)
    )


class _Warp:
    """A warp alone on a scheduler."""

    def __init__(self, latency: dict[str, float]) -> None:
        self.latency = latency
        self.now = 0.0
        self.board: dict[int, list[tuple[float, str]]] = {}
        """For each scoreboard: when the results it stands for were asked for, and of whom."""
        self.groups: deque[float] = deque()
        """When each group of asynchronous copies that may be in flight was committed."""
        self.began = 0.0
        self.issue_cycles = 0.0
        self.waited: Counter[str] = Counter()

    @property
    def cycles(self) -> float:
        """Of the last pass."""
        return self.now - self.began

    def run(self, listing: Listing, loops: bool) -> _Warp:
        """Walk the code once; around the loops twice, so that what one iteration issues for the
        next is waited for where it should be, and keep the second pass."""
        for _ in range(2 if loops else 1):
            self.began, self.issue_cycles = self.now, 0.0
            self.waited.clear()
            for i, inside in zip(listing.instructions, listing.in_loop, strict=True):
                if inside == loops and i.base != "NOP":
                    self._issue(i)
        return self

    def _issue(self, i: Instruction) -> None:
        for slot in range(6):
            if i.waits >> slot & 1:
                for issued, kind in self.board.pop(slot, ()):
                    self._wait(issued, kind)
        if i.base == "DEPBAR":
            while len(self.groups) > allowed_groups(i):
                self._wait(self.groups.popleft(), "global")
        if i.base == "LDGDEPBAR":
            self.groups.append(self.now)
        if i.base in {"BAR", "MEMBAR"}:
            self._wait(self.now, "barrier" if i.base == "BAR" else "fence")
        if i.sets != _NO_BARRIER:
            kind = _LATENCY_CLASS.get(i.base, "variable")
            self.board.setdefault(i.sets, []).append((self.now, kind))
        if i.sets_read != _NO_BARRIER:
            self.board.setdefault(i.sets_read, []).append((self.now, "drain"))
        stall = max(1, i.stall)
        self.issue_cycles += stall
        self.now += stall

    def _wait(self, issued: float, kind: str) -> None:
        ready = issued + self.latency[kind]
        if ready > self.now:
            self.waited[kind] += ready - self.now  # type: ignore[assignment]
            self.now = ready


def allowed_groups(i: Instruction) -> int:
    """How many groups of asynchronous copies a `DEPBAR` leaves in flight."""
    found = re.search(r",\s*0x([0-9a-f]+)", i.operands)
    return int(found.group(1), 16) if found else 0


def loads_in_flight(listing: Listing) -> float:
    """Global loads, asynchronous ones included, that a warp has in flight when it waits for one:
    the mean over the waits of its loops if these load, else of all its code."""
    loads = [
        _LATENCY_CLASS.get(i.base) == "global" or i.base == "LDGSTS" for i in listing.instructions
    ]
    looped = any(load and inside for load, inside in zip(loads, listing.in_loop, strict=True))
    seen: list[int] = []
    pending: Counter[int] = Counter()
    groups: deque[int] = deque()
    copies = 0
    for i, load, inside in zip(listing.instructions, loads, listing.in_loop, strict=True):
        counts = inside or not looped
        if i.base == "LDGSTS":
            copies += 1
        elif i.base == "LDGDEPBAR":
            groups.append(copies)
            copies = 0
        elif i.base == "DEPBAR" and len(groups) > allowed_groups(i):
            if counts:
                seen.append(sum(groups))
            while len(groups) > allowed_groups(i):
                groups.popleft()
        if any(i.waits >> slot & 1 and pending[slot] for slot in range(6)):
            if counts:
                seen.append(sum(pending.values()))
            pending.clear()
        if load and i.sets != _NO_BARRIER:
            pending[i.sets] += 1
    if pending:
        seen.append(sum(pending.values()))
    return sum(seen) / len(seen) if seen else 1.0
