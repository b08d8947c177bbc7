"""KV cache slots: which sequence has which row of the key-value buffers, and which prefixes idle rows keep.

A slot is one row of every layer's buffer. One forward pass covers a contiguous range of slots, so slots are kept in
this order: decoding sequences, sequences whose prompt is still being read, idle slots. Idle slots keep the tokens of
finished sequences as cached prefixes. This module only does the bookkeeping; the buffers move the data.
"""

from dataclasses import dataclass, field
from typing import Protocol

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
    # Orders idle slots by their time of release; 0 for a slot that was never released or was emptied.
    released: int = 0


class KvSlots:
    """The slots over one set of buffers."""

    def __init__(self, num_slots: int, buffers: Buffers, *, row_group: int = 1) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        # Kernels process rows in groups of this size. Rows left over at a pass's end are not bitwise equal.
        self.row_group = row_group
        self.num_running = 0
        self.num_decoding = 0
        self._buffers = buffers
        self._running: dict[int, Slot] = {}
        self._num_released = 0

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
        common prefix is at least half. Otherwise the prefix is copied to an empty slot, or to the one released longest
        ago, and stays cached in both.
        """
        source, length = self._longest_past(prompt, salt, exact=exact) if reuse else (None, 0)
        target = self.num_running
        idle = sorted(self.slots[target:], key=lambda slot: (bool(slot.tokens), slot.released))
        taken = next((slot for slot in idle if slot is not source), idle[0])
        if source is not None and source.sequence is None:
            beyond = len(source.tokens) - length
            if beyond <= _LITTLE or (taken.tokens and beyond <= length):
                taken = source
        if taken is not source:
            taken.tokens = []
        self._exchange(taken.index, target)
        if source is not None and taken is not source:
            self._buffers.copy(source.index, target, length)
            taken.tokens, taken.num_prefilled = source.tokens[:length], source.num_prefilled
        taken.tokens = taken.tokens[:length]
        taken.num_prefilled = min(taken.num_prefilled, length)
        taken.sequence, taken.salt = sequence, salt
        self._running[sequence] = taken
        self.num_running += 1
        return length

    def match_again(self, sequence: int, prompt: list[int], *, exact: bool = False) -> int:
        """Copy a longer prefix of the prompt, if another slot has one by now; returns how many tokens lie in the slot.

        Must be called before any token of the prompt beyond the prefix from `acquire` is read.
        """
        slot = self._running[sequence]
        source, length = self._longest_past(prompt, slot.salt, exact=exact)
        if source is None or source is slot or length <= len(slot.tokens):
            return len(slot.tokens)
        self._buffers.copy(source.index, slot.index, length)
        slot.tokens, slot.num_prefilled = source.tokens[:length], min(source.num_prefilled, length)
        return length

    def append(self, sequence: int, tokens: list[int], *, prefilled: bool) -> None:
        """Record that the keys and values of these tokens were added to the sequence's slot.

        Tokens beyond the last whole group of a prompt pass do not count as prefilled.
        """
        slot = self._running[sequence]
        if prefilled and slot.num_prefilled == len(slot.tokens):
            slot.num_prefilled += self._whole_groups(len(tokens))
        slot.tokens += tokens

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
        self._num_released += 1
        slot.sequence, slot.released = None, self._num_released
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
            slot.tokens, slot.num_prefilled, slot.released = [], 0, 0
        return len(idle)

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
