"""Damaged files: how they are damaged, and what must become of each."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter

from .campaign import Campaign

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF)
SIZES = (0, 1, 2, 16383, 16384, 65535, 2**24 - 1, 2**31 - 1, 2**32 - 1)
# At the same time.
CLIENTS = 3
# What a refusal says of a file that ended the process which read it.
_CRASHES = "crashes the process"


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


def refusal(message: str, field: str, noun: str) -> tuple[str, str | None]:
    """The reason of a refused file without its specifics, and a complaint if it does not begin with the field's name or
    if reading the file has ended a process.
    """
    reason = re.split("[,:]", message.removeprefix(f"{field} cannot be used: the {noun} "))[0][:80]
    is_wrong = not message.startswith(field) or _CRASHES in message
    return f"refused: {reason}", message if is_wrong else None


def add_counts(found: Campaign, counted: Counter[str]) -> None:
    """Report the results that the processes which read files have counted themselves."""
    found.figures += [[f"files that {result}", f"{number}"] for result, number in sorted(counted.items())]
    if counted["crashed"]:
        found.broken.append(f"{counted['crashed']} files ended a process")
