"""Memory of the KV cache slots: pages that they share, and the order in which cached prefixes lose theirs.

A row takes pages as tokens are added, and keeps them until another row needs memory. Pages are then freed in this
order: pages behind a row's cached tokens, cached prefixes that another row begins with, those of the background, and
others by their last use. State checkpoints take pages, too. Those of running sequences are dropped last.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

from genai_server.engine.kv_cache.kv_slot import Slot
from genai_server.engine.scheduling.scheduler_output import KvMemory


class KvPages:
    """The pages of one list of slots.

    `give_back` is called with a slot and the first token behind its pages, and gives that memory back to the system.
    """

    def __init__(self, slots: list[Slot], memory: KvMemory, give_back: Callable[[int, int], None]) -> None:
        self._slots = slots
        self._memory = memory
        self._give_back = give_back
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

    def cached(self) -> list[Slot]:
        """The idle slots with cached prefixes, in the order of eviction."""
        # In alphabetical order, tokens which others begin with come right before one of these.
        kept = sorted((slot for slot in self._slots if slot.tokens), key=lambda s: (s.salt or "", s.tokens))
        repeated = {one.index for one, other in pairwise(kept) if other.begins_with(one)}
        idle = [slot for slot in kept if slot.sequence is None]
        return sorted(idle, key=lambda slot: (slot.index not in repeated, not slot.background, slot.used))

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
