"""Answers drawn at random from what a grammar allows, in several manners."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.sampling.grammar import Guidance
from genai_server.errors import GrammarFailed

MANNERS = ("any", "ends soon", "odd", "digits", "escapes", "again")
_USUAL_TOKENS, _MAX_TOKENS = 60, 400
_CLOSING, _DIGITS, _ESCAPES = b'"}],', b"09123-.eE+", b"\\u00617"

Mask = NDArray[np.bool_]


class DeadEnd(Exception):
    """The grammar allows no continuation of an incomplete answer."""


def _repeats(byte: int, text: bytes) -> bool:
    return set(text) == {byte}


def _begins_with(byte: int, text: bytes) -> bool:
    return text[:1] == bytes([byte])


class Walker:
    """Draws answers of one vocabulary, of which `texts` gives each token's bytes. Belongs to one thread."""

    def __init__(self, guidance: Guidance, texts: Sequence[bytes], ends: Sequence[int]) -> None:
        self._guidance = guidance
        self._texts = texts
        self._usable = np.array([id not in ends for id in range(len(texts))])
        self._closing = self._those(lambda text: text[-1] in _CLOSING)
        self._odd = self._those(lambda text: len(text) > 3 or any(byte >= 0x80 or byte < 0x30 for byte in text))
        self._digits = self._those(lambda text: set(text) <= set(_DIGITS))
        self._nines = [self._those(partial(_repeats, digit)) for digit in b"09"]
        self._escapes = self._those(lambda text: set(text) <= set(_ESCAPES))
        self._begun = [self._those(partial(_begins_with, byte)) for byte in range(256)]

    def compiled(self, grammar: str) -> None:
        """Have the grammar compiled as the engine does. `answer` raises InvalidField if that has failed."""
        if self._guidance.guide(grammar) is None:
            waiting: Future[Any] = Future()
            self._guidance.compile(grammar, waiting.set_result)
            self._guidance.keep(grammar, waiting.result())

    def answer(self, grammar: str, manner: str, chance: random.Random) -> bytes | None:
        """One complete answer to a compiled grammar, or None if it did not end.

        Raises DeadEnd where nothing may come, and the answer is not whole.
        """
        self.compiled(grammar)  # anew, if it has been followed for long
        guide = self._guidance.guide(grammar)
        assert guide is not None
        answer = bytearray()
        try:
            for step in range(_MAX_TOKENS):
                late = step > _USUAL_TOKENS
                if guide.is_complete or (guide.may_end and (late or manner == "ends soon" or chance.random() < 0.3)):
                    return bytes(answer)
                allowed = guide.allowed()[: len(self._usable)] & self._usable
                if not allowed.any():
                    if guide.may_end:
                        return bytes(answer)
                    raise DeadEnd(bytes(answer))
                token = self._chosen(allowed, "ends soon" if late else manner, answer, chance)
                guide.commit(token)
                answer += self._texts[token]
        except GrammarFailed:
            pass
        return None

    def _chosen(self, allowed: Mask, manner: str, before: bytearray, chance: random.Random) -> int:
        if chance.random() < 0.7 and (liked := self._liked(manner, before, chance)) is not None:
            preferred = (allowed & liked).nonzero()[0]
            if len(preferred):
                return int(chance.choice(preferred))
        return int(chance.choice(allowed.nonzero()[0]))

    def _liked(self, manner: str, before: bytearray, chance: random.Random) -> Mask | None:
        match manner:
            case "odd":
                return self._odd
            case "digits":
                return chance.choice([*self._nines, self._digits])
            case "escapes":
                return self._escapes
            case "again":  # what stood behind the last such byte, so that keys come again
                place = before.rfind(before[-1:], 0, len(before) - 1) if before else -1
                return self._begun[before[place + 1] if place >= 0 else ord('"')]
        return self._closing if manner == "ends soon" or chance.random() < 0.3 else None

    def _those(self, wanted: Callable[[bytes], bool]) -> Mask:
        return np.array([bool(text) and wanted(text) for text in self._texts])
