"""Who sits in which row of the key-value buffers, and whose past lies in the others: pure bookkeeping.

A slot is one row of every layer's buffer. One forward pass covers a contiguous range of slots, so those of running
sequences are kept side by side: first the ones that decode, then the ones whose prompt is still being read, then the
idle ones, which keep the tokens of finished sequences for the next prompt that begins alike.
"""

from dataclasses import dataclass, field
from typing import Protocol

# Tokens beyond a common past that are sooner read anew than the past is copied.
_LITTLE = 16


class Buffers(Protocol):
    """What the slots need of the key-value buffers, wherever these lie."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` tokens of one slot into another."""
        ...

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the keys and values of the first `length` tokens of two slots."""
        ...


@dataclass
class Slot:
    """The tokens whose keys and values lie in a slot; the first `num_prefilled` of them came from prefill.

    They are used again for prompts of the same `salt` only. `index` is its row. `sequence` is the running sequence that
    has the slot, None for an idle one; `released` orders the idle ones.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    num_prefilled: int = 0
    salt: str | None = None
    sequence: int | None = None
    released: int = 0


class KvSlots:
    """The slots over one set of buffers.

    The kernels take the rows of a pass in groups of `row_group`, and round what is left at its end otherwise.
    """

    def __init__(self, num_slots: int, buffers: Buffers, *, row_group: int = 1) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        self.row_group = row_group
        self.num_running = 0
        self.num_decoding = 0
        self._buffers = buffers
        self._running: dict[int, Slot] = {}
        self._num_released = 0

    def has(self, sequence: int) -> bool:
        """Whether a sequence runs."""
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
        """Give a sequence the next slot; returns how many tokens of its prompt lie in it already.

        A past is used again, and counted, only if its sequence had the same `salt`, or also none.
        At least two tokens are always left to read, for one alone is read by another kernel, which rounds otherwise: so
        asking twice gives the same answer twice. With `exact`, only keys and values from prefill are used again, for
        those from decoding differ from them by rounding, and whole groups of them, so that the tokens left are grouped
        as if all were read.
        An idle slot that has little beyond the common past is taken over, and if no slot is empty, one of which half is
        common; otherwise the past is copied into the idle slot that was released longest ago, so that both can be gone
        on from.
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
        """Copy more of a prompt's beginning, if another slot has it by now; returns how many tokens lie in the slot.

        Nothing but what `acquire` found may have been read of the prompt.
        """
        slot = self._running[sequence]
        source, length = self._longest_past(prompt, slot.salt, exact=exact)
        if source is None or source is slot or length <= len(slot.tokens):
            return len(slot.tokens)
        self._buffers.copy(source.index, slot.index, length)
        slot.tokens, slot.num_prefilled = source.tokens[:length], min(source.num_prefilled, length)
        return length

    def append(self, sequence: int, tokens: list[int], *, prefilled: bool) -> None:
        """The keys and values of these tokens lie in the sequence's slot now, behind what was there.

        What a pass over a prompt had beyond whole groups does not count as prefilled.
        """
        slot = self._running[sequence]
        if prefilled and slot.num_prefilled == len(slot.tokens):
            slot.num_prefilled += self._whole_groups(len(tokens))
        slot.tokens += tokens

    def start_decoding(self, sequence: int) -> None:
        """The sequence's prompt is read: it moves to the others that decode."""
        self._exchange(self.index(sequence), self.num_decoding)
        self.num_decoding += 1

    def release(self, sequence: int) -> None:
        """The sequence has ended; its past stays until the slot is needed. The others close ranks."""
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
        """Empty the idle slots; returns how many had a past."""
        idle = [slot for slot in self.slots[self.num_running :] if slot.tokens]
        for slot in idle:
            slot.tokens, slot.num_prefilled, slot.released = [], 0, 0
        return len(idle)

    def _longest_past(self, prompt: list[int], salt: str | None, *, exact: bool) -> tuple[Slot | None, int]:
        """The slot of this salt that has most of the prompt's beginning, and how many tokens of it may be used.

        Of several an idle one, for that may be taken over.
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
        if one[same:middle] == other[same:middle]:  # lists are compared much faster than in a loop of Python
            same = middle
        else:
            different = middle
    return same
