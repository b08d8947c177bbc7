"""Damages files, the same for each source of chance."""

from __future__ import annotations

import random
import struct

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF)
SIZES = (0, 1, 2, 16383, 16384, 65535, 2**24 - 1, 2**31 - 1, 2**32 - 1)


def cut(chance: random.Random, data: bytes) -> bytes:
    """The beginning of a file."""
    return data[: chance.randrange(len(data) + 1)]


def changed(chance: random.Random, data: bytes) -> bytes:
    """A file with some of its bytes changed, removed or repeated, most often in its first ones."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        place = chance.randrange(min(len(found), chance.choice((64, 64, 512, len(found)))) or 1)
        match chance.randrange(5):
            case 0 if found:
                found[place] ^= 1 << chance.randrange(8)
            case 1 if found:
                found[place] = chance.choice(EDGES)
            case 2:
                del found[place : place + chance.choice((1, 4, 100))]
            case 3:
                found[place:place] = found[place : place + chance.choice((1, 4, 100))]
            case _:
                size = struct.pack(chance.choice(("<I", ">I")), chance.choice(SIZES))
                found[place : place + 4] = size
    return bytes(found)
