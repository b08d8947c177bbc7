"""An engine loop without process and socket, driven step by step.

It has its own clock and random numbers: the same seed gives the same steps.
"""

import random
import shutil
from collections import abc, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from _models.driven import Driven

from genai_server.engine.api_connections import Connected
from genai_server.engine.kv_cache.buffers import page_tokens
from genai_server.engine.loop import EngineLoop
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.profiling.profile_files import ProfileFolder
from genai_server.engine.profiling.runtime_options import PROFILING, TERMINATE, RuntimeOptionState
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import KvMemory, ScheduledChunk, Step, StepPolicy
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import ProfilePlan, ResetPrefixCache, SetRuntimeOption, SlowTokens, StartProfile
from genai_server.messages.engine_protocol import Cancel, Failed, Finished, Refused, Submit, ToApi, Tokens
from genai_server.messages.generation_request import GenerationRequest
from genai_server.messages.launch import Resize
from tests.crowd import MAX_LENGTH, Answer, Asked

SLOTS = 8
API = 1
# A chunk with a single token in the last block of the library's attention is rounded otherwise.
ATTENTION_BLOCK = 64


class ChanceInterrupted(BatchedRunner):
    """Occasionally interrupts a pass over a prompt, or one of the background, at its very end, when everything has been
    written.
    """

    chance: random.Random | None = None
    num_interrupted = 0

    def _forward(self, chunks: abc.Sequence[ScheduledChunk], options: Any) -> list[Scores]:
        slots = {chunk.sequence.id: len(self.slots.of(chunk.sequence.id).tokens) for chunk in chunks}
        scores = super()._forward(chunks, options)
        if self.chance is not None and self._interrupts(chunks) and self.chance.random() < 0.05:
            self.num_interrupted += 1
            for sequence, length in slots.items():
                slot = self.slots.of(sequence)
                slot.tokens = slot.tokens[:length]
            raise Interrupted
        return scores


class Overheard(RunnerPair):
    """Records the logits of each choice by the request's name, and counts the profiled passes."""

    def __init__(self, batched: BatchedRunner) -> None:
        super().__init__(LoadedModel(batched, batched))
        self.heard: dict[str, list[Logits]] = defaultdict(list)
        self.num_profiled = 0

    def forward(self, step: Step) -> list[Scores]:
        scores = super().forward(step)
        self.num_profiled += step.sequences[0].profile.active is not None
        for sequence, found in zip(step.sequences, scores, strict=True):
            if sequence.num_unread == 0:
                self.heard[sequence.request.request_id].append(found.last.copy())
        return scores


class SteppedEngine:
    """A loop on a model; a new one for each run, with the same runners."""

    def __init__(self, model_dir: Path, profiles: Path, *, threads: int = 1) -> None:
        self._model_dir = model_dir
        graph = read_decoder_graph(model_dir)
        session = open_session(graph, threads)
        self.generator = OgGeneratorRunner(model_dir, "cpu", threads=1)
        tokens = page_tokens(graph)
        # A page counts as a byte.
        checkpoint = -(-graph.bytes_per_row // (tokens * graph.bytes_per_token))
        self.max_length = min(MAX_LENGTH, self.generator.model.context_length)
        self.memory = KvMemory(tokens, 0, checkpoint, page_bytes=1, min_pages=self.max_length // tokens)
        limits = BatchLimits(SLOTS, self.max_length, self.memory)
        self.batched = ChanceInterrupted(graph, session, self.generator.model, limits)
        self.profiles = profiles
        self.begin(random.Random(0))

    def begin(self, chance: random.Random) -> None:
        """Forget all cached and recorded state."""
        self.chance = chance
        self.runners = Overheard(self.batched)
        self.batched.forget()
        self.memory.resize(SLOTS * self.memory.min_pages)
        self.scheduler = Scheduler(
            self.batched,
            max_running=SLOTS,
            max_waiting=256,
            prefill_chunk=64,
            idle_chunk=256,
            policy=StepPolicy(memory=self.memory),
        )
        folder = ProfileFolder(self.profiles, "cpu", max_files=80, max_bytes=10**9)
        self._seconds = 0.0
        self.loop = EngineLoop(
            self.runners,
            self.scheduler,
            RuntimeOptionState(self.runners, folder, max_rows=2, clock=lambda: self._seconds),
            model_guidance(self._model_dir, self.generator.model),
            self._receive,
            clock=self._clock,
        )
        self.inbox = self.loop.inbox
        self.num_preemptions = 0
        preempt = self.scheduler.on_preempt

        def count_and_preempt(sequence: Sequence) -> None:
            self.num_preemptions += 1
            preempt(sequence)

        self.scheduler.on_preempt = count_and_preempt
        self.inbox.put((API, Connected()))
        self._asked: list[Asked] = []
        self._answers: dict[str, Answer] = {}

    def alone(self, request: GenerationRequest) -> Answer:
        """The answer to a request that runs alone, without cached prefixes."""
        self.begin(random.Random(0))
        self._submit(Asked(request, 0))
        while self._answers[request.request_id].end == "nothing":
            self._step()
        return self._answer(request)

    def together(self, crowd: abc.Sequence[Asked], seed: int) -> list[Answer]:
        """The answers to all requests, in order, while profiling is switched, sessions start, passes are interrupted,
        sequences are preempted, the memory changes its size and pasts are forgotten at random.
        """
        self.begin(random.Random(seed))
        self.batched.chance, self.batched.num_interrupted = self.chance, 0
        coming = sorted(crowd, key=lambda asked: asked.arrives)
        leaving: list[tuple[int, Asked]] = []
        now = 0
        while coming or not self.scheduler.is_idle:
            if self.scheduler.is_idle:
                now = max(now, coming[0].arrives)
            while coming and coming[0].arrives <= now:
                asked = coming.pop(0)
                self._submit(asked)
                leaving += [(now + asked.steps, asked)] * (asked.fate != "answered" and asked.patience == 0)
            for due in [due for due in leaving if due[0] <= now]:
                leaving.remove(due)
                self._end(due[1])
            self._disturb()
            self._step()
            now += 1
        self.inbox.put((API, SetRuntimeOption(0, PROFILING, "0")))
        self._step()
        self.batched.chance = None
        return [self._answer(asked.request) for asked in crowd]

    def library(self, prompt: list[int], following: list[int], *, decoded: int = 0) -> list[Logits]:
        """The logits of a fresh Generator after the prompt, whose last `decoded` tokens it reads one by one, and after
        each following token.
        """
        generator = Driven(self.generator)
        generator.open(-1, prompt, MAX_LENGTH)
        whole = len(prompt) - decoded
        # Two at the end instead of one.
        cut = whole - 2 if whole > 1 and whole % ATTENTION_BLOCK == 1 else whole
        for part in (prompt[:cut], prompt[cut:whole]):
            if part:
                logits = generator.prefill(-1, part).copy()
        found = [logits]
        for token in [*prompt[whole:], *following]:
            found.append(generator.decode([-1], [token])[0].copy())
        self.generator.close(-1)
        return found[decoded:]

    def rounding(self) -> float:
        """The largest difference of the library's own logits between a prefilled past and a decoded one."""
        largest = 0.0
        for seed in range(12):
            chance = random.Random(seed)
            prompt, following = chance.choices(range(10, 1900), k=80), chance.choices(range(10, 1900), k=16)
            pairs = zip(self.library(prompt, following), self.library(prompt, following, decoded=40), strict=True)
            largest = max(largest, *(float(np.abs(one - other).max()) for one, other in pairs))
        return largest

    def _submit(self, asked: Asked) -> None:
        self._answers[asked.request.request_id] = Answer()
        self.inbox.put((API, Submit(len(self._asked), asked.request)))
        self._asked.append(asked)

    def _end(self, asked: Asked) -> None:
        answer = self._answers[asked.request.request_id]
        if asked.fate == "terminated":
            self.inbox.put((API, SetRuntimeOption(0, TERMINATE, "1", asked.request.request_id)))
        elif answer.end == "nothing":
            self.inbox.put((API, Cancel(self._asked.index(asked))))
            answer.end = "cancelled"

    def _disturb(self) -> None:
        chance = self.chance
        if chance.random() < 0.03:
            shutil.rmtree(self.profiles, ignore_errors=True)
            self.inbox.put((API, SetRuntimeOption(0, PROFILING, chance.choice(("0", "0", "1", "other")))))
        if chance.random() < 0.03 and self.scheduler.running:
            name = chance.choice(self.scheduler.running).request.request_id
            self.inbox.put((API, SetRuntimeOption(0, PROFILING, chance.choice(("0", "1")), name)))
        if chance.random() < 0.01:
            self.inbox.put((API, ResetPrefixCache(0)))
        preemptible = [s for s in self.scheduler.running if s.low_priority or self.scheduler._grows(s)]
        if preemptible and chance.random() < 0.05:
            self.scheduler._preempt(chance.choice(preemptible))
        if chance.random() < 0.03:
            self.inbox.put((API, Resize(int(self.memory.min_pages * chance.choice((0, 0, 0, 1.2, 4))))))
        if chance.random() < 0.05:
            first = chance.randrange(20)
            slow = chance.choice((None, SlowTokens(over_ms=18.0, num_tokens=3, max_per_hour=1000)))
            plan = ProfilePlan("plan", None, first, first + chance.randrange(5), 20, 60.0, slow)
            self.inbox.put((API, StartProfile(0, plan)))

    def _step(self) -> None:
        self.loop.run_one_step()
        self.check_books()

    def _receive(self, connection: int, messages: list[ToApi]) -> None:
        assert connection == API
        for message in messages:
            assert not isinstance(message, Failed | Refused), message
            if isinstance(message, Tokens | Finished):
                self._note(self._asked[message.key], message)

    def _note(self, asked: Asked, message: Tokens | Finished) -> None:
        answer = self._answers[asked.request.request_id]
        if isinstance(message, Finished):
            # A cancelled answer may end normally, at the very token of its cancellation.
            assert answer.end in ("nothing", "cancelled")
            answer.end, answer.num_cached = message.reason.value, message.num_cached
            return
        assert answer.end == "nothing"
        answer.tokens += message.tokens
        if asked.fate != "answered" and len(answer.tokens) == asked.patience:
            self._end(asked)

    def _answer(self, request: GenerationRequest) -> Answer:
        answer = self._answers[request.request_id]
        answer.logits = self.runners.heard[request.request_id]
        return answer

    def _clock(self) -> float:
        """Seconds that advance at random, so that prompt chunks have all sizes."""
        self._seconds += self.chance.uniform(0.001, 0.02)
        return self._seconds

    def check_books(self) -> None:
        """Check that each running batched sequence has a slot with the tokens it has read, that all other slots are
        free, and that all have no more memory than there is.
        """
        running, slots = self.scheduler.running, self.batched.slots
        batched = {sequence.id: sequence for sequence in running if sequence.batched}
        assert slots.num_running == len(batched)
        assert slots._pages.num_used <= self.memory.num_pages or len(batched) < len(running)
        pasts = {slot.sequence: slot.tokens for slot in slots.slots if slot.sequence is not None}
        assert pasts == {id: sequence.tokens[: sequence.num_read] for id, sequence in batched.items()}
        assert all(len(slot.tokens) <= self.max_length for slot in slots.slots)
        assert self.batched._profiles.keys() == {s.id for s in running if s.profile.active is not None}
        assert set(self.loop._requests) == {*running, *self.scheduler.waiting}
