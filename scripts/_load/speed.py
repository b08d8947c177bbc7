"""How fast a server answers a number of streams. The load and the figures are those of `genai-server bench`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from genai_server.tools.bench.bench_client import Calibration, run_load, words
from genai_server.tools.bench.bench_client import Server as Asked
from genai_server.tools.bench.measurement import Case, answer_figures, spread
from genai_server.tools.bench.measurement import Figures as RoundFigures

from .answers import error_code
from .gpu import gpu_use
from .http import ask_json
from .server import HOST, Server
from .step_results import Broken, Figures, Skipped

GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40}
_PROMPT_TOKENS = 64
_ROUNDS = 3
_PROMPT_ROUNDS = 5
# The first token may be half a character, which has no text.
_TOKENS_AFTER_A_PROMPT = 4
# A prompt may be some tokens longer than asked for.
_SPARE_TOKENS = 32
# For the rounds of one load.
_SECONDS = 15.0
# From a round's begin until its streams decode.
_SECONDS_TO_THE_MIDDLE = 0.6
# Words whose tokens are counted, to learn how many tokens a word has.
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
    counts = []
    for number in _PROBES:
        messages = [{"role": "user", "content": words(number, "count", number)}]
        response = await ask_json(port, "/tokenize", {"messages": messages})
        if response.status != 200:
            raise Broken(f"/tokenize: {response.status} {error_code(response.status, bytes(response.body))}")
        counts.append(response.json()["count"])
    per_word = (counts[1] - counts[0]) / (_PROBES[1] - _PROBES[0])
    max_length = response.json()["max_model_len"] or 1 << 30
    return Prompts(Calibration(counts[0] - per_word * _PROBES[0], per_word), max_length)


class Speed:
    """Measures one server, which runs `num_slots` requests at once, until `end` (of `time.monotonic`)."""

    def __init__(self, server: Server, prompts: Prompts, num_slots: int, end: float) -> None:
        self._server = server
        self._prompts = prompts
        self._num_slots = num_slots
        self._end = end

    async def decode(self, streams: int, num_tokens: int, **sampling: Any) -> Figures:
        """Medians over rounds of that many requests at once, after a round that does not count unless it takes all the
        time. Raises Skipped and Broken.
        """
        if streams > self._num_slots:
            raise Skipped(f"{self._num_slots} requests run at once")
        case = Case("decode", streams, _PROMPT_TOKENS, num_tokens)
        began = time.monotonic()
        warm, using = await asyncio.gather(self._round(case, sampling, "warm"), _use_in_the_middle())
        names = ("decode_tokens_per_second", "tokens_per_second", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95")
        is_slow = time.monotonic() - began > _SECONDS
        rounds = [warm] if is_slow else await self._rounds(case, sampling, _ROUNDS)
        return _medians(rounds, *names) | {"gpu_while_warming": using}

    async def prompt(self, prompt_tokens: int) -> Figures:
        """Medians of the time to the first token of a prompt alone. Raises Skipped and Broken."""
        if prompt_tokens + _SPARE_TOKENS > self._prompts.max_length:
            raise Skipped(f"prompt and answer have at most {self._prompts.max_length} tokens")
        case = Case("prompt", 1, prompt_tokens, _TOKENS_AFTER_A_PROMPT)
        await self._round(case, GREEDY, "warm")
        rounds = await self._rounds(case, GREEDY, _PROMPT_ROUNDS)
        return _medians(rounds, "ttft_p50", "prefill_tokens_per_second")

    async def _rounds(self, case: Case, sampling: dict[str, Any], number: int) -> list[RoundFigures]:
        """At least one round, and up to `number` of them while there is time."""
        end = min(time.monotonic() + _SECONDS, self._end)
        found: list[RoundFigures] = []
        longest = 0.0
        while len(found) < number and (not found or time.monotonic() + 1.5 * longest < end):
            began = time.monotonic()
            found.append(await self._round(case, sampling, len(found)))
            longest = max(longest, time.monotonic() - began)
        return found

    async def _round(self, case: Case, sampling: dict[str, Any], key: object) -> RoundFigures:
        """One request on each stream; each key has other prompts. Raises Broken if one fails."""
        keys = [(key, case, *sorted(sampling), number) for number in range(case.streams)]
        prompts = [self._prompts.text(case.prompt_tokens, *each) for each in keys]
        url = f"http://{HOST}:{self._server.port}"
        asked = Asked("", url, api_key=None, model=None, body={"ignore_eos": True, **sampling})
        try:
            outcome = await run_load(asked, prompts, case.output_tokens, case.streams)
        finally:
            await asked.close()
        if outcome.errors:
            raise Broken(f"an answer of {case.streams} is not complete: {outcome.errors[0]}")
        return answer_figures(outcome.answers, case.streams)


async def _use_in_the_middle() -> list[dict[str, str]]:
    await asyncio.sleep(_SECONDS_TO_THE_MIDDLE)
    return await asyncio.to_thread(gpu_use)


def _medians(rounds: Sequence[RoundFigures], *names: str) -> Figures:
    """The medians of the figures with these names; `spreads` has all figures."""
    figures = {name: spread([each.get(name) for each in rounds]) for name in rounds[0]}
    known = {name: one for name, one in figures.items() if one is not None}
    shown = {name: known[name].median for name in names if name in known}
    return {**shown, "rounds": len(rounds), "spreads": {name: asdict(one) for name, one in known.items()}}
