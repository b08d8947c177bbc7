"""The memory for keys and values of a batch, counted in pages of tokens."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class KvMemory:
    """Memory that KV cache slots share. Each slot has one page of its own; slots get the other pages on demand."""

    # Tokens of a page. In each layer and head, their keys and values fill pages of the system's memory exactly.
    page_tokens: int
    # Pages that all slots share.
    num_pages: int
    # Pages of a state checkpoint (engine/runners/kv_cache.py); 0 for a model without states of fixed size.
    checkpoint_pages: int = 0

    def pages(self, num_tokens: int) -> int:
        """Shared pages of a slot with this number of cached tokens, plus one token that a padding row writes."""
        return num_tokens // self.page_tokens

    def num_tokens(self, num_slots: int) -> int:
        """Capacity of all pages of this number of slots, in tokens; 0 if nothing is shared."""
        is_shared = self.num_pages and self.page_tokens < UNSHARED.page_tokens
        return (self.num_pages + num_slots) * self.page_tokens if is_shared else 0


# Slots that share nothing: the page of each is large enough for any sequence.
UNSHARED = KvMemory(sys.maxsize, 0)
