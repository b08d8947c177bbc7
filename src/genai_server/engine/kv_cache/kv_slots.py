"""Assigns KV cache slots to sequences (`KvSlots`), keeps the tokens of ended sequences as cached prefixes for later
prompts, and decides which slots lose memory when memory is short (`KvPages`). This module only counts and decides; KV
cache buffers copy the data (buffers.py, paged_buffers.py).

A slot is one row of every layer's KV cache buffer. A sequence stays in its slot to its end. When a sequence has ended,
its slot is idle and keeps the tokens as a cached prefix. A later sequence whose prompt begins with the same tokens gets
this slot, or a copy of the prefix in another slot, and need not read these tokens.

Some models have layers with recurrent states of fixed size in place of a KV cache. As the state after fewer tokens
cannot be computed from a later one, a prefix can be reused only up to a state checkpoint, which is a copy of the states
(buffers.py), or up to its last token.

Slots share the pages of memory. A slot gets pages as tokens are added, and keeps them until another slot needs memory.
Pages are then freed in this order, within each group the least recently used first: pages behind the cached tokens of a
slot, cached prefixes with which another slot begins, too, prefixes of low-priority sequences, prefixes beyond the share
of their tenant (API key), and other prefixes. State checkpoints take pages, too; checkpoints of running sequences are
dropped last.

The tenants of running sequences and of recently used prefixes have equal shares of slots and pages. The share of a
tenant covers its running sequences first, and then its prefixes, the most recently used first. A prefix that was not
used recently belongs to no share.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from genai_server.engine.kv_cache.buffers import RowStates, Saved, is_common_end
from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvBudget, KvMemory
from genai_server.engine.sequence import common_prefix_length
from genai_server.timing import Clock


@dataclass
class Slot:
    """One row of the KV cache buffers: the tokens whose keys and values it holds, and the sequence that uses it.

    `KvSlots` creates all slots at the start. A slot is in use while `sequence` is set, and idle otherwise; an idle slot
    with tokens is a cached prefix.
    """

    # The number of the row in the buffers.
    index: int
    # The tokens whose keys and values are in the slot. Tokens are only appended to this list; for every other change
    # the slot gets a new list before its keys and values change.
    tokens: list[int] = field(default_factory=list)
    # The cache salt of the tokens. Only prompts with an equal salt may reuse them.
    salt: str | None = None
    # The name of the adapter with which the tokens were read; None without one. The salt has the digest of its file.
    adapter: str | None = None
    # Whether the keys were computed with the long factors of the rope. Only prompts that need the same may reuse the
    # tokens.
    is_long: bool = False
    # The id of the running sequence that uses the slot; None if the slot is idle.
    sequence: int | None = None
    # Number of tokens for which the next pass may write keys and values, after the present ones.
    num_coming: int = 0
    # Copies of the recurrent states, by the number of tokens after which they were made.
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    # Number of tokens with which another slot begins, too. More prompts may begin with them, so their checkpoint is
    # always kept.
    num_common: int = 0
    # The id of the sequence that uses the slot, or used it last; None for an empty slot.
    owner: int | None = None
    # The tenant of the owner; None for a low-priority sequence, whose prefixes belong to no share.
    tenant: str | None = ""
    # A number that grows with each release or reuse of a slot's tokens, by which slots are ordered; 0 for a slot that
    # was never used or was emptied.
    used: int = 0
    # The clock's time of the last release or reuse.
    used_at: float = 0.0

    @property
    def low_priority(self) -> bool:
        """Whether the sequence that uses the slot, or used it last, has low priority."""
        return self.tenant is None

    def empty(self) -> None:
        """Discard the tokens and state checkpoints of the slot, so that it has no cached prefix."""
        self.tokens, self.used, self.owner = [], 0, None
        self.checkpoints = {}

    def begins_with(self, other: "Slot") -> bool:
        """Return whether this slot begins with all tokens of the slot `other`, with the same cache salt and the same
        rope factors. The slot `other` is then redundant: this one can provide each prefix that `other` can.
        """
        is_compatible = (self.salt, self.is_long) == (other.salt, other.is_long)
        return is_compatible and self.tokens[: len(other.tokens)] == other.tokens


# Seconds after its last use for which a cached prefix may be in its tenant's share, and for which sequences of the
# background leave it alone.
RECENT_SECONDS = 300.0


class KvPages:
    """Counts the pages of KV cache memory that each of `slots` has, and frees pages when memory is short. `KvSlots`
    creates it and tells it what each slot needs.

    `memory` has the size of a page and the number of pages for all slots together; `clock` returns the time in seconds.
    `give_back` returns memory to the operating system. It is called with the index of a slot and the index of a token
    at the beginning of a page, from which on the slot's memory is no longer needed.
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
        """Bytes of memory that all slots and their state checkpoints have at the moment."""
        return self._memory.own_bytes + self.num_used * self._memory.page_bytes

    @property
    def num_used(self) -> int:
        """Number of pages that all slots and their state checkpoints have at the moment."""
        num_checkpoints = sum(len(slot.checkpoints) for slot in self._slots)
        return sum(self._pages) + num_checkpoints * self._memory.checkpoint_pages

    def num_taken(self, slots: Iterable[Slot]) -> int:
        """Return the number of pages that the given slots have for their tokens, without the pages of their state
        checkpoints.
        """
        return sum(self._pages[slot.index] for slot in slots)

    def has_room(self, slot: Slot | None, num_tokens: int) -> bool:
        """Return whether there is memory for `num_tokens` more tokens in `slot`, which is in use, or in a new slot if
        `slot` is None.

        Memory of cached prefixes in idle slots counts as free, because these can be evicted.
        """
        num_cached, num_held = (0, 0) if slot is None else (len(slot.tokens), self._needed(slot))
        return self._memory.pages(num_cached + num_tokens) - num_held <= self._free()

    def can_copy(self, source: Slot, length: int) -> bool:
        """Return whether there is memory for a copy of the first `length` tokens of the slot `source` while `source`
        keeps all its own tokens.
        """
        return self._memory.pages(length) <= self._free(source)

    def take(self, slot: Slot, *keep: Slot) -> None:
        """Assign to a slot the pages that its present and coming tokens need, if it does not have them yet. If too few
        pages are free, cached prefixes are evicted.

        The tokens of slots in use and of the slots in `keep` are not evicted. The caller must have made sure that there
        is enough memory.
        """
        needed = self._needed(slot)
        if (missing := needed - self._pages[slot.index]) > 0:
            self.make_room(missing, *keep)
            self._pages[slot.index] = needed

    def take_checkpoint(self) -> bool:
        """Make room for the pages of one more state checkpoint, a copy of a sequence's recurrent states, by evicting
        cached prefixes if necessary. Returns False, and evicts nothing, if the slots in use leave too few pages.
        """
        if self._memory.checkpoint_pages > self._free():
            return False
        self.make_room(self._memory.checkpoint_pages)
        return True

    def make_room(self, num_pages: int, *keep: Slot) -> None:
        """Evict cached prefixes, and state checkpoints if that is not enough, until `num_pages` pages are free. Fewer
        are free afterwards if slots in use need more.

        The tokens of slots in use and of the slots in `keep` stay.
        """
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
        """Return the idle slots with cached prefixes in the order in which they are evicted.

        Prefixes within the shares of their tenants come late in this order, and a new sequence changes the shares.
        `tenant` is the tenant of the new sequence for which a slot is needed; None if that sequence has low priority,
        or if pages are needed and no sequence is new.
        """
        # In lexicographic order, a list of tokens with which others begin comes directly before one of them.
        occupied = sorted((slot for slot in self._slots if slot.tokens), key=lambda s: (s.salt or "", s.tokens))
        repeated = {previous.index for previous, following in pairwise(occupied) if following.begins_with(previous)}
        idle = [slot for slot in occupied if slot.sequence is None]
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
        """Return whether a slot is idle and has a cached prefix that a sequence of normal priority used within the last
        RECENT_SECONDS.
        """
        is_cached = slot.sequence is None and bool(slot.tokens) and not slot.low_priority
        return is_cached and slot.used_at > self._clock() - RECENT_SECONDS

    def _within_shares(self, newcomer: str | None) -> set[int]:
        """Return the indexes of the idle slots whose cached prefixes are within the shares of their tenants, so that
        they are evicted late; empty if there is only one tenant.

        `newcomer` is the tenant of a new sequence that has no slot yet, and that counts as running; None if that
        sequence has low priority, or if there is no new sequence.
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
        indexes: set[int] = set()
        for slot in (*running, *recent):
            num_slots, num_pages = held[slot.tenant]
            num_pages += max(self._pages[slot.index], self._needed(slot))
            held[slot.tenant] = num_slots, num_pages = num_slots + 1, num_pages
            if slot.sequence is None and num_slots <= max_slots and num_pages <= max_pages:
                indexes.add(slot.index)
        return indexes

    def _free(self, *keep: Slot) -> int:
        """Return the number of pages that are free or can be freed: all pages but those for the tokens of slots in use
        and of the slots in `keep`.
        """
        return self._memory.num_pages - sum(
            self._needed(slot) for slot in self._slots if slot.sequence is not None or slot in keep
        )

    def _needed(self, slot: Slot) -> int:
        return self._memory.pages(len(slot.tokens) + slot.num_coming)

    def _trim(self, slot: Slot) -> None:
        """Free the pages of a slot that lie behind its present and coming tokens."""
        needed = self._needed(slot)
        if needed < self._pages[slot.index]:
            self._pages[slot.index] = needed
            self._give_back(slot.index, (needed + 1) * self._memory.page_tokens)


# A new sequence gets an idle slot that has at most this many tokens beyond the common prefix, because reading these
# tokens again later costs less than copying the prefix.
_MAX_DISCARDED_TOKENS = 16


class Buffers(Protocol):
    """The methods that the slots need of KV cache buffers, which hold the keys and values: `CpuBuffers` and
    `PagedBuffers` have them.
    """

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` tokens from the slot `source` to the slot `target`, which are
        numbers of slots. Raises RunnerFailed if the device reports an error.
        """
        ...

    def give_back(self, slot: int, first: int) -> None:
        """Give up the memory of the slot number `slot` from the token with the index `first` on. The token must be the
        first one of a page. Memory of the CPU returns to the operating system, and blocks on a GPU are free for other
        slots.
        """
        ...


class KvSlots:
    """Assigns the `num_slots` slots of a set of KV cache buffers to sequences, and finds cached prefixes for them. A
    runner creates it with its buffers, and calls the methods with the ids of sequences.

    For each sequence, the runner calls `acquire` when it begins, `reserve` before and `append` after each pass, and
    `release` at its end. A prefix of fewer than `min_copied` tokens is not copied to another slot, because the model
    reads them faster. `memory` has the pages that the slots share; `states` are the recurrent states of all slots, None
    if the model has none; `clock` returns the time in seconds.
    """

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
        """Return whether the sequence with the id `sequence` has a slot at the moment."""
        return sequence in self._running

    @property
    def num_running(self) -> int:
        """Number of slots in use, each by one sequence."""
        return len(self._running)

    @property
    def keeps_states(self) -> bool:
        """Whether the model has recurrent states, so that a cached prefix can be reused only up to a checkpoint of the
        states.
        """
        return self._states is not None

    def of(self, sequence: int) -> Slot:
        """Return the slot of the sequence with the id `sequence`. Raises KeyError if the sequence has none."""
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
        """Assign a slot to a new sequence. Returns how many of the prompt's tokens the slot has already, from a cached
        prefix; the model must read the others. At least one slot must be idle.

        `sequence` is the id of the sequence, and `prompt` its token ids. A cached prefix is used only if `reuse` is
        set, and if it was read with an equal `salt` and an equal `is_long`. `salt` separates the prefixes of clients
        that must not share them; None stands for no salt. `is_long` says whether the sequence needs the rope factors
        for long contexts. `tenant` identifies the API key; None for a low-priority sequence. At least two tokens are
        left to read: on a device, another kernel runs for a single token, which rounds differently, so that a repeated
        request would get another answer.

        If the slot with the longest common prefix is idle, the sequence gets this very slot in three cases: the slot
        has few tokens beyond the common prefix; or no slot is empty and the common prefix is at least half of the
        slot's tokens; or there is no memory for a copy. Otherwise the prefix is copied to an empty slot or, if there is
        none, to the idle slot that is evicted first. The original stays as it is.

        Raises RunnerFailed if the device reports an error while a prefix is copied.
        """
        past = prompt if reuse else []
        source, length, common = self._longest_past(past, salt, is_long=is_long)
        idle = [slot for slot in self.slots if slot.sequence is None and not slot.tokens] or self._pages.cached(tenant)
        target = next((slot for slot in idle if slot is not source), idle[0])
        if source is not None:
            num_beyond = len(source.tokens) - length
            is_little = num_beyond <= _MAX_DISCARDED_TOKENS or (target.tokens and num_beyond <= length)
            if source.sequence is None and (is_little or not self._pages.can_copy(source, length)):
                target = source
            elif target is not source and length < self._min_copied:
                source, length = None, 0
        self._cut(target, length if target is source else 0)
        target.num_common = common
        target.sequence, target.salt, target.is_long = sequence, salt, is_long
        target.owner, target.tenant = sequence, tenant
        self._running[sequence] = target
        if source is not None and target is not source:
            self._copy(source, target, length)
        return length

    def resume(self, sequence: int, *, is_long: bool = False) -> int | None:
        """Assign its former slot to a sequence that was preempted and now runs again. Returns how many of the
        sequence's tokens are still cached there.

        `sequence` is the id of the sequence, and `is_long` says whether it needs the rope factors for long contexts.
        Returns None, and assigns no slot, if another sequence has used the slot, if the slot was emptied because memory
        was short, or if its tokens were read with other rope factors. The caller then uses `acquire`.
        """
        candidates = [slot for slot in self.slots if slot.owner == sequence and slot.sequence is None and slot.tokens]
        candidates = [slot for slot in candidates if slot.is_long == is_long]
        if not candidates:
            return None
        slot = max(candidates, key=lambda slot: len(slot.tokens))
        slot.sequence = sequence
        self._running[sequence] = slot
        return len(slot.tokens)

    def reserved(self, maximum: int) -> KvBudget:
        """Return the part of the KV cache that low-priority sequences must leave alone: the number of idle slots with
        recently used prefixes of normal priority, and the number of their pages.

        At most `maximum` slots are counted, the most recently used ones.
        """
        recent = sorted(filter(self._pages.is_recent, self.slots), key=lambda slot: -slot.used)[:maximum]
        return KvBudget(len(recent), self._pages.num_taken(recent))

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        """Search again for a longer cached prefix of a sequence's prompt, which another sequence may have read since
        `acquire`, and copy it to the sequence's slot.

        `sequence` is the id of the sequence, and `prompt` its token ids. Returns how many of the prompt's tokens are in
        the slot afterwards. This must be called before a pass reads any tokens of the prompt. Raises RunnerFailed if
        the device reports an error while the prefix is copied.
        """
        slot = self._running[sequence]
        source, length, slot.num_common = self._longest_past(prompt, slot.salt, is_long=slot.is_long)
        minimum = len(slot.tokens) + self._min_copied
        if source is None or source is slot or length < minimum or not self._pages.can_copy(source, length):
            return len(slot.tokens)
        self._copy(source, slot, length)
        return length

    def find(self, prompt: list[int], salt: str | None) -> int:
        """Return how many tokens of `prompt` would come from a cached prefix if `acquire` were called now, for a
        sequence with the cache salt `salt` that needs the rope factors for short contexts. Changes nothing.
        """
        _, length, _ = self._longest_past(prompt, salt, is_long=False)
        return length

    def has_room(self, sequence: int, num_tokens: int) -> bool:
        """Return whether there is memory for `num_tokens` more tokens of the sequence with the id `sequence`, or for
        this many tokens of a new sequence if no slot belongs to this id.

        The memory of cached prefixes in idle slots counts as free, because these can be evicted.
        """
        return self._pages.has_room(self._running.get(sequence), num_tokens)

    def cut(self, sequence: int, length: int) -> None:
        """Discard all but the first `length` tokens in the slot of a running sequence, whose id is `sequence`.

        If the model has recurrent states, `length` must be 0, the number of all tokens, or a number of tokens after
        which a checkpoint of the states was saved.
        """
        self._cut(self._running[sequence], length)

    def checkpoint(self, sequence: int, *, spacing: int) -> None:
        """Save a checkpoint, a copy of the recurrent states of a sequence after its present tokens. Prompts that begin
        with these tokens can then reuse them. `sequence` is the id of the sequence.

        Nothing is saved if the model has no such states, if the last checkpoint is less than `spacing` tokens away, or
        if there is no memory. Older checkpoints are dropped that are so close to each other that reading the tokens
        between them again costs less than their memory.
        """
        slot = self._running[sequence]
        length = len(slot.tokens)
        if self._states is None or length - max(slot.checkpoints, default=-spacing) < spacing:
            return
        last = length
        for older in sorted(slot.checkpoints, reverse=True)[1:]:
            if last - older < self._states.state_size_in_tokens and not is_common_end(slot.num_common - older):
                del slot.checkpoints[older]
            else:
                last = older
        if self._pages.take_checkpoint():
            slot.checkpoints[length] = self._states.save(slot.index)

    def discard_after_failure(self, sequence: int) -> None:
        """Discard all tokens of a running sequence after a failed pass, which may have changed the sequence's recurrent
        states. `sequence` is the id of the sequence.

        If the model has no recurrent states, nothing is discarded: the tokens that were read before the pass are still
        valid.
        """
        if self._states is not None:
            self._running[sequence].empty()

    def reserve(self, sequence: int, num_tokens: int) -> None:
        """Get memory for the next `num_tokens` tokens of the sequence with the id `sequence`, before a pass reads them.
        Cached prefixes are evicted if necessary.

        The scheduler must have made sure that there is enough memory; for a single token there always is.
        """
        slot = self._running[sequence]
        slot.num_coming = num_tokens
        self._pages.take(slot)

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        """Record that a pass has written the keys and values of `tokens` to the slot of the sequence with the id
        `sequence`, after the tokens that the slot had before.
        """
        slot = self._running[sequence]
        slot.tokens += tokens
        slot.num_coming = 0
        self._pages.take(slot)

    def add_loaded(self, sequence: int, tokens: list[int], saved: Saved | None) -> None:
        """Record that the keys and values of `tokens` were loaded from disk into the slot of the sequence with the id
        `sequence`, after the tokens that the slot had before.

        `saved` are the recurrent states after the last of these tokens, which become the states of the slot and a
        checkpoint; None if the model has none.
        """
        self.append(sequence, tokens)
        if self._states is not None and saved is not None:
            slot = self._running[sequence]
            self._states.load(slot.index, saved)
            self._copy_checkpoint(slot, len(slot.tokens), saved)

    def release(self, sequence: int) -> None:
        """Make the slot of a sequence idle, because the sequence has ended or is preempted. `sequence` is its id. The
        tokens stay as a cached prefix until the slot or its memory is needed.
        """
        slot = self._running.pop(sequence)
        slot.sequence, slot.num_coming = None, 0
        self._use(slot)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that all slots and their state checkpoints have at the moment."""
        return self._pages.num_bytes

    def fit(self) -> None:
        """Evict cached prefixes until all slots have no more memory than the limit. To be called after the limit was
        made smaller.
        """
        self._pages.make_room(0)

    def forget(self) -> int:
        """Discard the cached prefixes of all idle slots. Returns how many prefixes these were."""
        idle = [slot for slot in self.slots if slot.sequence is None and slot.tokens]
        for slot in idle:
            slot.empty()
        return len(idle)

    def _use(self, slot: Slot) -> None:
        self._num_uses += 1
        slot.used, slot.used_at = self._num_uses, self._clock()

    def _cut(self, slot: Slot, length: int) -> None:
        """Discard all but the first `length` tokens of a slot. If the model has recurrent states, set them to the
        states after these tokens, from the checkpoint that was saved there.
        """
        if self._states is not None:
            if length == 0:
                self._states.clear(slot.index)
            elif length < len(slot.tokens):
                self._states.load(slot.index, slot.checkpoints[length])
        slot.tokens = slot.tokens[:length]
        slot.checkpoints = {position: saved for position, saved in slot.checkpoints.items() if position <= length}

    def _copy(self, source: Slot, target: Slot, length: int) -> None:
        """Copy the first `length` tokens of the slot `source`, with their keys, values and recurrent states, to the
        slot `target`, whose own tokens are replaced. Raises RunnerFailed if the device reports an error; `target` then
        keeps the tokens that it had.
        """
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
        """Replace all state checkpoints of a slot with a single one, after the slot's first `length` tokens.

        `saved` are the recurrent states after these tokens. If `saved` is None, or there is no memory for a checkpoint,
        the slot has no checkpoint afterwards.
        """
        slot.checkpoints = {}
        if saved is not None and self._pages.take_checkpoint():
            slot.checkpoints[length] = saved

    def _longest_past(self, prompt: list[int], salt: str | None, *, is_long: bool) -> tuple[Slot | None, int, int]:
        """Find the slot with the longest prefix that a prompt can reuse.

        Returns three values: the slot, or None if there is none; the number of its tokens that can be reused; and the
        length of the longest prefix that the prompt has in common with any slot, which may be longer if the model has
        recurrent states. Only slots with an equal `salt` and `is_long` count. Among equally good slots, an idle one is
        chosen, because its memory can be used without a copy.
        """
        maximum = max(0, len(prompt) - 2)
        best: tuple[Slot | None, int] = (None, 0)
        longest = 0
        for slot in sorted(self.slots, key=lambda slot: slot.sequence is not None):
            if (slot.salt, slot.is_long) != (salt, is_long):
                continue
            common = min(maximum, common_prefix_length(prompt, slot.tokens))
            length, longest = self._usable(slot, common), max(longest, common)
            if length > best[1]:
                best = (slot, length)
        return *best, longest

    def _usable(self, slot: Slot, num_tokens: int) -> int:
        """Return how many of a slot's first `num_tokens` tokens another sequence can reuse.

        Without recurrent states, these are all. With recurrent states, the reused tokens must end at a state checkpoint
        or at the slot's last token.
        """
        if self._states is None:
            return num_tokens
        lengths = (*slot.checkpoints, len(slot.tokens))
        return max((length for length in lengths if length <= num_tokens), default=0)
