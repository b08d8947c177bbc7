"""Whether the batched runner gives the same answers as a new `og.Generator` that reads each prompt at once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from _models.family import VOCABULARY
from genai_server.engine.kv_cache.buffers import before_checkpoint
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scores import Logits

from .driven import Driven

STEPS = 24
# To see the library's own rounding, this many tokens of a prompt are read at once, and the others one by one.
_WHOLE = 2
# A token this far below the best is never chosen, so the rounding of its logit does not matter.
HOPELESS = 30.0


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    chance = random.Random(f"{seed} {length}")
    return [chance.randrange(3, VOCABULARY) for _ in range(length)]


class Reference:
    """The library's own greedy answers with the logits of each of their tokens."""

    def __init__(self, model_dir: Path, max_length: int) -> None:
        self.runner = Driven(OgGeneratorRunner(model_dir, "cpu", threads=0))
        self.max_length = max_length
        self._known: dict[tuple[int, ...], tuple[list[int], list[Logits]]] = {}

    def answer(self, tokens: list[int]) -> tuple[list[int], list[Logits]]:
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

    def own_rounding(self, switches_at: int | None) -> Tally:
        """How much the library's logits differ if it reads the same prompts token by token, after the first two.

        Those longer than `switches_at` are left out: they would begin with the rope of short rows.
        """
        return self._rounding(self.runner, _WHOLE, switches_at)

    def rounding_of(self, nudged: Reference) -> Tally:
        """How much the library's logits of the same prompts differ with another model's weights."""
        return self._rounding(nudged.runner, self.max_length, None)

    def _rounding(self, runner: Driven, whole: int, most: int | None) -> Tally:
        """The logits of a runner that reads the first `whole` tokens at once, of prompts with at most `most` tokens."""
        tally = Tally()
        for prompt, (answer, expected) in self._known.items():
            if len(prompt) <= _WHOLE or (most is not None and len(prompt) > most):
                continue
            runner.open(0, list(prompt), self.max_length)
            logits = runner.prefill(0, prompt[:whole])
            for token in prompt[whole:]:
                logits = runner.decode([0], [token])[0]
            for token, wanted in zip(answer, expected, strict=True):
                tally.add(logits, wanted)
                logits = runner.decode([0], [token])[0]
            runner.close(0)
        return tally

    @property
    def variety(self) -> int:
        """Different tokens in all answers: few would mean that equality shows little."""
        return len({token for answer, _ in self._known.values() for token in answer})


@dataclass
class Tally:
    """Tokens compared, those that are the same, and those whose logits are so to the last bit.

    For each token also the largest difference of logits and their standard deviation, of those that have a chance.
    """

    compared: int = 0
    equal: int = 0
    identical: int = 0
    differences: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    def add(self, logits: Logits, expected: Logits) -> None:
        self.compared += 1
        self.equal += int(logits.argmax() == expected.argmax())
        self.identical += int(np.array_equal(logits, expected))
        possible = expected > expected.max() - HOPELESS
        self.differences.append(float(np.abs(logits - expected)[possible].max()))
        self.scales.append(float(expected[possible].std()))

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.compared + other.compared,
            self.equal + other.equal,
            self.identical + other.identical,
            self.differences + other.differences,
            self.scales + other.scales,
        )

    def __str__(self) -> str:
        return f"{self.equal} of {self.compared}, {self.relative:.1e}, mean {self.mean:.1e}"

    @property
    def difference(self) -> float:
        """The largest difference."""
        return max(self.differences, default=0.0)

    @property
    def relative(self) -> float:
        """The largest difference, as a share of the logits' standard deviation."""
        return self.difference / self.deviation

    @property
    def mean(self) -> float:
        """The mean of all tokens' differences, as a share of the logits' standard deviation."""
        return float(np.mean(self.differences)) / self.deviation

    @property
    def deviation(self) -> float:
        """The logits' standard deviation."""
        return float(np.mean(self.scales))


class Batch:
    """Sequences on a batched runner, compared at every step; they continue with the reference's tokens."""

    def __init__(self, runner: Driven, reference: Reference) -> None:
        self.runner = runner
        self.tally = Tally()
        self.num_interrupts = 0
        # Whether the chunk that is read may be interrupted: not twice in a row, or the prompt might never be read.
        self.may_interrupt = True
        self.has_states = runner.slots.keeps_states
        self._reference = reference
        self._running: dict[int, tuple[list[int], list[Logits]]] = {}
        self._produced: dict[int, int] = {}

    def begin(
        self,
        sequence: int,
        tokens: list[int],
        *,
        chunk: int | None = None,
        others: Iterable[int] = (),
        **how: Any,
    ) -> int:
        """Read a prompt and compare the first token; returns how many of its tokens were cached."""
        cached = self.runner.open(sequence, tokens, self._reference.max_length, **how)
        self.read(sequence, tokens, tokens[cached:], chunk, others)
        return cached

    def read(
        self,
        sequence: int,
        tokens: list[int],
        unread: list[int],
        chunk: int | None = None,
        others: Iterable[int] = (),
    ) -> None:
        """Read the last part of a prompt in chunks of about that size, none of which is one token alone.

        A model with states has a checkpoint near the end, as the scheduler's chunks leave one. The `others`
        decode a token if a chunk is interrupted.
        """
        parts = max(1, len(unread) // chunk) if chunk else 1
        border = before_checkpoint(len(unread), len(unread)) if self.has_states else len(unread)
        for part in (*np.array_split(unread[:border], parts), np.array(unread[border:])):
            if part.size:
                logits = self._read_chunk(sequence, part.tolist(), others)
        self._running[sequence], self._produced[sequence] = self._reference.answer(tokens), 0
        self._compare(sequence, logits)

    def _read_chunk(self, sequence: int, tokens: list[int], others: Iterable[int]) -> Logits:
        while True:
            try:
                logits = self.runner.prefill(sequence, tokens)
                self.may_interrupt = True
                return logits
            except Interrupted:
                self.num_interrupts += 1
                self.may_interrupt = False
                if ready := [other for other in others if self.can_step(other)]:
                    self.step(*ready)

    def step(self, *sequences: int) -> None:
        """One more token of each, in one pass."""
        given = [self._running[sequence][0][self._produced[sequence] - 1] for sequence in sequences]
        for sequence, row in zip(sequences, self.runner.decode(sequences, given), strict=True):
            self._compare(sequence, row)

    def finish(self, sequences: Iterable[int]) -> dict[int, list[int]]:
        """Take all to the end of their answers, then close them; returns the answers."""
        left = set(sequences)
        while unfinished := [s for s in sorted(left) if self._produced[s] < STEPS]:
            self.step(*unfinished)
        self.end(*left)
        return {sequence: self._running[sequence][0] for sequence in left}

    def end(self, *sequences: int) -> None:
        for sequence in sequences:
            self.runner.close(sequence)

    def can_step(self, sequence: int) -> bool:
        return self._produced[sequence] < STEPS

    def _compare(self, sequence: int, logits: Logits) -> None:
        self.tally.add(logits, self._running[sequence][1][self._produced[sequence]])
        self._produced[sequence] += 1


def ragged(batch: Batch, longest: int) -> None:
    """Prompts of very different lengths decode together."""
    lengths = [length for length in (1, 2, 17, 31, 33, 64, 100, 150) if length < longest] + [longest]
    for number, length in enumerate(lengths):
        batch.begin(number, prompt(length))
    batch.finish(range(len(lengths)))


def alone(batch: Batch, longest: int) -> None:
    """One row alone."""
    batch.begin(0, prompt(longest))
    batch.finish([0])


def joining_and_leaving(batch: Batch, longest: int) -> None:
    """Prompts are read in chunks and answers are cancelled, in random order."""
    chance = random.Random(5)
    running: set[int] = set()
    for number in range(40):
        if len(running) < batch.runner.abilities.max_rows and chance.random() < 0.7:
            batch.begin(number, prompt(chance.randint(1, longest), number), chunk=chance.choice((2, 7, 16)))
            running.add(number)
        if ready := [sequence for sequence in sorted(running) if batch.can_step(sequence)]:
            batch.step(*chance.sample(ready, len(ready)))
        for sequence in sorted(running):
            if chance.random() < 0.15:
                batch.end(sequence)
                running.remove(sequence)
    batch.end(*running)


def reading_beside_decoding(batch: Batch, longest: int) -> None:
    """A prompt is read in chunks between the steps of others."""
    batch.begin(0, prompt(30, 1))
    batch.begin(1, prompt(longest, 1))
    tokens = prompt(longest, 2)
    batch.runner.open(2, tokens, longest + STEPS, reuse=False)
    for start in range(0, longest - 15, 15):
        batch.runner.prefill(2, tokens[start : start + 15])
        batch.step(0, 1)
        last = start + 15
    batch.read(2, tokens, tokens[last:])
    batch.finish([0, 1, 2])


def interrupted(batch: Batch, longest: int) -> None:
    """The chunks of prompts are interrupted and read again, while others decode."""
    batch.begin(0, prompt(30, 3))
    batch.begin(1, prompt(longest, 3))
    stop = Event()

    def interrupt() -> None:
        chance = random.Random(6)
        while not stop.wait(chance.uniform(0, 0.001)):
            if batch.may_interrupt:
                batch.runner.interrupt()

    thread = Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        for number in range(2, 6):
            batch.begin(number, prompt(longest, number + 2), chunk=longest // 3, others=(0, 1))
    finally:
        stop.set()
        thread.join()
    assert batch.num_interrupts
    batch.finish(range(6))


def copied_past(batch: Batch, longest: int) -> None:
    """Prompts with the same beginning, concurrently and one after another."""
    common = prompt(longest - 20, 10)
    for number in range(4):
        cached = batch.begin(number, [*common, *prompt(5 + 5 * number % 20, 20 + number)])
        assert (cached > 0) == (number > 0)
    batch.finish(range(4))
    cached = batch.begin(4, [*common, *prompt(12, 30)])
    assert cached == len(common) or batch.has_states
    batch.begin(5, prompt(9, 31))
    batch.finish([4, 5])
    shorter = common[: len(common) // 2]
    cached = batch.begin(6, shorter)
    assert cached == len(shorter) - 2 or batch.has_states
    batch.finish([6])


def long_rows(batch: Batch, switches_at: int) -> None:
    """Rows within the original context of a long rope next to rows that are longer from the start."""
    lengths = (20, switches_at - STEPS, switches_at + 1, switches_at + 80)
    for number, length in enumerate(lengths):
        batch.begin(number, prompt(length), chunk=50)
    batch.finish(range(len(lengths)))


def conversation(batch: Batch, longest: int) -> None:
    """The next prompt continues the last answer, whose keys and values came from decoding."""
    first = prompt(longest - STEPS - 30, 40)
    batch.begin(0, first)
    batch.begin(1, prompt(20, 41))
    answer = batch.finish([0, 1])[0]
    follow = [*first, *answer, *prompt(15, 42)]
    assert batch.begin(2, follow) > len(first)
    batch.finish([2])


SITUATIONS = (ragged, alone, joining_and_leaving, reading_beside_decoding, interrupted, copied_past, conversation)
