"""Damaged files: what a few intact ones become at random, and what must become of each at the server."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence

from .campaign import Campaign

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF)
SIZES = (0, 1, 2, 3, 8, 9, 64, 255, 1024, 8000, 16383, 16384, 44_100, 65535, 768_001, 2**24 - 1, 2**31 - 1, 2**32 - 1)
# At the same time.
CLIENTS = 3
# What a refusal says of a file that ended the process which read it.
_CRASHES = "crashes the process"
# The four letters that name a chunk of RIFF, PNG, FLAC or MP4, where fields stand behind.
_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9 ]{3}")
_HEADER, _LAST_FIELD = 64, 7


def damaged(chance: random.Random, seeds: Sequence[bytes], beginnings: Sequence[bytes]) -> tuple[str, bytes]:
    """What a file is, and its bytes: one or several of the intact files `seeds`, perhaps changed; or one of
    `beginnings`, by which formats are told, with random bytes behind it.
    """
    kind = chance.choice(_KINDS)
    match kind:
        case "of another type":
            return kind, chance.choice(beginnings) + chance.randbytes(chance.choice((0, 1, 10, 1000, 50_000)))
        case "chained" | "chained and changed":
            data = b"".join(chance.choices(seeds, k=chance.choice((2, 3, 10))))
        case _:
            data = chance.choice(seeds)
    return kind, _CHANGES[kind](chance, data) if kind in _CHANGES else data


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


def _claiming(chance: random.Random, data: bytes) -> bytes:
    """A file whose header claims absurd sizes and kinds, with all of the intact file's data behind it, or little."""
    found = bytearray(data)
    behind_names = [name.end() for name in _NAME.finditer(data)] or [0]
    for _ in range(chance.choice((1, 2, 4))):
        start = chance.choice((0, *behind_names[:8], chance.choice(behind_names)))
        place = start + (2 * chance.randrange(_HEADER // 2) if start == 0 else 4 * chance.randrange(_LAST_FIELD))
        width = chance.choice((2, 4))
        number = chance.choice(SIZES) % (1 << 8 * width)
        found[place : place + width] = number.to_bytes(width, chance.choice(("little", "big")))
    return bytes(found[: chance.choice((len(found), len(found), _HEADER, 4 * _HEADER))])


_CHANGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "cut": cut,
    "changed": changed,
    "chained and changed": changed,
    "with an absurd header": _claiming,
}
_KINDS = (
    *("intact", "cut", "chained", "chained and changed", "of another type") * 2,
    *["changed"] * 8,
    *["with an absurd header"] * 4,
)


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
