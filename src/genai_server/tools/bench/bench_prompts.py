"""Generates prompts of a given length that no cache has seen before."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genai_server.tools.bench.measurement import AnswerError

if TYPE_CHECKING:
    from genai_server.tools.bench.bench_client import Server

_TEXT = (
    "river stone window paper garden music winter light bridge market engine silver copper forest island harbor letter "
    "number table chair mirror candle basket ladder pocket button ribbon marble"
)
_WORDS = _TEXT.split()
# Multiples of the whole word list, which has the same number of tokens in any order.
_PROBES = (len(_WORDS), 4 * len(_WORDS))
# Tokens of the answers to these.
_PROBE_ANSWER = 4


def words(count: int, *key: object) -> str:
    """Return random words. Equal keys give equal words; different keys give different words from the first word on.

    All words are equally frequent, so that equal counts of words have about equal numbers of tokens.
    """
    order = random.Random("/".join(map(str, key)))
    sets = (order.sample(_WORDS, len(_WORDS)) for _ in range(-(-count // len(_WORDS))))
    return " ".join(list(itertools.chain.from_iterable(sets))[:count])


@dataclass(frozen=True)
class Calibration:
    """How a server counts tokens: a prompt of n words has `overhead` + `tokens_per_word` x n tokens."""

    # Tokens of the chat template.
    overhead: float
    tokens_per_word: float

    def words_for(self, prompt_tokens: int) -> int:
        """Return the number of words for a prompt of about `prompt_tokens` tokens, including the chat template;
        at least one.
        """
        return max(1, round((prompt_tokens - self.overhead) / self.tokens_per_word))

    def tokens_of(self, prompt: str) -> int:
        """Return the number of tokens of a prompt that consists of random words, including the tokens of the chat
        template.
        """
        return round(self.overhead + self.tokens_per_word * len(prompt.split()))

    def words_in(self, tokens: int) -> int:
        """Return the number of words for about `tokens` tokens without the chat template; at least one."""
        return max(1, round(tokens / self.tokens_per_word))


async def calibrate(server: Server, *key: object) -> Calibration:
    """Determine how the server counts tokens, with two short requests, which also warm it up.

    If streams contain no usage, complete answers are requested, too, and prompts are later counted by what these
    report. Raises AnswerError if the server does not answer, or never reports `usage.prompt_tokens`.
    """
    counted = []
    is_streamed = True
    for count in _PROBES:
        prompt = words(count, *key, "calibrate", count)
        tokens = (await server.ask(prompt, _PROBE_ANSWER)).answer().prompt_tokens
        if not tokens:
            is_streamed, tokens = False, await server.prompt_tokens(prompt, _PROBE_ANSWER)
        counted.append(tokens)
    per_word = (counted[1] - counted[0]) / (_PROBES[1] - _PROBES[0])
    if per_word <= 0:
        raise AnswerError(f"usage.prompt_tokens is {counted} for {list(_PROBES)} words, which cannot be right")
    calibration = Calibration(counted[0] - per_word * _PROBES[0], per_word)
    if not is_streamed:
        server.count_prompt = calibration.tokens_of
    return calibration
