"""Simulates routers in front of many replicas: the prefix-cache hits of each policy, and its cost.

usage: .venv/bin/python scripts/simulate_routing.py [--replicas 10,100,1000] [--requests 200]

No model and no server runs. Conversations arrive, and each continues after a while; their system prompts are drawn by
Zipf's law, so that few are frequent. A replica's prefix cache is a least-recently-used set of blocks of 16 tokens. The
load of each replica is the same at every number of replicas. Everything is drawn from --seed.
"""

import argparse
import heapq
import random
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from _models.table import table

BLOCK_TOKENS = 16
# Of a replica's cache.
NUM_BLOCKS = 4096
# Between two scrapes of a replica's metrics.
SCRAPE_SECONDS = 1.0
# Bytes of a replica's /metrics after some requests, uncompressed, and of an event's share for one block: its hash and
# tokens, or its hash alone.
METRICS_BYTES = 40_000
STORED_BYTES = 9 + 3 * BLOCK_TOKENS
REMOVED_BYTES = 9


@dataclass(frozen=True)
class Workload:
    """Parameters of the conversations. Lengths are in blocks, times in seconds."""

    # Different system prompts for each replica that there is, the exponent of their frequency, and their length.
    prompts_per_replica: float = 2.0
    exponent: float = 1.1
    system_blocks: tuple[int, int] = (16, 96)
    # Lengths that each turn adds: the user's text and the answer.
    turn_blocks: tuple[int, int] = (4, 24)
    # The probability that a conversation continues after a turn, and how long its user thinks.
    goes_on: float = 0.8
    thinks: tuple[float, float] = (5.0, 60.0)
    # Requests of a replica each second, and how long one runs.
    rate: float = 1.0
    runs: tuple[float, float] = (1.0, 5.0)


@dataclass(frozen=True)
class Request:
    """One turn of a conversation."""

    at: float
    conversation: int
    # Blocks of the prompt, from its beginning; equal blocks of equal prefixes are equal.
    blocks: Sequence[int]
    # Blocks of the answer, which is cached after the prompt.
    answer: Sequence[int]
    seconds: float


def trace(workload: Workload, num_replicas: int, num_requests: int, chance: random.Random) -> list[Request]:
    """The requests in the order in which they come."""
    num_prompts = max(1, round(workload.prompts_per_replica * num_replicas))
    weights = list(accumulate(1 / rank**workload.exponent for rank in range(1, num_prompts + 1)))
    next_block = 0

    def new_blocks(bounds: tuple[int, int]) -> list[int]:
        nonlocal next_block
        first, next_block = next_block, next_block + chance.randint(*bounds)
        return list(range(first, next_block))

    systems = [new_blocks(workload.system_blocks) for _ in range(num_prompts)]
    # Conversations that continue: when, which, and all their blocks.
    waiting: list[tuple[float, int, list[int]]] = []
    found: list[Request] = []
    now, num_conversations = 0.0, 0
    turns = 1 / (1 - workload.goes_on)
    while len(found) < num_requests:
        now += chance.expovariate(workload.rate * num_replicas / turns)
        (system,) = chance.choices(systems, cum_weights=weights)
        heapq.heappush(waiting, (now, num_conversations, list(system)))
        num_conversations += 1
        while waiting and waiting[0][0] <= now and len(found) < num_requests:
            at, conversation, blocks = heapq.heappop(waiting)
            prompt = blocks + new_blocks(workload.turn_blocks)
            answer = new_blocks(workload.turn_blocks)
            seconds = chance.uniform(*workload.runs)
            found.append(Request(at, conversation, prompt, answer, seconds))
            if chance.random() < workload.goes_on:
                later = at + seconds + chance.uniform(*workload.thinks)
                heapq.heappush(waiting, (later, conversation, prompt + answer))
    return sorted(found, key=lambda request: request.at)


class Replica:
    """A prefix cache, and the requests that run."""

    def __init__(self) -> None:
        self.running = 0
        self.num_stored = 0
        self.num_removed = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def serve(self, request: Request) -> tuple[int, list[int], list[int]]:
        """Returns how many of the prompt's first blocks were cached, and the blocks that were stored and removed."""
        hits = 0
        for block in request.blocks:
            if block not in self._blocks:
                break
            hits += 1
        stored = [block for block in (*request.blocks[hits:], *request.answer) if block not in self._blocks]
        # The end of a prefix is of no use without its beginning, and goes first.
        for block in reversed((*request.blocks, *request.answer)):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        removed = [self._blocks.popitem(last=False)[0] for _ in range(max(0, len(self._blocks) - NUM_BLOCKS))]
        self.num_stored += len(stored)
        self.num_removed += len(removed)
        return hits, stored, removed


class Router:
    """Chooses replicas; `work` counts hashes of blocks, and looks into tables or at replicas."""

    def __init__(self, replicas: Sequence[Replica], chance: random.Random) -> None:
        self.replicas = replicas
        self.chance = chance
        self.work = 0

    def choose(self, request: Request) -> int:
        """The index of the replica for a request."""
        raise NotImplementedError

    def learn(self, index: int, stored: Sequence[int], removed: Sequence[int]) -> None:
        """A replica's cache has changed; only a router that receives its events needs that."""


class RandomRouter(Router):
    """Chooses at random, without any knowledge."""

    def choose(self, request: Request) -> int:
        self.work += 1
        return self.chance.randrange(len(self.replicas))


class LeastLoadedRouter(Router):
    """Chooses the less loaded of two random replicas."""

    def choose(self, request: Request) -> int:
        self.work += 2
        pair = (self.chance.randrange(len(self.replicas)), self.chance.randrange(len(self.replicas)))
        return min(pair, key=lambda index: self.replicas[index].running)


class SessionRouter(Router):
    """Sends a conversation where it was before, by a hash of its id."""

    def choose(self, request: Request) -> int:
        self.work += 1
        return random.Random(request.conversation).randrange(len(self.replicas))


class PrefixRouter(Router):
    """Knows each replica's blocks from its events, and weighs a prompt's missing blocks against running requests.

    Replicas with the longest prefix are compared, and two others. One running request is worth `worth` missing blocks.
    """

    # Frequent system prompts are everywhere, so that not all holders of a prefix can be compared.
    max_compared = 8
    worth = 16

    def __init__(self, replicas: Sequence[Replica], chance: random.Random) -> None:
        super().__init__(replicas, chance)
        self._holders: dict[int, dict[int, None]] = {}

    def choose(self, request: Request) -> int:
        self.work += len(request.blocks)  # each block is hashed
        compared = {self.chance.randrange(len(self.replicas)) for _ in range(2)}
        for block in reversed(request.blocks):
            self.work += 1
            if holders := self._holders.get(block):
                some = list(holders)
                compared.update(some if len(some) <= self.max_compared else self.chance.sample(some, self.max_compared))
                break
        return min(sorted(compared), key=lambda index: self._cost(index, request))

    def _cost(self, index: int, request: Request) -> float:
        found = 0
        for block in request.blocks:
            self.work += 1
            if index not in self._holders.get(block, ()):
                break
            found += 1
        return self.worth * self.replicas[index].running + len(request.blocks) - found

    def learn(self, index: int, stored: Sequence[int], removed: Sequence[int]) -> None:
        for block in stored:
            self._holders.setdefault(block, {})[index] = None
        for block in removed:
            holders = self._holders[block]
            del holders[index]
            if not holders:
                del self._holders[block]

    @property
    def num_entries(self) -> int:
        """Blocks in the index, each once for each of its holders."""
        return sum(map(len, self._holders.values()))


POLICIES: dict[str, type[Router]] = {
    "random": RandomRouter,
    "two choices": LeastLoadedRouter,
    "session": SessionRouter,
    "prefix": PrefixRouter,
}


HEAD = [
    *("replicas", "policy", "tokens found in the cache", "other requests, mean and p99"),
    *("router's operations a request", "metrics, MB/s", "events, MB/s", "blocks in the index"),
]


def simulate(policy: str, requests: Sequence[Request], num_replicas: int, seed: int) -> list[str]:
    """The row of the table for one policy, by which a trace is run. “Other requests” are those that run on the chosen
    replica, “operations” are the router's hashes and look-ups, and bytes are what the router receives.
    """
    replicas = [Replica() for _ in range(num_replicas)]
    router = POLICIES[policy](replicas, random.Random(seed))
    ends: list[tuple[float, int]] = []
    hits = asked = 0
    spent = 0.0
    crowds: list[int] = []
    running: list[float] = []
    half = len(requests) // 2
    for number, request in enumerate(requests):
        while ends and ends[0][0] <= request.at:
            replicas[heapq.heappop(ends)[1]].running -= 1
        began = time.perf_counter()
        index = router.choose(request)
        spent += time.perf_counter() - began
        found, stored, removed = replicas[index].serve(request)
        router.learn(index, stored, removed)
        replicas[index].running += 1
        heapq.heappush(ends, (request.at + request.seconds, index))
        if number >= half:  # caches are full
            hits, asked = hits + found, asked + len(request.blocks)
            crowds.append(replicas[index].running)
            running.append(len(ends) / num_replicas)
    print(f"{num_replicas} replicas, {policy}: {spent / len(requests) * 1e6:.1f} µs a request", file=sys.stderr)
    metrics = 0.0 if policy in ("random", "session") else METRICS_BYTES * num_replicas / SCRAPE_SECONDS
    events, entries = 0.0, 0
    if isinstance(router, PrefixRouter):
        num_bytes = sum(one.num_stored * STORED_BYTES + one.num_removed * REMOVED_BYTES for one in replicas)
        events, entries = num_bytes / (requests[-1].at - requests[0].at), router.num_entries
    return [
        *(f"{num_replicas:,}", policy, f"{hits / asked:.1%}"),
        f"{statistics.mean(running):.1f}, {statistics.quantiles(crowds, n=100)[-1]:.0f}",
        *(f"{router.work / len(requests):,.0f}", f"{metrics / 1e6:.2f}", f"{events / 1e6:.2f}", f"{entries:,}"),
    ]


def main() -> None:
    """Simulate all policies at all numbers of replicas and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", default="10,100,1000", metavar="N,N,…")
    parser.add_argument("--requests", type=int, default=200, metavar="N", help="for each replica")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows = [HEAD]
    for num_replicas in map(int, arguments.replicas.split(",")):
        chance = random.Random(arguments.seed)
        requests = trace(Workload(), num_replicas, arguments.requests * num_replicas, chance)
        rows += [simulate(policy, requests, num_replicas, arguments.seed) for policy in POLICIES]
    print(table(rows, markdown=True))


if __name__ == "__main__":
    main()
