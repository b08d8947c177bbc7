"""Prompts of a given length that no cache has seen before."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genai_server.tools.bench.measured_answer import AnswerError

if TYPE_CHECKING:
    from genai_server.tools.bench.bench_client import Server

_TEXT = (
    "river stone window paper garden music winter light bridge market engine silver copper forest island harbor letter "
    "number table chair mirror candle basket ladder pocket button ribbon marble"
)
_WORDS = _TEXT.split()
# Multiples of the whole word list, which has the same number of tokens in any order.
_PROBES = (len(_WORDS), 4 * len(_WORDS))


def words(count: int, *key: object) -> str:
    """Random words. The same key gives the same words; another key gives others from the first word on.

    All words are equally frequent, so that equal counts are about equal numbers of tokens.
    """
    order = random.Random("/".join(map(str, key)))
    sets = (order.sample(_WORDS, len(_WORDS)) for _ in range(-(-count // len(_WORDS))))
    return " ".join(list(itertools.chain.from_iterable(sets))[:count])


@dataclass(frozen=True)
class Calibration:
    """How a server counts tokens: a prompt has `overhead` + `tokens_per_word` x words."""

    # Tokens of the chat template.
    overhead: float
    tokens_per_word: float

    def words_for(self, prompt_tokens: int) -> int:
        """The number of words in a prompt of about `prompt_tokens` tokens; at least one."""
        return max(1, round((prompt_tokens - self.overhead) / self.tokens_per_word))

    def words_in(self, tokens: int) -> int:
        """The number of words in about `tokens` tokens without the template; at least one."""
        return max(1, round(tokens / self.tokens_per_word))


async def calibrate(server: Server, *key: object) -> Calibration:
    """Determine with two short requests how the server counts tokens; they also warm it up.

    Raises AnswerError if it does not answer or does not report `usage.prompt_tokens`.
    """
    counted = []
    for count in _PROBES:
        recording = await server.ask(words(count, *key, "calibrate", count), 4)
        counted.append(recording.answer().prompt_tokens)
    per_word = (counted[1] - counted[0]) / (_PROBES[1] - _PROBES[0])
    if per_word <= 0:
        raise AnswerError(f"usage.prompt_tokens is {counted} for {list(_PROBES)} words, which cannot be right")
    return Calibration(counted[0] - per_word * _PROBES[0], per_word)
