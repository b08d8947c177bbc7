"""Whether the batched runner gives the same answers as a new `og.Generator` that reads each prompt at once."""

from __future__ import annotations

import random
from collections.abc import Iterable
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


class Reference:
    """The library's own greedy answers with the logits of each of their tokens."""

    def __init__(self, model_dir: Path, max_length: int) -> None:
        self.runner = Driven(OgGeneratorRunner(model_dir, "cpu", threads=0))
        self.max_length = max_length
        self._known: dict[tuple[int, ...], tuple[list[int], list[Logits]]] = {}

    def answer(self, tokens: list[int]) -> tuple[list[int], list[Logits]]:
        """The STEPS tokens that follow a prompt, and the logits by which each was chosen."""
        key = tuple(tokens)
        if key not in self._known:
            self.runner.open(0, tokens, self.max_length)
            logits = [self.runner.prefill(0, tokens).copy()]
            answer = [int(logits[0].argmax())]
            while len(answer) < STEPS:
                logits.append(self.runner.decode([0], answer[-1:])[0].copy())
                answer.append(int(logits[-1].argmax()))
            self.runner.close(0)
            self._known[key] = answer, logits
        return self._known[key]

    @property
    def variety(self) -> int:
        """Different tokens in all answers: few would mean that equality shows little."""
        return len({token for answer, _ in self._known.values() for token in answer})


@dataclass
class Tally:
    """How many tokens were compared and are equal.

    For each token also the largest difference of logits and their standard deviation, of those that have a chance.
    """

    compared: int = 0
    equal: int = 0
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


class Batch:
    """Sequences on a batched runner, compared at every step; they continue with the reference's tokens."""

    def __init__(self, runner: Driven, reference: Reference, tally: Tally) -> None:
        self.runner = runner
        self.has_states = runner.slots.keeps_states
        self._reference, self._tally = reference, tally
        self._running: dict[int, tuple[list[int], list[Logits]]] = {}
        self._produced: dict[int, int] = {}

    def begin(self, sequence: int, tokens: list[int], *, chunk: int | None = None) -> int:
        """Read a prompt and compare the first token; returns how many of its tokens were cached.

        It is read in chunks of about `chunk` tokens, none of which is one token alone. A model with states has a
        checkpoint near the end, as the scheduler's chunks leave one.
        """
        cached = self.runner.open(sequence, tokens, self._reference.max_length)
        unread = tokens[cached:]
        parts = max(1, len(unread) // chunk) if chunk else 1
        border = before_checkpoint(len(unread), len(unread)) if self.has_states else len(unread)
        for part in (*np.array_split(unread[:border], parts), np.array(unread[border:])):
            if part.size:
                logits = self.runner.prefill(sequence, part.tolist())
        self._running[sequence], self._produced[sequence] = self._reference.answer(tokens), 0
        self._compare(sequence, logits)
        return cached

    def step(self, *sequences: int) -> None:
        """One more token of each, in one pass."""
        given = [self._running[sequence][0][self._produced[sequence] - 1] for sequence in sequences]
        for sequence, row in zip(sequences, self.runner.decode(sequences, given), strict=True):
            self._compare(sequence, row)

    def finish(self, sequences: Iterable[int]) -> dict[int, list[int]]:
        """Take all to the end of their answers, then close them; returns the answers."""
        left = set(sequences)
        while unfinished := [sequence for sequence in sorted(left) if self.can_step(sequence)]:
            self.step(*unfinished)
        self.end(*left)
        return {sequence: self._running[sequence][0] for sequence in left}

    def end(self, *sequences: int) -> None:
        """Close sequences, at any token."""
        for sequence in sequences:
            self.runner.close(sequence)

    def can_step(self, sequence: int) -> bool:
        """Whether the reference's answer continues."""
        return self._produced[sequence] < STEPS

    def _compare(self, sequence: int, logits: Logits) -> None:
        self._tally.add(logits, self._running[sequence][1][self._produced[sequence]])
        self._produced[sequence] += 1


def ragged(batch: Batch, longest: int) -> None:
    """Prompts of very different lengths decode together."""
    lengths = [length for length in (1, 2, 17, 31, 33, 64, 100, 150) if length < longest] + [longest]
    for number, length in enumerate(lengths):
        batch.begin(number, random_prompt(length))
    batch.finish(range(len(lengths)))


def joining_and_leaving(batch: Batch, longest: int) -> None:
    """Prompts are read in chunks and answers are cancelled, in random order."""
    chance = random.Random(5)
    running: set[int] = set()
    for number in range(40):
        if len(running) < batch.runner.abilities.max_rows and chance.random() < 0.7:
            batch.begin(number, random_prompt(chance.randint(1, longest), number), chunk=chance.choice((2, 7, 16)))
            running.add(number)
        if ready := [sequence for sequence in sorted(running) if batch.can_step(sequence)]:
            batch.step(*chance.sample(ready, len(ready)))
        for sequence in sorted(running):
            if chance.random() < 0.15:
                batch.end(sequence)
                running.remove(sequence)
    batch.end(*running)


def copied_past(batch: Batch, longest: int) -> None:
    """Prompts with the same beginning, concurrently and one after another."""
    common = random_prompt(longest - 20, 10)
    for number in range(4):
        cached = batch.begin(number, [*common, *random_prompt(5 + 5 * number % 20, 20 + number)])
        assert (cached > 0) == (number > 0)
    batch.finish(range(4))
    cached = batch.begin(4, [*common, *random_prompt(12, 30)])
    assert cached == len(common) or batch.has_states
    batch.begin(5, random_prompt(9, 31))
    batch.finish([4, 5])
    shorter = common[: len(common) // 2]
    cached = batch.begin(6, shorter)
    assert cached == len(shorter) - 2 or batch.has_states
    batch.finish([6])


def conversation(batch: Batch, longest: int) -> None:
    """The next prompt continues the last answer, whose keys and values came from decoding."""
    first = random_prompt(longest - STEPS - 30, 40)
    batch.begin(0, first)
    batch.begin(1, random_prompt(20, 41))
    answer = batch.finish([0, 1])[0]
    follow = [*first, *answer, *random_prompt(15, 42)]
    assert batch.begin(2, follow) > len(first)
    batch.finish([2])


def long_rows(batch: Batch, switches_at: int) -> None:
    """Rows within the original context of a long rope next to rows that are longer from the start."""
    lengths = (20, switches_at - STEPS, switches_at + 1, switches_at + 80)
    for number, length in enumerate(lengths):
        batch.begin(number, random_prompt(length), chunk=50)
    batch.finish(range(len(lengths)))


SITUATIONS = (ragged, joining_and_leaving, copied_past, conversation)
