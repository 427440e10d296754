"""Virtual device addresses: where a buffer appears to a kernel, and where its bytes are."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 512
"""Bytes; CUDA's allocator aligns to 256 or 512, and sector counts must repeat between runs."""
GUARD = 1 << 20
"""Bytes between two buffers, so that an overrun never lands in a neighbour."""
FIRST_ADDRESS = 0x7F00_0000_0000


@dataclass(frozen=True)
class Segment:
    """One buffer: `nbytes` at virtual address `base`, whose bytes live at host address `host`.

    `shadow` is the host address of the fp64 shadow for `wide` arithmetic: one double per two bytes
    of the buffer, holding (wide value − stored value) of the float that starts there; 0 if none.
    """

    base: int
    nbytes: int
    host: int
    name: str
    shadow: int = 0


def next_address(after: int, nbytes: int) -> int:
    """The base for a new buffer placed behind address `after`."""
    return -(-(after + GUARD) // ALIGNMENT) * ALIGNMENT
