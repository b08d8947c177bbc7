"""KV cache slots: which sequence has which row of the key-value buffers, and which prefixes idle rows keep.

A slot is one row of every layer's buffer. One forward pass covers a contiguous range of slots, so slots are kept in
this order: decoding sequences, sequences whose prompt is still being read, idle slots. Idle slots keep the tokens of
finished sequences as cached prefixes. This module only does the bookkeeping; the buffers move the data.

Where memory is limited, a row takes pages as tokens are added. It keeps them until another row needs memory. Given back
are then, in this order: pages behind a row's cached tokens, cached prefixes that another row begins with, and cached
prefixes by their last use.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from genai_server.engine.kv_memory import UNSHARED, KvMemory

# An idle slot with at most this many tokens beyond the common prefix is taken over. Reading these tokens again is
# cheaper than copying the prefix.
_LITTLE = 16


class Buffers(Protocol):
    """What the slots need of the key-value buffers."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` tokens of one slot into another."""
        ...

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the keys and values of the first `length` tokens of two slots."""
        ...

    def give_back(self, slot: int, first: int) -> None:
        """Give a slot's memory from token `first` on back to the system. `first` begins a page."""
        ...


@dataclass
class Slot:
    """One row of the key-value buffers."""

    # The row in the buffers.
    index: int
    # The tokens whose keys and values lie in the slot.
    tokens: list[int] = field(default_factory=list)
    # How many of the first tokens came from prefill.
    num_prefilled: int = 0
    # Only prompts of the same salt may reuse the tokens.
    salt: str | None = None
    # The running sequence that has the slot; None for an idle slot.
    sequence: int | None = None
    # Tokens behind these that the next pass may write.
    num_coming: int = 0
    # Orders slots by the last release or reuse of their tokens; 0 for a slot that was never used or was emptied.
    used: int = 0


class KvSlots:
    """The slots over one set of buffers."""

    def __init__(self, num_slots: int, buffers: Buffers, *, row_group: int = 1, memory: KvMemory = UNSHARED) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        # Kernels process rows in groups of this size. Rows left over at a pass's end are not bitwise equal.
        self.row_group = row_group
        self.num_running = 0
        self.num_decoding = 0
        self._buffers = buffers
        self._running: dict[int, Slot] = {}
        self._num_uses = 0
        self._memory = memory
        self._pages = [0] * num_slots  # the shared pages that each row has

    def has(self, sequence: int) -> bool:
        """Whether a running sequence has this id."""
        return sequence in self._running

    def index(self, sequence: int) -> int:
        """The slot of a running sequence."""
        return self._running[sequence].index

    def acquire(
        self,
        sequence: int,
        prompt: list[int],
        *,
        reuse: bool = True,
        exact: bool = False,
        salt: str | None = None,
    ) -> int:
        """Give a sequence a slot; returns how many tokens of its prompt lie in it already.

        A cached prefix is reused only if its sequence had the same `salt`, or if both have none.

        At least two tokens are always left to read. A single token runs another kernel, which is not bitwise equal, so
        asking twice would give two answers.

        With `exact`, only keys and values from prefill are reused; those from decoding are not bitwise equal. They are
        reused in whole groups, so that the rest of the prompt is grouped as if all of it were read.

        An idle slot with few tokens beyond the common prefix is taken over. If no slot is empty, so is one of which the
        common prefix is at least half, and if memory is short, any. Otherwise the prefix is copied to an empty slot, or
        to the first one to be evicted, and stays cached in both.
        """
        source, length = self._longest_past(prompt, salt, exact=exact) if reuse else (None, 0)
        target = self.num_running
        idle = [slot for slot in self.slots[target:] if not slot.tokens] or self._cached()
        taken = next((slot for slot in idle if slot is not source), idle[0])
        if source is not None:
            beyond = len(source.tokens) - length
            is_little = beyond <= _LITTLE or (taken.tokens and beyond <= length)
            if source.sequence is None and (is_little or not self._may_copy(source, length)):
                taken = source
        taken.tokens = taken.tokens[:length] if taken is source else []
        taken.num_prefilled = min(taken.num_prefilled, len(taken.tokens))
        taken.sequence, taken.salt = sequence, salt
        self._running[sequence] = taken
        self.num_running += 1
        self._exchange(taken.index, target)
        if source is not None and taken is not source:
            self._copy(source, taken, length)
        return length

    def match_again(self, sequence: int, prompt: list[int], *, exact: bool = False) -> int:
        """Copy a longer prefix of the prompt, if another slot has one by now; returns how many tokens lie in the slot.

        Must be called before any token of the prompt beyond the prefix from `acquire` is read.
        """
        slot = self._running[sequence]
        source, length = self._longest_past(prompt, slot.salt, exact=exact)
        if source is None or source is slot or length <= len(slot.tokens) or not self._may_copy(source, length):
            return len(slot.tokens)
        self._copy(source, slot, length)
        return length

    def reserve(self, sequence: int, num_tokens: int) -> None:
        """Take memory for tokens that the next pass adds to a sequence. For a single one there always is."""
        slot = self._running[sequence]
        slot.num_coming = num_tokens
        self._take_pages(slot)

    def append(self, sequence: int, tokens: list[int], *, prefilled: bool) -> None:
        """Record that the keys and values of these tokens were added to the sequence's slot.

        Tokens beyond the last whole group of a prompt pass do not count as prefilled.
        """
        slot = self._running[sequence]
        if prefilled and slot.num_prefilled == len(slot.tokens):
            slot.num_prefilled += self._whole_groups(len(tokens))
        slot.tokens += tokens
        slot.num_coming = 0
        self._take_pages(slot)

    def start_decoding(self, sequence: int) -> None:
        """Move a sequence whose prompt has been read to the decoding ones."""
        self._exchange(self.index(sequence), self.num_decoding)
        self.num_decoding += 1

    def release(self, sequence: int) -> None:
        """Make an ended sequence's slot idle; its tokens stay cached until the slot is needed.

        Slots of running sequences move up, so that they stay contiguous.
        """
        slot = self._running.pop(sequence)
        index = slot.index
        slot.sequence, slot.num_coming = None, 0
        self._use(slot)
        if index < self.num_decoding:
            self.num_decoding -= 1
            self._exchange(index, self.num_decoding)
            index = self.num_decoding
        self.num_running -= 1
        self._exchange(index, self.num_running)

    def forget(self) -> int:
        """Empty the idle slots; returns how many had tokens."""
        idle = [slot for slot in self.slots[self.num_running :] if slot.tokens]
        for slot in idle:
            _empty(slot)
        return len(idle)

    def _cached(self) -> list[Slot]:
        """The idle slots with cached prefixes, in the order of eviction."""
        # In alphabetical order, tokens which others begin with come right before one of these.
        kept = sorted((slot for slot in self.slots if slot.tokens), key=lambda s: (s.salt or "", s.tokens))
        repeated = {one.index for one, other in pairwise(kept) if _begins_with(other, one)}
        idle = [slot for slot in kept if slot.sequence is None]
        return sorted(idle, key=lambda slot: (slot.index not in repeated, slot.used))

    def _use(self, slot: Slot) -> None:
        self._num_uses += 1
        slot.used = self._num_uses

    def _copy(self, source: Slot, target: Slot, length: int) -> None:
        """Copy the first tokens of one slot into another."""
        self._use(source)
        target.tokens, target.num_prefilled = source.tokens[:length], min(source.num_prefilled, length)
        self._take_pages(target, keep=source)
        self._buffers.copy(source.index, target.index, length)

    def _may_copy(self, source: Slot, length: int) -> bool:
        """Whether a copy fits beside its source and the running sequences' tokens."""
        kept = {slot.index: slot for slot in (*self._running.values(), source)}
        needed = sum(self._memory.pages(len(slot.tokens) + slot.num_coming) for slot in kept.values())
        return needed + self._memory.pages(length) <= self._memory.num_pages

    def _take_pages(self, slot: Slot, *, keep: Slot | None = None) -> None:
        """Count the pages that a slot's tokens need. If there are too many, others go, but none of `keep`."""
        needed = self._memory.pages(len(slot.tokens) + slot.num_coming)
        if needed <= self._pages[slot.index]:
            return
        self._pages[slot.index] = needed
        for other in self.slots:
            if self._has_room:
                return
            self._trim(other)
        for other in self._cached():
            if self._has_room:
                return
            if other is not keep:
                _empty(other)
                self._trim(other)

    @property
    def _has_room(self) -> bool:
        return sum(self._pages) <= self._memory.num_pages

    def _trim(self, slot: Slot) -> None:
        """Give back the pages behind a slot's tokens."""
        needed = self._memory.pages(len(slot.tokens) + slot.num_coming)
        if needed < self._pages[slot.index]:
            self._pages[slot.index] = needed
            self._buffers.give_back(slot.index, (needed + 1) * self._memory.page_tokens)

    def _longest_past(self, prompt: list[int], salt: str | None, *, exact: bool) -> tuple[Slot | None, int]:
        """The slot of this salt with the longest common prefix, and how many of its tokens may be reused.

        Idle slots win ties, because they can be taken over.
        """
        most = len(prompt) - 2
        best: tuple[Slot | None, int] = (None, 0)
        for slot in self.slots[self.num_running :] + self.slots[: self.num_running]:
            if slot.salt != salt:
                continue
            usable = slot.tokens[: slot.num_prefilled] if exact else slot.tokens
            length = min(most, _common_length(prompt, usable))
            if exact:
                length = self._whole_groups(length)
            if length > best[1]:
                best = (slot, length)
        return best

    def _whole_groups(self, num_tokens: int) -> int:
        return num_tokens // self.row_group * self.row_group

    def _exchange(self, one: int, other: int) -> None:
        if one == other:
            return
        first, second = self.slots[one], self.slots[other]
        if not second.tokens:
            self._buffers.copy(one, other, len(first.tokens))
        elif not first.tokens:
            self._buffers.copy(other, one, len(second.tokens))
        else:
            self._buffers.swap(one, other, max(len(first.tokens), len(second.tokens)))
        self.slots[one], self.slots[other] = second, first
        second.index, first.index = one, other
        self._take_pages(first)
        self._take_pages(second)


def _empty(slot: Slot) -> None:
    slot.tokens, slot.num_prefilled, slot.used = [], 0, 0


def _begins_with(slot: Slot, other: Slot) -> bool:
    """Whether a slot can serve every prompt that the other can."""
    same = slot.salt == other.salt and slot.num_prefilled >= other.num_prefilled
    return same and slot.tokens[: len(other.tokens)] == other.tokens


def _common_length(one: list[int], other: list[int]) -> int:
    """How many tokens two sequences begin with in common."""
    same, different = 0, min(len(one), len(other)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if one[same:middle] == other[same:middle]:  # much faster than a Python loop
            same = middle
        else:
            different = middle
    return same
