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
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from _models.arguments import numbers
from _models.table import table

BLOCK_TOKENS = 16
# Of a replica's cache.
NUM_BLOCKS = 4096
# Bytes of an event's share for one block: its hash and tokens, or its hash alone.
STORED_BYTES, REMOVED_BYTES = 9 + 3 * BLOCK_TOKENS, 9
# Of the conversations: different system prompts for each replica, and the exponent of their frequency; lengths in
# blocks of system prompts, and of what a turn adds by the user and by the answer.
PROMPTS_PER_REPLICA, EXPONENT = 2.0, 1.1
SYSTEM_BLOCKS, TURN_BLOCKS = (16, 96), (4, 24)
# The probability that a conversation continues after a turn, and for how many seconds its user thinks.
CONTINUES, THINKS = 0.8, (5.0, 60.0)
# Requests of a replica each second, and for how many seconds one runs.
RATE, RUNS = 1.0, (1.0, 5.0)
# The policy by prefix compares some of the replicas with the longest prefix, because frequent system prompts are
# everywhere. One running request is worth this number of missing blocks.
MAX_COMPARED, WORTH = 8, 16
HEAD = [
    *("replicas", "policy", "tokens found in the cache", "other requests, mean and p99"),
    *("router's operations a request", "events, MB/s", "blocks in the index"),
]


@dataclass(frozen=True)
class Request:
    """One turn of a conversation.

    `blocks` are those of the prompt, from its beginning; equal blocks of equal prefixes are equal. The answer's blocks
    are cached after them.
    """

    at: float
    conversation: int
    blocks: Sequence[int]
    answer: Sequence[int]
    seconds: float


def trace(num_replicas: int, num_requests: int, chance: random.Random) -> list[Request]:
    """The requests in the order in which they come."""
    num_prompts = max(1, round(PROMPTS_PER_REPLICA * num_replicas))
    weights = list(accumulate(1 / rank**EXPONENT for rank in range(1, num_prompts + 1)))
    next_block = 0

    def new_blocks(bounds: tuple[int, int]) -> list[int]:
        nonlocal next_block
        first, next_block = next_block, next_block + chance.randint(*bounds)
        return list(range(first, next_block))

    systems = [new_blocks(SYSTEM_BLOCKS) for _ in range(num_prompts)]
    # Conversations that continue: when, which, and all their blocks.
    waiting: list[tuple[float, int, list[int]]] = []
    found: list[Request] = []
    now, num_conversations = 0.0, 0
    while len(found) < num_requests:
        now += chance.expovariate(RATE * num_replicas * (1 - CONTINUES))
        (system,) = chance.choices(systems, cum_weights=weights)
        heapq.heappush(waiting, (now, num_conversations, list(system)))
        num_conversations += 1
        while waiting and waiting[0][0] <= now and len(found) < num_requests:
            at, conversation, blocks = heapq.heappop(waiting)
            prompt = blocks + new_blocks(TURN_BLOCKS)
            answer = new_blocks(TURN_BLOCKS)
            seconds = chance.uniform(*RUNS)
            found.append(Request(at, conversation, prompt, answer, seconds))
            if chance.random() < CONTINUES:
                later = at + seconds + chance.uniform(*THINKS)
                heapq.heappush(waiting, (later, conversation, prompt + answer))
    return sorted(found, key=lambda request: request.at)


class Replica:
    """A prefix cache, and the requests that run."""

    def __init__(self) -> None:
        self.running = 0
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
        return hits, stored, removed


class Router:
    """Chooses replicas. `work` counts hashes of blocks, and looks into tables or at replicas.

    `holders` are the replicas that have a block, by the block: what a router learns from the replicas' events, which
    only the policy by prefix needs.
    """

    def __init__(self, replicas: Sequence[Replica], chance: random.Random) -> None:
        self.replicas, self.chance, self.work = replicas, chance, 0
        self.holders: dict[int, dict[int, None]] = {}
        self.event_bytes = 0

    def any_replica(self) -> int:
        """The index of a random replica."""
        self.work += 1
        return self.chance.randrange(len(self.replicas))

    def less_loaded(self) -> int:
        """The less loaded of two random replicas."""
        pair = (self.any_replica(), self.any_replica())
        return min(pair, key=lambda index: self.replicas[index].running)

    def of_session(self, request: Request) -> int:
        """The replica where a conversation was before, by a hash of its id."""
        self.work += 1
        return random.Random(request.conversation).randrange(len(self.replicas))

    def with_prefix(self, request: Request) -> int:
        """The replica with the least missing blocks and running requests, of some with the longest prefix and two
        others.
        """
        self.work += len(request.blocks)  # each block is hashed
        compared = {self.chance.randrange(len(self.replicas)) for _ in range(2)}
        for block in reversed(request.blocks):
            self.work += 1
            if holders := self.holders.get(block):
                some = list(holders)
                compared.update(some if len(some) <= MAX_COMPARED else self.chance.sample(some, MAX_COMPARED))
                break
        return min(sorted(compared), key=lambda index: self._cost(index, request))

    def _cost(self, index: int, request: Request) -> float:
        found = 0
        for block in request.blocks:
            self.work += 1
            if index not in self.holders.get(block, ()):
                break
            found += 1
        return WORTH * self.replicas[index].running + len(request.blocks) - found

    def learn(self, index: int, stored: Sequence[int], removed: Sequence[int]) -> None:
        """A replica's cache has changed, as its events say."""
        self.event_bytes += len(stored) * STORED_BYTES + len(removed) * REMOVED_BYTES
        for block in stored:
            self.holders.setdefault(block, {})[index] = None
        for block in removed:
            del self.holders[block][index]
            if not self.holders[block]:
                del self.holders[block]


# How a router chooses. Only one policy follows the replicas' events.
PREFIX = "prefix"
POLICIES: dict[str, Callable[[Router, Request], int]] = {
    "random": lambda router, _: router.any_replica(),
    "two choices": lambda router, _: router.less_loaded(),
    "session": Router.of_session,
    PREFIX: Router.with_prefix,
}


def simulate(policy: str, requests: Sequence[Request], num_replicas: int, seed: int) -> list[str]:
    """The row of the table for one policy, by which a trace is run. “Other requests” are those that run on the chosen
    replica, “operations” are the router's hashes and look-ups, and bytes are what the router receives.
    """
    replicas = [Replica() for _ in range(num_replicas)]
    router = Router(replicas, random.Random(seed))
    ends: list[tuple[float, int]] = []
    hits = asked = 0
    crowds: list[int] = []
    running: list[float] = []
    for number, request in enumerate(requests):
        while ends and ends[0][0] <= request.at:
            replicas[heapq.heappop(ends)[1]].running -= 1
        index = POLICIES[policy](router, request)
        found, stored, removed = replicas[index].serve(request)
        if policy == PREFIX:
            router.learn(index, stored, removed)
        replicas[index].running += 1
        heapq.heappush(ends, (request.at + request.seconds, index))
        if number >= len(requests) // 2:  # caches are full
            hits, asked = hits + found, asked + len(request.blocks)
            crowds.append(replicas[index].running)
            running.append(len(ends) / num_replicas)
    events = router.event_bytes / (requests[-1].at - requests[0].at)
    return [
        *(f"{num_replicas:,}", policy, f"{hits / asked:.1%}"),
        f"{statistics.mean(running):.1f}, {statistics.quantiles(crowds, n=100)[-1]:.0f}",
        *(f"{router.work / len(requests):,.0f}", f"{events / 1e6:.2f}"),
        f"{sum(map(len, router.holders.values())):,}",
    ]


def main() -> None:
    """Simulate all policies at all numbers of replicas and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=numbers, default=(10, 100, 1000), metavar="N,N,…")
    parser.add_argument("--requests", type=int, default=200, metavar="N", help="for each replica")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows = [HEAD]
    for num_replicas in arguments.replicas:
        requests = trace(num_replicas, arguments.requests * num_replicas, random.Random(arguments.seed))
        rows += [simulate(policy, requests, num_replicas, arguments.seed) for policy in POLICIES]
    print(table(rows, markdown=True))


if __name__ == "__main__":
    main()
