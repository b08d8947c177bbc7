"""Sentence frames: a small notation for many phrasings.

`(Tell me|Say) the capital of {country}( please|).` stands for four frames; `{country}` is a slot.
"""

from __future__ import annotations

import functools
import random

Piece = str | list["Sequence"]
Sequence = list[Piece]


@functools.cache
def _parsed(frame: str) -> Sequence:
    choices, rest = _choices(frame, 0)
    assert rest == len(frame), frame
    return [choices]


def _choices(frame: str, at: int) -> tuple[list[Sequence], int]:
    choices: list[Sequence] = [[]]
    while at < len(frame) and frame[at] != ")":
        if frame[at] == "(":
            inner, at = _choices(frame, at + 1)
            choices[-1].append(inner)
        elif frame[at] == "|":
            choices.append([])
        else:
            end = at
            while end < len(frame) and frame[end] not in "(|)":
                end += 1
            choices[-1].append(frame[at:end])
            at = end - 1
        at += 1
    return choices, at


def _write(sequence: Sequence, rng: random.Random) -> str:
    return "".join(piece if isinstance(piece, str) else _write(rng.choice(piece), rng) for piece in sequence)


def expand(frame: str, rng: random.Random) -> str:
    """One phrasing of a frame, its slots still open."""
    return _write(_parsed(frame), rng)


def fill(text: str, slots: dict[str, str]) -> str:
    """Put values into the slots of a phrasing."""
    for name, value in slots.items():
        text = text.replace("{" + name + "}", value)
    return text
