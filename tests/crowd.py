"""Concurrent requests of every kind that come and go."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from genai_server.engine.scores import Logits
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.text.codec import load_text_codec
from tests.running_server import DEMO

MAX_LENGTH = 2048
LONGEST_PROMPT = 1900
MAX_TOKENS = 32
# The mean number of steps between two arrivals: few enough for a queue, and enough for the queue to empty again.
STEPS_BETWEEN = 5
FATES = ("answered", "answered", "answered", "answered", "cancelled", "terminated")
CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Egypt": "Cairo", "Peru": "Lima", "Cuba": "Havana"}


@dataclass(frozen=True)
class Asked:
    """A request, the step of its arrival, and when it is cancelled or terminated, if at all: after this number of
    tokens of its answer or, if that is 0, after this number of steps.
    """

    request: GenerationRequest
    arrives: int
    fate: str = "answered"
    patience: int = 0
    steps: int = 0


@dataclass
class Answer:
    """Tokens, the logits from which each token and the end were chosen, and the reason of the end."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Logits] = field(default_factory=list)
    end: str = "nothing"
    num_cached: int = 0


@dataclass(frozen=True)
class Crowd:
    """The requests, and the answer of each when it runs alone."""

    asked: Sequence[Asked]
    alone: Sequence[Answer]


def make_crowd(
    number: int,
    chance: random.Random,
    ask_alone: Callable[[GenerationRequest], Answer],
    *,
    vocabulary: int = 1920,
    context: int = MAX_LENGTH,
) -> Crowd:
    """New prompts, and prompts that continue an earlier one with its answer, or a part of them.

    Their tokens are below `vocabulary`, and a prompt and its answer have at most `context` tokens.
    """
    asked: list[Asked] = []
    alone: list[Answer] = []
    arrives = 0
    for index in range(number):
        prompt = some_prompt(chance)
        if asked and chance.random() < 0.4:
            earlier = chance.randrange(max(0, index - 12), index)
            past = [*asked[earlier].request.prompt, *alone[earlier].tokens]
            kept = chance.choice((len(past), chance.randint(1, len(past))))
            prompt = [*past[:kept], *prompt[:20]]
        if index == number // 2:  # there may be none by chance
            prompt = chance.choices(range(10, 1900), k=LONGEST_PROMPT)
        arrives += round(chance.expovariate(1 / STEPS_BETWEEN))
        if index == number // 3:
            prompt = prompt[:1]
        prompt = [token % vocabulary for token in prompt[: min(LONGEST_PROMPT, context - MAX_TOKENS)]]
        asked.append(some_asked(f"r{index}", prompt, arrives, chance, context, low_priority=index % 3 == 0))
        alone.append(ask_alone(asked[-1].request))
    return Crowd(asked, alone)


@cache
def conversation(turns: int, last: str) -> tuple[int, ...]:
    """A chat about capitals, which the model knows, and a final question."""
    messages = []
    for turn in range(turns):
        country, capital = list(CAPITALS.items())[turn % len(CAPITALS)]
        messages.append({"role": "user", "content": f"What is the capital of {country}?"})
        messages.append({"role": "assistant", "content": f"The capital of {country} is {capital}."})
    codec = load_text_codec(DEMO, "cpu")
    tokens = asyncio.run(codec.encode_chat([*messages, {"role": "user", "content": last}])).tokens
    codec.close()
    return tuple(tokens)


def some_prompt(chance: random.Random) -> list[int]:
    """From one token to LONGEST_PROMPT, more often short; random tokens or a conversation."""
    length = round(LONGEST_PROMPT ** (chance.random() ** 1.4))
    if chance.random() < 0.4:
        return chance.choices(range(10, 1900), k=length)
    last = chance.choice((f"Count from 1 to {length % 100 + 2}.", "What is the capital of Peru?", "Hello!"))
    return list(conversation(length // 32, last))


def some_sampling(chance: random.Random) -> Sampling:
    """Greedy half of the time."""
    if chance.random() < 0.5:
        return Sampling()
    return Sampling(
        temperature=chance.choice((0.3, 0.7, 1.0)),
        top_k=chance.choice((0, 0, 5, 40)),
        top_p=chance.choice((1.0, 1.0, 0.9)),
        min_p=chance.choice((0.0, 0.0, 0.05)),
        repetition_penalty=chance.choice((1.0, 1.0, 1.2)),
        seed=(seed := chance.randrange(10**6)),
        repeat_last_n=(-1, 0, 3, 64)[seed % 4],
    )


def some_asked(
    name: str, prompt: list[int], arrives: int, chance: random.Random, context: int, *, low_priority: bool
) -> Asked:
    fate = chance.choice(FATES)
    answered = fate == "answered"
    request = GenerationRequest(
        name,
        prompt,
        max_tokens=chance.randint(1, MAX_TOKENS) if answered else MAX_TOKENS,
        max_length=context,
        sampling=some_sampling(chance),
        ignore_eos=not answered or chance.random() < 0.3,
        cache_prompt=chance.random() < 0.9,
        priority=chance.choice((0, 0, 0, -1, 1)),
        low_priority=low_priority,
    )
    return Asked(request, arrives, fate, patience=chance.choice((0, 1, 5, 20)), steps=chance.randint(0, 12))
