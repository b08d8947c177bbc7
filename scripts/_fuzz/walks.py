"""Answers drawn at random from what a grammar allows, in several manners."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.sampling.grammar import Guidance
from genai_server.errors import GrammarFailed
from genai_server.messages.generation_request import ModelInfo
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer

MANNERS = ("any", "ends soon", "odd", "digits", "escapes", "again")
_USUAL_TOKENS, _MAX_TOKENS = 60, 400

Mask = NDArray[np.bool_]


class DeadEnd(Exception):
    """The grammar allows no continuation of an incomplete answer."""


class Walker:
    """Draws answers over a vocabulary. Belongs to one thread."""

    def __init__(self, guidance: Guidance, tokenizer: ByteTokenizer | ModelTokenizer, model: ModelInfo) -> None:
        self._guidance = guidance
        self._texts = [tokenizer.token_bytes(id) for id in range(model.vocab_size)]
        self._usable = np.array([id not in model.eos_token_ids for id in range(model.vocab_size)])
        self._first = np.array([text[0] if text else -1 for text in self._texts])
        self._closing = self._those(lambda text: text[-1] in b'"}],')
        # Tokens that each manner prefers: those of one of its masks.
        self._preferred = {
            "any": [self._closing],
            "ends soon": [self._closing],
            "odd": [self._those(lambda text: len(text) > 3 or any(byte >= 0x80 or byte < 0x30 for byte in text))],
            "digits": [self._of(b"0"), self._of(b"9"), self._of(b"09123-.eE+")],
            "escapes": [self._of(b"\\u00617")],
        }

    def answer(self, grammar: str, manner: str, chance: random.Random) -> bytes | None:
        """One complete answer, or None if it did not end.

        Raises DeadEnd where nothing may come, and the answer is not whole; InvalidField if the engine cannot follow the
        grammar.
        """
        if self._guidance.guide(grammar) is None:
            waiting: Future[Any] = Future()
            self._guidance.compile(grammar, waiting.set_result)
            self._guidance.keep(grammar, waiting.result())
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
        # An answer in any manner prefers few tokens, so that it does not follow one manner only.
        if chance.random() < (0.2 if manner == "any" else 0.7):
            preferred = (allowed & self._liked(manner, before, chance)).nonzero()[0]
            if len(preferred):
                return int(chance.choice(preferred))
        return int(chance.choice(allowed.nonzero()[0]))

    def _liked(self, manner: str, before: bytearray, chance: random.Random) -> Mask:
        if manner == "again":  # what stood behind the last such byte, so that keys come again
            place = before.rfind(before[-1:], 0, len(before) - 1) if before else -1
            liked: Mask = self._first == (before[place + 1] if place >= 0 else ord('"'))
            return liked
        return chance.choice(self._preferred[manner])

    def _of(self, characters: bytes) -> Mask:
        return self._those(lambda text: not text.strip(characters))

    def _those(self, wanted: Callable[[bytes], bool]) -> Mask:
        return np.array([bool(text) and wanted(text) for text in self._texts])
