"""Memory of the KV cache slots: pages that they share, and the order in which cached prefixes lose theirs.

A row takes pages as tokens are added, and keeps them until another row needs memory. Pages are then freed in this
order: pages behind a row's cached tokens, cached prefixes that another row begins with, those of the background, those
beyond their tenants' shares, and others, each by their last use. State checkpoints take pages, too. Those of running
sequences are dropped last.

The tenants of all running sequences and recent prefixes have equal shares of rows and pages. The running sequences of a
tenant are in its share first, and then its prefixes, those used last before others. A prefix that nobody has used
recently is in nobody's share.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

from genai_server.engine.kv_cache.kv_slot import Slot
from genai_server.engine.scheduling.scheduler_output import KvMemory
from genai_server.timing import Clock

# Seconds after its last use for which a cached prefix may be in its tenant's share, and for which sequences of the
# background leave it alone.
KEPT_SECONDS = 300.0


class KvPages:
    """The pages of one list of slots.

    `give_back` is called with a slot and the first token behind its pages, and gives that memory back to the system.
    """

    def __init__(
        self, slots: list[Slot], memory: KvMemory, give_back: Callable[[int, int], None], clock: Clock
    ) -> None:
        self._slots = slots
        self._memory = memory
        self._give_back = give_back
        self._clock = clock
        self._pages = [0] * len(slots)  # the pages that each row has, without those of checkpoints

    @property
    def num_bytes(self) -> int:
        """Bytes that the slots have taken."""
        return self._memory.own_bytes + self.num_used * self._memory.page_bytes

    @property
    def num_used(self) -> int:
        """Pages that the slots and their checkpoints have."""
        num_checkpoints = sum(len(slot.checkpoints) for slot in self._slots)
        return sum(self._pages) + num_checkpoints * self._memory.checkpoint_pages

    def num_taken(self, slots: Iterable[Slot]) -> int:
        """Pages that these slots have, without those of their checkpoints."""
        return sum(self._pages[slot.index] for slot in slots)

    def has_room(self, slot: Slot | None, num_tokens: int) -> bool:
        """Whether there is memory for further tokens of a running slot, or of a new one, next to all running ones."""
        known, has = (0, 0) if slot is None else (len(slot.tokens), self._needed(slot))
        return self._memory.pages(known + num_tokens) - has <= self._free()

    def can_copy(self, source: Slot, length: int) -> bool:
        """Whether a copy of a slot's first tokens fits next to the slot itself and all running ones."""
        return self._memory.pages(length) <= self._free(source)

    def take(self, slot: Slot, *keep: Slot) -> None:
        """Count the pages that a slot's tokens need. They are freed elsewhere, but not in running slots and `keep`."""
        needed = self._needed(slot)
        if (missing := needed - self._pages[slot.index]) > 0:
            self.make_room(missing, *keep)
            self._pages[slot.index] = needed

    def take_checkpoint(self) -> bool:
        """Free pages for one more checkpoint; returns False, and frees none, if there is no memory for it."""
        if self._memory.checkpoint_pages > self._free():
            return False
        self.make_room(self._memory.checkpoint_pages)
        return True

    def make_room(self, num_pages: int, *keep: Slot) -> None:
        """Free pages until this number is free, but nothing of what lies in running slots and `keep`."""
        most = self._memory.num_pages - num_pages
        for slot in self._slots:
            if self.num_used <= most:
                return
            self._trim(slot)
        for slot in self.cached():
            if self.num_used <= most:
                return
            if slot not in keep:
                slot.empty()
                self._trim(slot)
        for slot in self._slots:
            if self.num_used <= most:
                return
            slot.checkpoints = {}

    def cached(self, tenant: str | None = None) -> list[Slot]:
        """The idle slots with cached prefixes in the order of eviction; `tenant` is that of a new sequence, if any."""
        # In alphabetical order, tokens which others begin with come right before one of these.
        kept = sorted((slot for slot in self._slots if slot.tokens), key=lambda s: (s.salt or "", s.tokens))
        repeated = {one.index for one, other in pairwise(kept) if other.begins_with(one)}
        idle = [slot for slot in kept if slot.sequence is None]
        kept_by_share = self._within_shares(tenant)
        return sorted(
            idle,
            key=lambda slot: (
                slot.index not in repeated,
                not slot.background,
                slot.index in kept_by_share,
                slot.used,
            ),
        )

    def is_recent(self, slot: Slot) -> bool:
        """Whether an idle slot has a prefix that others than the background have used recently."""
        is_cached = slot.sequence is None and bool(slot.tokens) and not slot.background
        return is_cached and slot.used_at > self._clock() - KEPT_SECONDS

    def _within_shares(self, newcomer: str | None) -> set[int]:
        """The slots with prefixes within the shares of their tenants; none if there is one tenant.

        A new sequence of the tenant `newcomer` has no slot yet. None for no such sequence, or one of the background.
        """
        running = [slot for slot in self._slots if slot.sequence is not None and not slot.background]
        recent = sorted(filter(self.is_recent, self._slots), key=lambda slot: slot.used, reverse=True)
        # Slots and pages.
        held = {slot.tenant: (0, 0) for slot in (*running, *recent)}
        if newcomer is not None:
            held[newcomer] = (1, 0)
        if len(held) < 2:
            return set()
        most_slots, most_pages = max(1, len(self._slots) // len(held)), self._memory.num_pages // len(held)
        found: set[int] = set()
        for slot in (*running, *recent):
            num_slots, num_pages = held[slot.tenant]
            num_pages += max(self._pages[slot.index], self._needed(slot))
            held[slot.tenant] = num_slots, num_pages = num_slots + 1, num_pages
            if slot.sequence is None and num_slots <= most_slots and num_pages <= most_pages:
                found.add(slot.index)
        return found

    def _free(self, *keep: Slot) -> int:
        """Pages that neither the running slots' tokens nor those of some other slots need."""
        return self._memory.num_pages - sum(
            self._needed(slot) for slot in self._slots if slot.sequence is not None or slot in keep
        )

    def _needed(self, slot: Slot) -> int:
        return self._memory.pages(len(slot.tokens) + slot.num_coming)

    def _trim(self, slot: Slot) -> None:
        """Give back the pages behind a slot's tokens."""
        needed = self._needed(slot)
        if needed < self._pages[slot.index]:
            self._pages[slot.index] = needed
            self._give_back(slot.index, (needed + 1) * self._memory.page_tokens)
