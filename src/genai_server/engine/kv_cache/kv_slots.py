"""KV cache slots: which sequence has which slot, which prefixes idle slots keep, and in which order slots lose memory.

A slot is one row of every layer's KV cache buffer. A sequence stays in its slot to its end: idle slots between others
cost a pass nearly nothing. Idle slots keep the tokens of finished sequences as cached prefixes. This module only does
the bookkeeping; the buffers move the data.

Some models have layers with recurrent states of fixed size in place of a KV cache. Such a state cannot be cut back to
fewer tokens. So a prefix is reused up to a state checkpoint (engine/kv_cache/row_states.py), or up to the last token.

Slots share pages of memory. A slot takes pages as tokens are added, and keeps them until another slot needs memory.
Pages are then freed in this order, within each group the least recently used first: pages behind the cached tokens of a
slot, cached prefixes with which another slot begins, prefixes of low-priority sequences, prefixes beyond the share of
their tenant, and other prefixes. State checkpoints take pages, too. Those of running sequences are dropped last.

The tenants of all running sequences and recently used prefixes have equal shares of slots and pages. The share of a
tenant covers its running sequences first, and then its prefixes, the most recently used first. A prefix that was not
used recently belongs to no share.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from genai_server.engine.kv_cache.row_states import RowStates, Saved, is_common_end
from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvBudget, KvMemory
from genai_server.engine.sequence import common_length
from genai_server.timing import Clock


@dataclass
class Slot:
    """One row of the KV cache buffers, with the tokens that are cached there and the sequence that has the row."""

    # The row in the buffers.
    index: int
    # The tokens whose keys and values lie in the slot. A list is only appended to. Every other change makes a new one,
    # before the keys and values change.
    tokens: list[int] = field(default_factory=list)
    # Only prompts of the same salt may reuse the tokens.
    salt: str | None = None
    # The name of the adapter with which the tokens were read. Its content is in the salt.
    adapter: str | None = None
    # Whether the keys have the cosines and sines for long rows. Only prompts which need the same may reuse the tokens.
    is_long: bool = False
    # The running sequence that has the slot; None for an idle slot.
    sequence: int | None = None
    # Tokens behind these that the next pass may write.
    num_coming: int = 0
    # Copies of the states at some of the lengths that the tokens had.
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    # Tokens that another slot begins with, too; more prompts may begin with these. Their checkpoint is always kept.
    num_common: int = 0
    # The sequence that has the slot, or had it last.
    owner: int | None = None
    # The tenant of the owner; None for a low-priority sequence, whose prefixes belong to no share.
    tenant: str | None = ""
    # Orders slots by the last release or reuse of their tokens; 0 for a slot that was never used or was emptied.
    used: int = 0
    # The clock's time of the last release or reuse.
    used_at: float = 0.0

    @property
    def low_priority(self) -> bool:
        """Whether the sequence that has the slot, or had it last, is of low priority."""
        return self.tenant is None

    def empty(self) -> None:
        """Forget the tokens, so that the slot holds no prefix."""
        self.tokens, self.used, self.owner = [], 0, None
        self.checkpoints = {}

    def begins_with(self, other: "Slot") -> bool:
        """Whether this slot can provide a cached prefix for every prompt for which the other slot can."""
        same = (self.salt, self.is_long) == (other.salt, other.is_long)
        return same and self.tokens[: len(other.tokens)] == other.tokens


# Seconds after its last use for which a cached prefix may be in its tenant's share, and for which sequences of the
# background leave it alone.
KEPT_SECONDS = 300.0


class KvPages:
    """Counts the pages of KV cache memory that each of the `slots` takes, and frees pages when memory is short.

    `give_back` is called with the index of a slot and a token index at the beginning of a page. It returns the slot's
    memory from that token on to the system.
    """

    def __init__(
        self, slots: list[Slot], memory: KvMemory, give_back: Callable[[int, int], None], clock: Clock
    ) -> None:
        self._slots = slots
        self._memory = memory
        self._give_back = give_back
        self._clock = clock
        self._pages = [0] * len(slots)  # the pages that each slot has, without those of checkpoints

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the slots take."""
        return self._memory.own_bytes + self.num_used * self._memory.page_bytes

    @property
    def num_used(self) -> int:
        """Number of pages that the slots and their checkpoints have."""
        num_checkpoints = sum(len(slot.checkpoints) for slot in self._slots)
        return sum(self._pages) + num_checkpoints * self._memory.checkpoint_pages

    def num_taken(self, slots: Iterable[Slot]) -> int:
        """Number of pages that the given slots have, without those of their state checkpoints."""
        return sum(self._pages[slot.index] for slot in slots)

    def has_room(self, slot: Slot | None, num_tokens: int) -> bool:
        """Whether there is memory for `num_tokens` more tokens of a running slot, or of a new slot if `slot` is None.

        Memory of cached prefixes in idle slots counts as free.
        """
        known, has = (0, 0) if slot is None else (len(slot.tokens), self._needed(slot))
        return self._memory.pages(known + num_tokens) - has <= self._free()

    def can_copy(self, source: Slot, length: int) -> bool:
        """Whether there is memory for a copy of the first `length` tokens of a slot, while the slot itself is kept."""
        return self._memory.pages(length) <= self._free(source)

    def take(self, slot: Slot, *keep: Slot) -> None:
        """Assign to a slot the pages that its tokens need. If too few are free, cached prefixes are evicted.

        The tokens of running slots and of the slots `keep` are not evicted.
        """
        needed = self._needed(slot)
        if (missing := needed - self._pages[slot.index]) > 0:
            self.make_room(missing, *keep)
            self._pages[slot.index] = needed

    def take_checkpoint(self) -> bool:
        """Free pages for one more state checkpoint. Returns False, and frees nothing, if there is no memory for it."""
        if self._memory.checkpoint_pages > self._free():
            return False
        self.make_room(self._memory.checkpoint_pages)
        return True

    def make_room(self, num_pages: int, *keep: Slot) -> None:
        """Free memory until `num_pages` pages are free. The tokens of running slots and of the slots `keep` stay."""
        maximum = self._memory.num_pages - num_pages
        for slot in self._slots:
            if self.num_used <= maximum:
                return
            self._trim(slot)
        for slot in self.cached():
            if self.num_used <= maximum:
                return
            if slot not in keep:
                slot.empty()
                self._trim(slot)
        for slot in self._slots:
            if self.num_used <= maximum:
                return
            slot.checkpoints = {}

    def cached(self, tenant: str | None = None) -> list[Slot]:
        """Idle slots with cached prefixes, in the order in which they are evicted.

        `tenant` is the tenant of the new sequence that needs a slot. It is None if that sequence has low priority, or
        if no new sequence needs a slot.
        """
        # In alphabetical order, tokens which others begin with come right before one of these.
        kept = sorted((slot for slot in self._slots if slot.tokens), key=lambda s: (s.salt or "", s.tokens))
        repeated = {one.index for one, other in pairwise(kept) if other.begins_with(one)}
        idle = [slot for slot in kept if slot.sequence is None]
        kept_by_share = self._within_shares(tenant)
        return sorted(
            idle,
            key=lambda slot: (
                slot.index not in repeated,
                not slot.low_priority,
                slot.index in kept_by_share,
                slot.used,
            ),
        )

    def is_recent(self, slot: Slot) -> bool:
        """Whether an idle slot has a prefix that a sequence of normal priority has used recently."""
        is_cached = slot.sequence is None and bool(slot.tokens) and not slot.low_priority
        return is_cached and slot.used_at > self._clock() - KEPT_SECONDS

    def _within_shares(self, newcomer: str | None) -> set[int]:
        """Indices of idle slots whose prefixes lie within the shares of their tenants; empty if there is one tenant.

        `newcomer` is the tenant of a new sequence without a slot. It is None if that sequence has low priority, or if
        there is no new sequence.
        """
        running = [slot for slot in self._slots if slot.sequence is not None and not slot.low_priority]
        recent = sorted(filter(self.is_recent, self._slots), key=lambda slot: slot.used, reverse=True)
        # Slots and pages.
        held = {slot.tenant: (0, 0) for slot in (*running, *recent)}
        if newcomer is not None:
            held[newcomer] = (1, 0)
        if len(held) < 2:
            return set()
        max_slots, max_pages = max(1, len(self._slots) // len(held)), self._memory.num_pages // len(held)
        found: set[int] = set()
        for slot in (*running, *recent):
            num_slots, num_pages = held[slot.tenant]
            num_pages += max(self._pages[slot.index], self._needed(slot))
            held[slot.tenant] = num_slots, num_pages = num_slots + 1, num_pages
            if slot.sequence is None and num_slots <= max_slots and num_pages <= max_pages:
                found.add(slot.index)
        return found

    def _free(self, *keep: Slot) -> int:
        """Number of pages that neither the tokens of running slots nor those of the slots `keep` need."""
        return self._memory.num_pages - sum(
            self._needed(slot) for slot in self._slots if slot.sequence is not None or slot in keep
        )

    def _needed(self, slot: Slot) -> int:
        return self._memory.pages(len(slot.tokens) + slot.num_coming)

    def _trim(self, slot: Slot) -> None:
        """Free the pages that lie behind the tokens of a slot."""
        needed = self._needed(slot)
        if needed < self._pages[slot.index]:
            self._pages[slot.index] = needed
            self._give_back(slot.index, (needed + 1) * self._memory.page_tokens)


# An idle slot with at most this many tokens beyond the common prefix is taken over. Reading these tokens again is
# cheaper than copying the prefix.
_LITTLE = 16


class Buffers(Protocol):
    """The methods of KV cache buffers that the slots need."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the KV cache of the first `length` tokens of one slot into another slot. Raises RunnerFailed."""
        ...

    def give_back(self, slot: int, first: int) -> None:
        """Return the memory of a slot from token `first` on to the system. `first` lies at the beginning of a page."""
        ...


class KvSlots:
    """All slots of one set of KV cache buffers. The methods identify a sequence by its id."""

    def __init__(
        self,
        num_slots: int,
        buffers: Buffers,
        *,
        min_copied: int = 1,
        memory: KvMemory = UNSHARED,
        states: RowStates | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        # Prefixes of fewer tokens are not copied to another slot: reading these tokens takes less time.
        self._min_copied = min_copied
        self._buffers = buffers
        self._running: dict[int, Slot] = {}
        self._num_uses = 0
        self._clock = clock
        self._pages = KvPages(self.slots, memory, buffers.give_back, clock)
        self._states = states  # None for a model that keeps only keys and values

    def has(self, sequence: int) -> bool:
        """Whether a running sequence has this id."""
        return sequence in self._running

    @property
    def num_running(self) -> int:
        """Number of slots that have a running sequence."""
        return len(self._running)

    @property
    def keeps_states(self) -> bool:
        """Whether the slots have recurrent states, so that prefixes can be reused only up to a checkpoint."""
        return self._states is not None

    def of(self, sequence: int) -> Slot:
        """The slot of a running sequence."""
        return self._running[sequence]

    def acquire(
        self,
        sequence: int,
        prompt: list[int],
        *,
        reuse: bool = True,
        salt: str | None = None,
        is_long: bool = False,
        tenant: str | None = "",
    ) -> int:
        """Give a sequence a slot. Returns the number of prompt tokens that are cached in the slot already.

        A cached prefix is reused only if `reuse` is set, and if the prefix was read with the same `salt` (both may be
        None) and the same `is_long`, which says whether the long rope factors apply. `tenant` is None for a
        low-priority sequence. At least two tokens are always left to read. On a device, a single token runs another
        kernel, which rounds differently, so a repeated request would get another answer.

        If the slot with the longest common prefix is idle, it is taken over in three cases: it has few tokens beyond
        the common prefix; or no slot is empty and the common prefix is at least half of its tokens; or there is no
        memory for a copy. Otherwise the prefix is copied to an empty slot, or to the first one to be evicted, and stays
        cached in both.
        """
        past = prompt if reuse else []
        source, length, common = self._longest_past(past, salt, is_long=is_long)
        idle = [slot for slot in self.slots if slot.sequence is None and not slot.tokens] or self._pages.cached(tenant)
        taken = next((slot for slot in idle if slot is not source), idle[0])
        if source is not None:
            beyond = len(source.tokens) - length
            is_little = beyond <= _LITTLE or (taken.tokens and beyond <= length)
            if source.sequence is None and (is_little or not self._pages.can_copy(source, length)):
                taken = source
            elif taken is not source and length < self._min_copied:
                source, length = None, 0
        self._cut(taken, length if taken is source else 0)
        taken.num_common = common
        taken.sequence, taken.salt, taken.is_long = sequence, salt, is_long
        taken.owner, taken.tenant = sequence, tenant
        self._running[sequence] = taken
        if source is not None and taken is not source:
            self._copy(source, taken, length)
        return length

    def resume(self, sequence: int, *, is_long: bool = False) -> int | None:
        """Give a preempted sequence its former slot back. Returns the number of its tokens that are still cached there.

        `is_long` says whether the sequence needs the long rope factors. Returns None if another sequence has the slot,
        if the slot was emptied for its memory, or if its tokens were read with other rope factors.
        """
        own = [slot for slot in self.slots if slot.owner == sequence and slot.sequence is None and slot.tokens]
        own = [slot for slot in own if slot.is_long == is_long]
        if not own:
            return None
        slot = max(own, key=lambda slot: len(slot.tokens))
        slot.sequence = sequence
        self._running[sequence] = slot
        return len(slot.tokens)

    def reserved(self, maximum: int) -> KvBudget:
        """Number of slots and pages of at most `maximum` idle slots: those with the latest normal-priority prefixes."""
        recent = sorted(filter(self._pages.is_recent, self.slots), key=lambda slot: -slot.used)[:maximum]
        return KvBudget(len(recent), self._pages.num_taken(recent))

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        """Search again for a longer cached prefix of a prompt, and copy it to the sequence's slot. Raises RunnerFailed.

        Returns the number of prompt tokens that are cached in the sequence's slot afterwards. Must be called before any
        token of the prompt beyond the prefix from `acquire` is read.
        """
        slot = self._running[sequence]
        source, length, slot.num_common = self._longest_past(prompt, slot.salt, is_long=slot.is_long)
        minimum = len(slot.tokens) + self._min_copied
        if source is None or source is slot or length < minimum or not self._pages.can_copy(source, length):
            return len(slot.tokens)
        self._copy(source, slot, length)
        return length

    def find(self, prompt: list[int], salt: str | None) -> int:
        """Number of prompt tokens that `acquire` would find cached if called now, with `is_long` being false."""
        _, length, _ = self._longest_past(prompt, salt, is_long=False)
        return length

    def has_room(self, sequence: int, num_tokens: int) -> bool:
        """Whether there is memory for `num_tokens` more tokens of a running sequence, or of a new one.

        An id that no running sequence has stands for a new sequence. Memory of cached prefixes in idle slots counts as
        free.
        """
        return self._pages.has_room(self._running.get(sequence), num_tokens)

    def cut(self, sequence: int, length: int) -> None:
        """Forget all tokens of a running sequence behind the first `length`.

        With recurrent states, `length` must be that of a checkpoint, or 0.
        """
        self._cut(self._running[sequence], length)

    def checkpoint(self, sequence: int, *, spacing: int) -> None:
        """Save a checkpoint of a sequence's recurrent states.

        Nothing is saved if the last checkpoint is less than `spacing` tokens away, or if there is no memory. Older
        checkpoints that are so close to each other that reading the tokens again costs less than their memory are
        dropped.
        """
        slot = self._running[sequence]
        length = len(slot.tokens)
        if self._states is None or length - max(slot.checkpoints, default=-spacing) < spacing:
            return
        last = length
        for older in sorted(slot.checkpoints, reverse=True)[1:]:
            if last - older < self._states.tokens_worth and not is_common_end(slot.num_common - older):
                del slot.checkpoints[older]
            else:
                last = older
        if self._pages.take_checkpoint():
            slot.checkpoints[length] = self._states.save(slot.index)

    def spoil(self, sequence: int) -> None:
        """Forget the tokens of a running sequence, because a failed pass may have changed its recurrent states.

        In a model without recurrent states, the tokens from before the pass remain.
        """
        if self._states is not None:
            self._running[sequence].empty()

    def reserve(self, sequence: int, num_tokens: int) -> None:
        """Take memory for the tokens that the next pass adds to a sequence. For one token there is always memory."""
        slot = self._running[sequence]
        slot.num_coming = num_tokens
        self._pages.take(slot)

    def append(self, sequence: int, tokens: list[int]) -> None:
        """Record that the KV cache of these tokens was added to the sequence's slot."""
        slot = self._running[sequence]
        slot.tokens += tokens
        slot.num_coming = 0
        self._pages.take(slot)

    def add_loaded(self, sequence: int, tokens: list[int], saved: Saved | None) -> None:
        """Record that the KV cache of these tokens was copied into the sequence's slot from elsewhere.

        `saved` are the recurrent states after the last token, if the model has any.
        """
        self.append(sequence, tokens)
        if self._states is not None and saved is not None:
            slot = self._running[sequence]
            self._states.load(slot.index, saved)
            self._copy_checkpoint(slot, len(slot.tokens), saved)

    def release(self, sequence: int) -> None:
        """Make the slot of an ended sequence idle. The tokens stay cached until the slot or its memory is needed."""
        slot = self._running.pop(sequence)
        slot.sequence, slot.num_coming = None, 0
        self._use(slot)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the slots take."""
        return self._pages.num_bytes

    def fit(self) -> None:
        """Free memory that exceeds the budget, after the budget has become smaller."""
        self._pages.make_room(0)

    def forget(self) -> int:
        """Empty all idle slots. Returns the number of slots that had tokens."""
        idle = [slot for slot in self.slots if slot.sequence is None and slot.tokens]
        for slot in idle:
            slot.empty()
        return len(idle)

    def _use(self, slot: Slot) -> None:
        self._num_uses += 1
        slot.used, slot.used_at = self._num_uses, self._clock()

    def _cut(self, slot: Slot, length: int) -> None:
        """Forget all tokens of a slot behind the first `length`, and set recurrent states to the checkpoint there."""
        if self._states is not None:
            if length == 0:
                self._states.clear(slot.index)
            elif length < len(slot.tokens):
                self._states.load(slot.index, slot.checkpoints[length])
        slot.tokens = slot.tokens[:length]
        slot.checkpoints = {kept: saved for kept, saved in slot.checkpoints.items() if kept <= length}

    def _copy(self, source: Slot, target: Slot, length: int) -> None:
        """Copy the first `length` tokens of one slot, with KV cache and states, into another slot."""
        self._use(source)
        saved = source.checkpoints.get(length)  # memory for the target may cost the source its checkpoints
        target.tokens = target.tokens[:]  # another list, because even the first tokens are overwritten
        target.num_coming = length - len(target.tokens)
        self._pages.take(target, source)
        self._buffers.copy(source.index, target.index, length)  # may fail: the tokens are counted only afterwards
        if self._states is not None and saved is None:
            self._states.copy(source.index, target.index)
        elif self._states is not None and saved is not None:
            self._states.load(target.index, saved)
        target.tokens = source.tokens[:length]
        target.num_coming = 0
        self._copy_checkpoint(target, length, saved)

    def _copy_checkpoint(self, slot: Slot, length: int, saved: Saved | None) -> None:
        """Replace the state checkpoints of a slot with one after its first `length` tokens.

        `saved` are the recurrent states after these tokens. The slot has no checkpoint if `saved` is None or if there
        is no memory for a checkpoint.
        """
        slot.checkpoints = {}
        if saved is not None and self._pages.take_checkpoint():
            slot.checkpoints[length] = saved

    def _longest_past(self, prompt: list[int], salt: str | None, *, is_long: bool) -> tuple[Slot | None, int, int]:
        """Find the slot with the longest reusable prefix of a prompt.

        Returns the slot or None, the number of its tokens that can be reused, and the length of the longest common
        prefix of the prompt with any slot. Only slots with this salt and this `is_long` count. Of equally good slots,
        an idle one is preferred, because it can be taken over.
        """
        maximum = max(0, len(prompt) - 2)
        best: tuple[Slot | None, int] = (None, 0)
        longest = 0
        for slot in sorted(self.slots, key=lambda slot: slot.sequence is not None):
            if (slot.salt, slot.is_long) != (salt, is_long):
                continue
            common = min(maximum, common_length(prompt, slot.tokens))
            length, longest = self._usable(slot, common), max(longest, common)
            if length > best[1]:
                best = (slot, length)
        return *best, longest

    def _usable(self, slot: Slot, num_tokens: int) -> int:
        """Number of a slot's first `num_tokens` tokens that can be reused.

        All of them can, except with recurrent states: then the reused tokens must end at a state checkpoint or at the
        slot's last token.
        """
        if self._states is None:
            return num_tokens
        lengths = (*slot.checkpoints, len(slot.tokens))
        return max((length for length in lengths if length <= num_tokens), default=0)
