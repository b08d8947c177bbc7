"""Answers with a draft model in virtual time: the scheduler chooses, and passes take the time of a given machine."""

import random
from collections import abc
from dataclasses import dataclass, field, replace
from itertools import count

from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, StepPolicy
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest
from tests.engine.scheduling.scheduled import able_runner

CHUNK = 128
# Texts are random tokens of this number, so nothing is drafted from them.
_VOCABULARY = 10**9


@dataclass
class Machine:
    """How long passes take: in milliseconds the first token, each further one, and one of a prompt."""

    first: float = 8.0
    further: float = 1.6
    prompt: float = 1.0
    # What the draft model takes, as a share of that.
    draft_share: float = 0.1
    # Milliseconds around the draft model's passes of a step.
    overhead: float = 0.2
    # How much longer the step behind them takes than others of as many tokens.
    interference: float = 0.0
    # Relative standard deviation of all passes.
    noise: float = 0.02
    # The share of passes that other programs make six times as long.
    disturbed: float = 0.0
    # Passes of more tokens have other weights, with which a further one takes `cheap` milliseconds; 0 if none has.
    few: int = 0
    cheap: float = 0.0
    seconds: float = 0.0
    # Disturbs the model's passes, and those of the draft model.
    chance: random.Random = field(default_factory=lambda: random.Random(3))
    chance_of_drafts: random.Random = field(default_factory=lambda: random.Random(4))

    def milliseconds(self, num_tokens: int, *, drafts: bool = False) -> float:
        """What a pass of decoded tokens takes without disturbances."""
        few = num_tokens if drafts or not self.few else min(self.few, num_tokens)
        return self.first + max(0, few - 1) * self.further + (num_tokens - few) * self.cheap

    def run(self, num_decoded: int, num_prompt: int, *, drafts: bool = False) -> float:
        """Let the time of a pass go by; returns its seconds."""
        chance = self.chance_of_drafts if drafts else self.chance
        milliseconds = self.milliseconds(num_decoded, drafts=drafts) + num_prompt * self.prompt
        milliseconds *= (self.draft_share if drafts else 1.0) * max(0.5, chance.gauss(1.0, self.noise))
        if chance.random() < self.disturbed:
            milliseconds *= 6
        self.seconds += milliseconds / 1000
        return milliseconds / 1000


class SimulatedModel:
    """A draft model, of whose tokens a share is right."""

    is_parallel = False

    def __init__(self, machine: Machine, acceptance: float) -> None:
        self.times = StepTimeModel()
        self.acceptance = acceptance
        self.num_drafted = 0
        self.num_behind = 0  # tokens that it has read in chunks
        self._machine = machine
        self._chance = random.Random(5)
        self._read: dict[int, int] = {}  # tokens by the id of the sequence
        for number in (1, 16) * 4:
            self._pass(number, 0)
        self._pass(0, CHUNK)

    def room(self, sequence: Sequence) -> int:
        return _VOCABULARY

    def num_unread(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - self._read.get(sequence.id, 0)

    def propose(
        self, wanted: abc.Sequence[tuple[Sequence, int]], chunks: abc.Sequence[tuple[Sequence, int]]
    ) -> list[list[int]]:
        self._machine.seconds += self._machine.overhead / 1000
        for sequence, number in chunks:
            self._read[sequence.id] = self._read.get(sequence.id, 0) + number
        num_prompt = sum(number for _, number in chunks)
        lengths = [length for _, length in wanted]
        self._pass(sum(self.num_unread(sequence) for sequence, _ in wanted), num_prompt)
        for place in range(1, max(lengths, default=0)):
            self._pass(sum(length > place for length in lengths), 0)
        for sequence, length in wanted:
            self._read[sequence.id] = len(sequence.tokens) + length - 1
        self.num_drafted += sum(lengths)
        self.num_behind += num_prompt
        return [[self._chance.randrange(_VOCABULARY) for _ in range(length)] for length in lengths]

    def close(self, sequence: int) -> None:
        self._read.pop(sequence, None)

    def verify(self, sequence: Sequence, draft: abc.Sequence[int]) -> int:
        """How many tokens of a draft are right. It forgets the others."""
        wrong = (place for place in range(len(draft)) if self._chance.random() >= self.acceptance)
        num_right = next(wrong, len(draft))
        self._read[sequence.id] = min(self._read[sequence.id], len(sequence.tokens) + num_right)
        return num_right

    def _pass(self, num_decoded: int, num_prompt: int) -> None:
        seconds = self._machine.run(num_decoded, num_prompt, drafts=True)
        self.times.passed(num_decoded, num_decoded + num_prompt, seconds)


class Simulation:
    """A device's scheduler with a draft model, or without one if the acceptance is None."""

    def __init__(self, machine: Machine, acceptance: float | None) -> None:
        self.machine = machine
        self.model = None if acceptance is None else SimulatedModel(machine, acceptance)
        runner = able_runner()
        warm_up = {number: machine.milliseconds(number) / 1000 for number in (1, 4, 8, 16)}
        runner.abilities = replace(runner.abilities, tried_passes=warm_up)
        self._scheduler = Scheduler(
            runner, max_running=16, max_waiting=16, prefill_chunk=CHUNK, policy=StepPolicy(speculates=True)
        )
        if self.model is not None:
            self._scheduler.draft_with(self.model)
        self._ids = count()
        self._chance = random.Random(6)

    def answer(self, num_clients: int, num_tokens: int, num_prompt: int = 64) -> float:
        """Answer requests that come at once; returns tokens per second from when all have their first one."""
        sequences = [self._asked(num_prompt, num_tokens) for _ in range(num_clients)]
        for sequence in sequences:
            self._scheduler.add(sequence)
        self._scheduler.admit()
        while not all(sequence.num_produced for sequence in sequences):
            self._step()
        started, before = self.machine.seconds, sum(sequence.num_produced for sequence in sequences)
        while self._scheduler.running:
            self._step()
        return (num_clients * num_tokens - before) / (self.machine.seconds - started)

    def _asked(self, num_prompt: int, num_tokens: int) -> Sequence:
        prompt = [self._chance.randrange(_VOCABULARY) for _ in range(num_prompt)]
        request = GenerationRequest("simulated", prompt, num_tokens, 10**6)
        sequence = Sequence(next(self._ids), (0, 0), request, lambda: self.machine.seconds)
        sequence.batched = True
        return sequence

    def _step(self) -> None:
        step = self._scheduler.next_step()
        assert step is not None
        num_decoded = sum(chunk.num_tokens for chunk in step.chunks if chunk.decodes)
        num_drafted = sum(len(chunk.draft) for chunk in step.chunks)
        seconds = self.machine.run(num_decoded, step.num_tokens - num_decoded)
        if num_drafted:
            extra = self.machine.interference * seconds
            self.machine.seconds, seconds = self.machine.seconds + extra, seconds + extra
        for chunk in step.chunks:
            self._advance(chunk)
        self._scheduler.observe(step, seconds)

    def _advance(self, chunk: ScheduledChunk) -> None:
        sequence = chunk.sequence
        chunk.count()
        if sequence.num_unread:
            return
        num_right = 0
        if chunk.draft:
            assert self.model is not None
            num_right = self.model.verify(sequence, chunk.draft)
        for token in chunk.draft[:num_right]:
            sequence.append(token)
        sequence.num_read += num_right
        sequence.append(self._chance.randrange(_VOCABULARY))
        if chunk.draft:
            self._scheduler.verified(sequence, len(chunk.draft), num_right)
        if not sequence.num_left:
            self._scheduler.remove(sequence)
            if self.model is not None:
                self.model.close(sequence.id)
