"""Slots over blocks of a pool, whatever happens: each sequence has its tokens, no block is lost or shared, and a pass
that has memory gets its blocks.
"""

import random
from dataclasses import replace

import pytest

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.kv_cache.layout import Row
from genai_server.engine.kv_cache.paged_buffers import PagedBuffers
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvMemory
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from tests.engine.paged_operator import BLOCK, ON_CPU
from tests.running_server import DEMO

# Tokens of the vocabulary: few, so that prompts begin alike.
TOKENS = 3


class TokenRows:
    """The blocks of slots, and the tokens whose keys and values would be there, so that wrong copies are noticed."""

    def __init__(self, blocks: PagedBuffers, num_slots: int) -> None:
        self._blocks = blocks
        self.rows: list[list[int]] = [[] for _ in range(num_slots)]

    def copy(self, source: int, target: int, length: int) -> None:
        self._blocks.copy(source, target, length)
        self.rows[target][:length] = self.rows[source][:length]

    def give_back(self, slot: int, first: int) -> None:
        self._blocks.give_back(slot, first)
        del self.rows[slot][first:]


class Batch:
    """Sequences that come, read, preempt, and go by chance; `longest` is the most tokens of one."""

    def __init__(self, chance: random.Random, graph: DecoderGraph, longest: int) -> None:
        self._chance, self._longest = chance, longest
        num_slots, shared = chance.choice([1, 2, 3, 5]), longest // BLOCK
        self._memory = KvMemory(UNSHARED.page_tokens, 0)
        if shared:
            self._memory = KvMemory(BLOCK, chance.randint(shared, num_slots * shared + 2), page_bytes=1)
        self._blocks = PagedBuffers(ON_CPU, num_slots + self._memory.num_pages, graph, num_slots, longest)
        self._buffers = TokenRows(self._blocks, num_slots)
        self._num_blocks = len(self._blocks._free)
        self._slots = KvSlots(num_slots, self._buffers, min_copied=chance.choice([1, BLOCK]), memory=self._memory)
        self._prompts = [self._some(longest) for _ in range(4)]
        # The tokens of each sequence, read or not.
        self._running: dict[int, list[int]] = {}
        self._preempted: dict[int, list[int]] = {}
        self._num_sequences = self.num_reused = 0

    def act(self) -> None:
        """One action. Then every block is either free or in one slot, and each slot has those of its tokens."""
        actions = [self._open, self._resume, self._pass, self._pass, self._interrupted, self._preempt, self._close]
        self._chance.choice([*actions, self._match, self._slots.forget, self._slots.fit])()
        blocks = self._blocks._blocks
        assert sorted([*self._blocks._free, *sum(blocks, [])]) == list(range(self._num_blocks))
        assert self._slots.num_running == len(self._running)
        for slot in self._slots.slots:
            assert len(blocks[slot.index]) * BLOCK >= len(slot.tokens)
            assert self._buffers.rows[slot.index][: len(slot.tokens)] == slot.tokens
        for number, tokens in self._running.items():
            read = self._slots.of(number).tokens
            assert read == tokens[: len(read)]

    def _some(self, most: int) -> list[int]:
        return [self._chance.randrange(TOKENS) for _ in range(self._chance.randint(2, most))]

    def _fits(self, *more: list[int]) -> bool:
        """As the scheduler reckons: each sequence has all of its tokens and a draft."""
        sequences = [*self._running.values(), *more]
        needed = sum(self._memory.pages(min(self._longest, len(tokens) + MAX_DRAFTED)) for tokens in sequences)
        return needed <= self._memory.num_pages and len(sequences) <= len(self._slots.slots)

    def _open(self) -> None:
        prompt = self._chance.choice(self._prompts)
        prompt = [*prompt[: self._chance.randint(1, len(prompt))], *self._some(4)][: self._longest]
        if self._fits(prompt):
            self.num_reused += self._slots.acquire(self._num_sequences, prompt)
            self._running[self._num_sequences] = prompt
            self._num_sequences += 1

    def _resume(self) -> None:
        if not self._preempted or not self._fits(self._preempted[number := self._chance.choice([*self._preempted])]):
            return
        self._running[number] = tokens = self._preempted.pop(number)
        if self._slots.resume(number) is None:
            self._slots.acquire(number, tokens)

    def _reserve(self) -> dict[int, tuple[list[int], int]]:
        """Reserve memory for a pass over some sequences, and take its blocks: the tokens and the length of a draft."""
        while not self._fits() and len(self._running) > 1:
            self._preempt(max(self._running))
        reads = {}
        for number in self._chance.sample([*self._running], self._chance.randint(0, len(self._running))):
            tokens, num_read = self._running[number], len(self._slots.of(number).tokens)
            new, num_drafted = tokens[num_read:][: self._chance.choice([1, 5, 20, 64])], 0
            if not new and len(tokens) < self._longest:
                new = [self._chance.randrange(TOKENS)]
                num_drafted = min(self._chance.randrange(MAX_DRAFTED), self._longest - len(tokens) - 1)
            if new:
                self._slots.reserve(number, len(new) + num_drafted)
                reads[number] = new, num_drafted
        rows = [
            Row((slot := self._slots.of(number)).index, len(slot.tokens), [*new, *[0] * num_drafted])
            for number, (new, num_drafted) in reads.items()
        ]
        if rows:
            (table,) = self._blocks.inputs(rows).values()
            lengths = [-(-(row.num_cached + len(row.tokens)) // BLOCK) for row in rows]
            used = [block for line, length in zip(table, lengths, strict=True) for block in line[:length]]
            assert len(set(used)) == len(used)
        return reads

    def _interrupted(self) -> None:
        self._reserve()

    def _pass(self) -> None:
        for number, (new, num_drafted) in self._reserve().items():
            slot = self._slots.of(number)
            self._buffers.rows[slot.index][len(slot.tokens) :] = [*new, *[0] * num_drafted]
            self._slots.append(number, new)
            if num_drafted:
                self._slots.append(number, [0] * self._chance.randint(0, num_drafted))
            read = self._slots.of(number).tokens
            if len(read) > len(self._running[number]):
                self._running[number] = read[:]

    def _preempt(self, number: int | None = None) -> None:
        if self._running:
            number = self._chance.choice([*self._running]) if number is None else number
            self._preempted[number] = self._running.pop(number)
            self._slots.release(number)

    def _close(self) -> None:
        if self._running:
            number = self._chance.choice([*self._running])
            del self._running[number]
            self._slots.release(number)

    def _match(self) -> None:
        if self._running:
            number = self._chance.choice([*self._running])
            self._slots.match_again(number, self._running[number])


@pytest.mark.parametrize("longest", [10, 16, 40, 47, 48, 49, 128])
def test_no_block_is_lost_or_shared(longest: int) -> None:
    graph = replace(read_decoder_graph(DEMO), block_tokens=BLOCK)
    num_reused = 0
    for seed in range(6):
        batch = Batch(random.Random(100 * longest + seed), graph, longest)
        for _ in range(300):
            batch.act()
        num_reused += batch.num_reused
    assert num_reused
