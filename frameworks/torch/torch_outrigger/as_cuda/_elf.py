"""The libraries that a shared library names as needed, from its file alone. No library must ever be loaded."""

from __future__ import annotations

import struct

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5


def needed_by(file: str) -> list[str]:
    """The names; none for a file that is not a 64-bit little-endian ELF."""
    with open(file, "rb") as opened:
        if opened.read(6) != b"\x7fELF\x02\x01":
            return []
        opened.seek(32)
        (headers,) = struct.unpack("<Q", opened.read(8))
        opened.seek(54)
        size, count = struct.unpack("<HH", opened.read(4))
        segments = []
        for number in range(count):
            opened.seek(headers + number * size)
            kind, _flags, offset, address, _physical, length = struct.unpack("<IIQQQQ", opened.read(40))
            segments.append((kind, offset, address, length))
        entries = []
        for kind, offset, _address, length in segments:
            if kind == _DYNAMIC:
                opened.seek(offset)
                entries = list(struct.iter_unpack("<QQ", opened.read(length)))
        strings = next((value for tag, value in entries if tag == _STRINGS), 0)
        names = []
        for kind, offset, address, length in segments:
            if kind != _LOAD or not address <= strings < address + length:
                continue
            for tag, value in entries:
                if tag == _NEEDED:
                    opened.seek(offset + strings - address + value)
                    names.append(opened.read(256).split(b"\0")[0].decode())
        return names
