"""Damaged files: what a few intact ones become at random, and what must become of each at the server."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF)
_SIZES = (0, 1, 2, 3, 8, 9, 64, 255, 1024, 8000, 16383, 16384, 44_100, 65535, 768_001, 2**24 - 1, 2**31 - 1, 2**32 - 1)
# What a refusal says of a file that ended the process which read it.
_CRASHES = "crashes the process"
# The four letters that name a chunk of RIFF, PNG, FLAC or MP4, where fields stand behind.
_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9 ]{3}")
_KINDS = ("intact", "cut", "chained", "chained and changed", "of another type", *["changed"] * 4)


def damaged(chance: random.Random, seeds: Sequence[bytes], beginnings: Sequence[bytes]) -> tuple[str, bytes]:
    """What a file is, and its bytes: one or several of the intact files `seeds`, perhaps changed; or one of
    `beginnings`, by which formats are told, with random bytes behind it.
    """
    kind = chance.choice(_KINDS)
    if kind == "of another type":
        return kind, chance.choice(beginnings) + chance.randbytes(chance.choice((0, 1, 10, 1000, 50_000)))
    data = b"".join(chance.choices(seeds, k=chance.choice((2, 3, 10)) if "chained" in kind else 1))
    if "changed" in kind:
        data = changed(chance, data)
    return kind, cut(chance, data) if kind == "cut" else data


def cut(chance: random.Random, data: bytes) -> bytes:
    """The beginning of a file."""
    return data[: chance.randrange(len(data) + 1)]


def changed(chance: random.Random, data: bytes) -> bytes:
    """A file with some of its bytes changed, removed or repeated, or with other sizes in its header: most often in its
    first bytes, or in the fields of its first chunks.
    """
    found = bytearray(data)
    names = [name.end() for name in _NAME.finditer(data[:10_000])][:8] or [0]
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        start = chance.randrange(min(len(found), chance.choice((64, 64, 512, len(found)))) or 1)
        match chance.randrange(6):
            case 0 if found:
                found[start] ^= 1 << chance.randrange(8)
            case 1 if found:
                found[start] = chance.choice(_EDGES)
            case 2:
                del found[start : start + chance.choice((1, 4, 100))]
            case 3:
                found[start:start] = found[start : start + chance.choice((1, 4, 100))]
            case _:
                place = chance.choice((start, chance.choice(names) + 4 * chance.randrange(7)))
                width = chance.choice((2, 4))
                number = chance.choice(_SIZES) % (1 << 8 * width)
                found[place : place + width] = number.to_bytes(width, chance.choice(("little", "big")))
    return bytes(found)


def refusal(message: str, field: str, noun: str) -> tuple[str, str | None]:
    """The reason of a refused file without its specifics, and a complaint if it does not begin with the field's name or
    if reading the file has ended a process.
    """
    reason = re.split("[,:]", message.removeprefix(f"{field} cannot be used: the {noun} "))[0][:80]
    is_wrong = not message.startswith(field) or _CRASHES in message
    return f"refused: {reason}", message if is_wrong else None
