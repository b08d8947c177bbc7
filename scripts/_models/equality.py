"""Whether the batched runner gives the same answers as a new `og.Generator` that reads each prompt at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from genai_server.engine.kv_cache.buffers import before_checkpoint
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scores import Logits

from .driven import Driven, random_prompt

STEPS = 24
# A token this far below the best is never chosen, so the rounding of its logit does not matter.
HOPELESS = 30.0
# Lengths of prompts: the shortest, those at the border of a window or a block, and the longest.
EDGES, LONGEST = (1, 2, 31, 32, 33, 64), 208
ROUNDS = 120


class Reference:
    """The library's own greedy answers, as the logits of each of their tokens."""

    def __init__(self, model_dir: Path, max_length: int) -> None:
        self.runner = Driven(OgGeneratorRunner(model_dir, "cpu", threads=0))
        self.max_length = max_length
        self._known: dict[tuple[int, ...], list[Logits]] = {}

    def answer(self, tokens: list[int]) -> list[Logits]:
        """The logits by which each of the STEPS tokens that follow a prompt is chosen."""
        key = tuple(tokens)
        if key not in self._known:
            self.runner.open(0, tokens, self.max_length)
            logits = [self.runner.prefill(0, tokens).copy()]
            while len(logits) < STEPS:
                logits.append(self.runner.decode([0], chosen(logits[-1:]))[0].copy())
            self.runner.close(0)
            self._known[key] = logits
        return self._known[key]

    @property
    def variety(self) -> int:
        """Different tokens in all answers: few would mean that equality shows little."""
        return len({token for answer in self._known.values() for token in chosen(answer)})


@dataclass
class Tally:
    """How many tokens were compared and are equal, and how many tokens of prompts came from cached prefixes.

    For each token also the largest difference of logits and their standard deviation, of those that have a chance.
    """

    compared: int = 0
    equal: int = 0
    cached: int = 0
    differences: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    def add(self, logits: Logits, expected: Logits) -> None:
        """Compare the logits of a token with those of the library."""
        self.compared += 1
        self.equal += int(logits.argmax() == expected.argmax())
        possible = expected > expected.max() - HOPELESS
        self.differences.append(float(np.abs(logits - expected)[possible].max()))
        self.scales.append(float(expected[possible].std()))

    @property
    def largest(self) -> float:
        """The largest difference, as a share of the logits' standard deviation."""
        return max(self.differences) / float(np.mean(self.scales))

    @property
    def mean(self) -> float:
        """The mean of all tokens' differences, as a share of the logits' standard deviation."""
        return float(np.mean(self.differences) / np.mean(self.scales))


def chosen(logits: Sequence[Logits]) -> list[int]:
    """The most likely tokens."""
    return [int(row.argmax()) for row in logits]


def compare(runner: Driven, reference: Reference, switches_at: int | None) -> Tally:
    """Compare every token of sequences that run next to each other, and continue with the reference's tokens.

    They begin and are cancelled at random, and their prompts are read in chunks. Half of the prompts begin like an
    earlier one, or with all or a part of its answer, and so with a cached prefix. A rope that `switches_at` a length
    has prompts on both sides of it, but no answer crosses it, because the library would change its factors there.
    """
    chance, tally = random.Random(5), Tally()
    # The logits of running sequences that were not compared yet, behind those of the last token.
    running: dict[int, list[Logits]] = {}
    earlier: list[list[int]] = []
    for number in range(ROUNDS):
        if len(running) < runner.abilities.max_rows and chance.random() < 0.7:
            prompt = _prompt(chance, earlier, number)
            while switches_at is not None and len(prompt) <= switches_at < len(prompt) + STEPS:
                prompt = _prompt(chance, earlier, number)
            logits = _read(runner, number, prompt, chance.choice((2, 7, 16, 50, LONGEST)), reference.max_length, tally)
            running[number] = reference.answer(prompt).copy()
            tally.add(logits, running[number][0])
            earlier.append([*prompt, *chosen(running[number])])
        if running:
            sequences = chance.sample(sorted(running), len(running))
            rows = runner.decode(sequences, chosen([running[sequence].pop(0) for sequence in sequences]))
            for sequence, row in zip(sequences, rows, strict=True):
                tally.add(row, running[sequence][0])
        for sequence, left in list(running.items()):
            if len(left) == 1 or chance.random() < 0.03:
                runner.close(sequence)
                del running[sequence]
    return tally


def _prompt(chance: random.Random, earlier: Sequence[list[int]], seed: int) -> list[int]:
    length = chance.choice((*EDGES, *chance.choices(range(1, LONGEST + 1), k=len(EDGES))))
    begins = chance.choice(earlier) if earlier and chance.random() < 0.5 else []
    begins = begins[: chance.randint(0, length - 1)]
    return [*begins, *random_prompt(length - len(begins), seed)]


def _read(runner: Driven, sequence: int, prompt: list[int], chunk: int, max_length: int, tally: Tally) -> Logits:
    """Read a prompt in chunks of about `chunk` tokens, none of which is one token alone; returns the last logits.

    A model with states has a checkpoint near the end, as the scheduler's chunks leave one.
    """
    cached = runner.open(sequence, prompt, max_length)
    tally.cached += cached
    unread = prompt[cached:]
    border = before_checkpoint(len(unread), len(unread)) if runner.slots.keeps_states else len(unread)
    parts = np.array_split(unread[:border], max(1, len(unread) // chunk))
    for part in (*parts, np.array(unread[border:])):
        if part.size:
            logits = runner.prefill(sequence, part.tolist())
    return logits
