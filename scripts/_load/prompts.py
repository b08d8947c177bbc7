"""Prompts of given lengths for one server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genai_server.tools.bench.bench_prompts import Calibration, words

from .answers import error_code
from .http import ask_json
from .step_results import Broken

_PROBES = (25, 100)


@dataclass(frozen=True)
class Prompts:
    """How the server counts tokens, and the most tokens of a prompt with its answer."""

    calibration: Calibration
    max_length: int

    def text(self, num_tokens: int, *key: object) -> str:
        """Words that make a prompt of about this length. Each key has other words, from the first one on."""
        return words(self.calibration.words_for(num_tokens), *key)


async def prompts_for(port: int) -> Prompts:
    """Ask the server how it counts. Raises Broken."""
    (few, max_length), (many, _) = [await _count(port, words(number, "count", number)) for number in _PROBES]
    per_word = (many - few) / (_PROBES[1] - _PROBES[0])
    return Prompts(Calibration(few - per_word * _PROBES[0], per_word), max_length)


async def _count(port: int, text: str) -> tuple[int, int]:
    response = await ask_json(port, "/tokenize", {"messages": user(text)})
    if response.status != 200:
        raise Broken(f"/tokenize: {response.status} {error_code(response.status, bytes(response.body))}")
    found = response.json()
    return found["count"], found["max_model_len"] or 1 << 30


def user(text: str) -> list[dict[str, Any]]:
    """The messages of a chat with this question."""
    return [{"role": "user", "content": text}]
