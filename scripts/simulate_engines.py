"""Simulates chats on a server with several engines: how many tokens each choice of engines finds in their caches.

usage: .venv/bin/python scripts/simulate_engines.py [--engines 2,4,8] [--weights 128:3,512:3,128:16] [--turns 20]

The router, the engines' clients and messages, their loops, schedulers and KV cache slots are the server's own, in one
process. There is no model: a pass takes about as long as one of a model of 0.4 billion parameters on two cores, on a
clock that only passes and pauses advance. Everything is drawn from --seed.

Each client has a conversation of --turns turns. "one engine" has the slots and the memory of all
engines together, and is as fast as all of them. "by load" is the choice without the engines' caches. 128:3 are the
weights of the choice with them, TOKENS_PER_REQUEST and MAX_MORE_REQUESTS of engine_client/client.py.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import selectors
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from _models.engine_loop import API, open_loop
from _models.table import table

from genai_server.engine.abilities import Abilities
from genai_server.engine.kv_cache.kv_events import CachedBlocks, prefix_digest
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.loop import EngineLoop
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler_output import KvMemory, ScheduledChunk, StepPolicy
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.engine_client import client
from genai_server.engine_client.client import EngineClient, Router
from genai_server.messages.engine_protocol import Hello, ToApi, Tokens, Welcome, engine_decoder
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling
from genai_server.messages.prefix_cache import prefix_digests
from genai_server.messages.server_status import NO_SERVER

VOCABULARY = 32
# The choice without caches, and one engine instead of all.
BY_LOAD, ONE_ENGINE = "by load", "one engine"
# The server's own choice.
WEIGHTS = f"{client.TOKENS_PER_REQUEST}:{client.MAX_MORE_REQUESTS}"


@dataclass(frozen=True)
class PassTimes:
    """What a pass of an engine takes, in milliseconds."""

    # Of any pass, of each sequence that decodes, and of each token of a prompt.
    base: float = 13.0
    row: float = 2.8
    prompt_token: float = 1.9


@dataclass(frozen=True)
class Workload:
    """The conversations. Lengths are in tokens, times in seconds; each is drawn between two numbers."""

    clients: int = 8
    # Of each client's conversation.
    turns: int = 20
    # System prompts, shared by all conversations, and their lengths.
    num_systems: int = 4
    system: tuple[int, int] = (50, 1500)
    # The user's text and the answer of a turn.
    user: tuple[int, int] = (10, 200)
    answer: tuple[int, int] = (10, 120)
    pause: tuple[float, float] = (0.0, 30.0)


@dataclass(frozen=True)
class EngineSize:
    """What an engine holds."""

    slots: int = 16
    kv_tokens: int = 65_536
    page_tokens: int = 64


class _Selector(selectors.DefaultSelector):
    """Waits for nothing, and sets the clock forward instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will happen any more")
        self.now += max(0.0, timeout)
        return super().select(0)


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop in which time passes only while nothing is left to do."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class NoBuffers:
    """Holds no keys and values."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies nothing."""

    def give_back(self, slot: int, first: int) -> None:
        """Frees nothing."""


class TimedRunner(Runner):
    """A batch without a model, whose passes set its clock forward and give random tokens."""

    def __init__(self, times: PassTimes, size: EngineSize, chance: random.Random) -> None:
        memory = KvMemory(size.page_tokens, size.kv_tokens // size.page_tokens - size.slots)
        self.now = 0.0
        self.model = ModelInfo(size.kv_tokens, VOCABULARY, [], Sampling())
        self.slots: KvSlots = KvSlots(size.slots, NoBuffers(), memory=memory, clock=self.clock)
        self.abilities = Abilities("timed", size.slots, mixes=True, caches_prefixes=True, memory=memory)
        self._times = times
        self._chance = chance

    def clock(self) -> float:
        return self.now

    def open(self, sequence: Scheduled) -> int:
        found = self.slots.resume(sequence.id) if sequence.num_preemptions else None
        if found is None:
            found = self.slots.acquire(sequence.id, sequence.tokens, reuse=sequence.reuses_past)
        return found

    def match_again(self, sequence: Scheduled) -> int:
        return self.slots.match_again(sequence.id, sequence.prompt)

    def forward(self, chunks: Sequence[ScheduledChunk]) -> list[Scores]:
        scores = []
        seconds = self._times.base
        for chunk in chunks:
            seconds += self._times.row if chunk.decodes else self._times.prompt_token * chunk.num_tokens
            self.slots.reserve(chunk.sequence.id, chunk.num_tokens)
            self.slots.append(chunk.sequence.id, list(chunk.tokens))
            logits = np.zeros((1, VOCABULARY), np.float32)
            logits[0, self._chance.randrange(VOCABULARY)] = 1.0
            scores.append(Scores(logits))
        self.now += seconds / 1000
        return scores

    def forget(self) -> int:
        return self.slots.forget()

    def close(self, sequence: int) -> None:
        if self.slots.has(sequence):
            self.slots.release(sequence)


class _ToLoop(asyncio.WriteTransport):
    """The connection from an API process to an engine's loop."""

    def __init__(self, loop: EngineLoop, wake: asyncio.Event) -> None:
        super().__init__()
        self._decoder = engine_decoder()
        self._loop = loop
        self._wake = wake

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for message in self._decoder.feed(bytes(data)):
            if not isinstance(message, Hello):
                self._loop.inbox.put((API, message))
        self._wake.set()

    def is_closing(self) -> bool:
        return False


class SimulatedEngine(EngineClient):
    """An engine and its client."""

    def __init__(self, name: str, times: PassTimes, size: EngineSize, folder: Path, chance: random.Random) -> None:
        super().__init__(name, lambda: NO_SERVER)
        self.runner = runner = TimedRunner(times, size, chance)
        loaded = LoadedModel(runner, runner, cached_blocks=CachedBlocks(runner.slots.slots, prefix_digest))
        policy = StepPolicy(memory=runner.abilities.memory, clock=runner.clock)
        guidance = Guidance(None, VOCABULARY, "it is simulated")
        self.loop, self.scheduler = open_loop(
            loaded, guidance, folder, self._collect, policy, runner.clock, max_waiting=256, prefill_chunk=128
        )
        self._sent: list[tuple[float, list[ToApi]]] = []
        self._wake = asyncio.Event()
        self._writer = _ToLoop(self.loop, self._wake)
        self._receive(Welcome(runner.model, loaded.batching))

    def _collect(self, connection: int, messages: list[ToApi]) -> None:
        self._sent.append((self.runner.now, messages))

    async def work_forever(self) -> None:
        """Run passes whenever there is something to do."""
        while True:
            if self.scheduler.is_idle and self.loop.inbox.empty():
                self._wake.clear()
                await self._wake.wait()
            began = self.runner.now = asyncio.get_running_loop().time()
            self.loop.run_one_step()
            sent, self._sent = self._sent, []
            # What was sent before the pass arrives before it.
            for at, messages in sent:
                if at == began:
                    self._take(messages)
            await asyncio.sleep(self.runner.now - began)
            for at, messages in sent:
                if at > began:
                    self._take(messages)

    def _take(self, messages: list[ToApi]) -> None:
        for message in messages:
            self._receive(message)


@dataclass
class Result:
    """What became of all turns of a simulation."""

    name: str
    num_engines: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    # Seconds to the first token, and to the end of the answer, of each turn.
    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    # Turns by engine, and requests on the chosen engine beyond those on the least loaded one, for each turn.
    turns: list[int] = field(default_factory=list)
    beyond: list[int] = field(default_factory=list)

    @property
    def cached_share(self) -> float:
        """Of the tokens of all prompts, those that were in the cache of the chosen engine."""
        return self.cached_tokens / self.prompt_tokens


def simulate(name: str, num_engines: int, workload: Workload, times: PassTimes, size: EngineSize, seed: int) -> Result:
    """Run all conversations with one choice of engines: ONE_ENGINE, BY_LOAD, or weights such as WEIGHTS."""
    if name == ONE_ENGINE:
        times = PassTimes(*(value / num_engines for value in (times.base, times.row, times.prompt_token)))
        size = EngineSize(size.slots * num_engines, size.kv_tokens * num_engines, size.page_tokens)
    result = Result(name, num_engines, turns=[0] * (1 if name == ONE_ENGINE else num_engines))
    before = client.TOKENS_PER_REQUEST, client.MAX_MORE_REQUESTS
    if name not in (ONE_ENGINE, BY_LOAD):
        client.TOKENS_PER_REQUEST, client.MAX_MORE_REQUESTS = map(int, name.split(":"))
    try:
        with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=SimulatedTime) as runner:
            runner.run(_run(result, workload, times, size, Path(folder), seed))
    finally:
        client.TOKENS_PER_REQUEST, client.MAX_MORE_REQUESTS = before
    return result


async def _run(result: Result, workload: Workload, times: PassTimes, size: EngineSize, folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    systems = [_tokens(workload.system, chance) for _ in range(workload.num_systems)]
    router = Router([], lambda: NO_SERVER)
    for index in range(len(result.turns)):
        name = f"simulated:{index}"
        router.engines[name] = SimulatedEngine(name, times, size, folder, random.Random(f"{seed} {index}"))
    engines = [engine for engine in router.engines.values() if isinstance(engine, SimulatedEngine)]
    working = [asyncio.create_task(engine.work_forever()) for engine in engines]
    clients = [
        _client(result, router, workload, systems, random.Random(f"{seed} client {number}"))
        for number in range(workload.clients * result.num_engines)
    ]
    await asyncio.gather(*clients)
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)


async def _client(
    result: Result, router: Router, workload: Workload, systems: Sequence[list[int]], chance: random.Random
) -> None:
    time = asyncio.get_running_loop().time
    numbers = count()
    tokens = list(chance.choice(systems))
    for _ in range(workload.turns):
        await asyncio.sleep(chance.uniform(*workload.pause))
        tokens += _tokens(workload.user, chance)
        answer = chance.randint(*workload.answer)
        began, first = time(), math.nan
        engine, model = router.pick(None, prefix=() if result.name == BY_LOAD else prefix_digests(tokens, None, None))
        loads = [one.work for one in router.engines.values()]
        result.beyond.append(engine.work - min(loads))
        result.turns[list(router.engines.values()).index(engine)] += 1
        request = GenerationRequest(str(next(numbers)), list(tokens), answer, model.max_length, ignore_eos=True)
        (stream,) = await engine.in_flight.submit(request)
        async for new in stream:
            if isinstance(new, Tokens):
                first = time() if math.isnan(first) else first
                tokens += new.tokens
        result.first_token.append(first - began)
        result.whole.append(time() - began)
        result.prompt_tokens += len(request.prompt)
        result.cached_tokens += stream.finished.num_cached


def _bounds(text: str) -> tuple[int, int]:
    least, most = map(int, text.split(","))
    return least, most


def _tokens(bounds: tuple[int, int], chance: random.Random) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(chance.randint(*bounds))]


COLUMNS = (
    ("engines", lambda one, _: str(one.num_engines)),
    ("choice", lambda one, _: one.name),
    ("cached", lambda one, _: f"{one.cached_share:.1%}"),
    ("of one engine", lambda one, ideal: f"{one.cached_share / ideal.cached_share:.1%}"),
    ("s to the first token: mean", lambda one, _: f"{statistics.mean(one.first_token):.2f}"),
    ("95 %", lambda one, _: f"{statistics.quantiles(one.first_token, n=20)[-1]:.2f}"),
    ("s to the end: mean", lambda one, _: f"{statistics.mean(one.whole):.2f}"),
    ("turns of the busiest engine", lambda one, _: f"{max(one.turns) / sum(one.turns) * len(one.turns):.2f} × mean"),
    ("requests beyond the least loaded engine", lambda one, _: f"{statistics.mean(one.beyond):.2f}"),
)


def main() -> None:
    """Simulate all choices with all numbers of engines and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="2,4,8", metavar="N,N,…")
    parser.add_argument("--weights", default=WEIGHTS, metavar="N:N,…", help="of the choice with caches")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="for each engine")
    parser.add_argument("--turns", type=int, default=20, metavar="N")
    parser.add_argument("--systems", type=int, default=4, metavar="N", help="different system prompts")
    parser.add_argument("--system", default="50,1500", metavar="N,N", help="least and most tokens of these")
    parser.add_argument("--user", default="10,200", metavar="N,N", help="least and most tokens of a user's text")
    parser.add_argument("--pause", type=float, default=30.0, metavar="S", help="the most between turns")
    parser.add_argument("--kv-tokens", type=int, default=65_536, metavar="N", help="memory of each engine")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    workload = Workload(
        given.clients,
        given.turns,
        given.systems,
        system=_bounds(given.system),
        user=_bounds(given.user),
        pause=(0.0, given.pause),
    )
    size = EngineSize(kv_tokens=given.kv_tokens)
    rows = [[name for name, _ in COLUMNS]]
    for num_engines in map(int, given.engines.split(",")):
        ideal = simulate(ONE_ENGINE, num_engines, workload, PassTimes(), size, given.seed)
        names = [BY_LOAD, *given.weights.split(",")]
        others = [simulate(name, num_engines, workload, PassTimes(), size, given.seed) for name in names]
        rows += [[show(one, ideal) for _, show in COLUMNS] for one in (ideal, *others)]
    print(table(rows, markdown=True))


if __name__ == "__main__":
    main()
