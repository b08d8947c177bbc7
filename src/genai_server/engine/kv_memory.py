"""How much memory the keys and values of a batch may take, counted in pages of tokens."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class KvMemory:
    """Memory that KV cache slots share by need. Each slot has one page of its own; all other pages are shared."""

    # Tokens of a page. Their keys and values are whole pages of the system's memory in each layer and head.
    page_tokens: int
    # Pages that all slots share.
    num_pages: int

    def pages(self, num_tokens: int) -> int:
        """Shared pages of a slot with so many cached tokens, and with the one that a padding row writes behind them."""
        return num_tokens // self.page_tokens

    def num_tokens(self, num_slots: int) -> int:
        """Tokens that all pages of so many slots hold; 0 where nothing is shared."""
        return (self.num_pages + num_slots) * self.page_tokens if self.num_pages else 0


# Slots that share nothing: the page of each has room for any sequence.
UNSHARED = KvMemory(sys.maxsize, 0)
