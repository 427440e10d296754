"""Symbols of an ELF object file: what it defines, and what it needs from elsewhere."""

from __future__ import annotations

import struct

_SYMTAB = 2


def _symbols(data: bytes) -> list[tuple[str, bool]]:
    """Global symbols and whether the file defines them (ELF-64, little endian)."""
    if data[:5] != b"\x7fELF\x02":
        return []
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    found = []
    for index in range(count):
        header = start + index * size
        kind = struct.unpack_from("<I", data, header + 4)[0]
        if kind != _SYMTAB:
            continue
        offset, length, link = struct.unpack_from("<QQI", data, header + 24)
        names = struct.unpack_from("<Q", data, start + link * size + 24)[0]
        for symbol in range(offset, offset + length, 24):
            name, info, _, section = struct.unpack_from("<IBBH", data, symbol)
            if info >> 4 == 0 and section:
                continue
            text = data[names + name : data.index(b"\0", names + name)].decode()
            if text:
                found.append((text, section != 0))
    return found


def defined(data: bytes) -> set[str]:
    """Global symbols that the file defines."""
    return {name for name, here in _symbols(data) if here}


def needed(data: bytes) -> set[str]:
    """Symbols that the file needs from elsewhere."""
    return {name for name, here in _symbols(data) if not here} - {"_GLOBAL_OFFSET_TABLE_"}
