"""Finds out which full blocks of tokens are in the KV cache slots, and which were added and removed.

API processes choose an engine, and routers a replica, by these blocks: one that has most of a prompt in its KV cache.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from genai_server.engine.kv_cache.kv_slots import Slot
from genai_server.engine.sequence import common_length
from genai_server.messages.prefix_cache import BLOCK_TOKENS, block_digest, root_digest

# Gives the hash of a block: from the hash of the block before it, None for a slot's first one; its tokens; the slot.
HashBlock = Callable[[bytes | None, Sequence[int], Slot], bytes]


@dataclass(frozen=True)
class StoredBlocks:
    """Consecutive blocks of tokens that one slot has stored, and that were in no slot before."""

    hashes: list[bytes]
    # The hash of the block before the first one; None at the beginning of a prompt.
    parent: bytes | None
    # The tokens of all these blocks.
    tokens: list[int]
    # The name of the adapter with which the blocks were read; None without an adapter.
    adapter: str | None


@dataclass(frozen=True)
class BlockChanges:
    """Blocks that were stored, and hashes of blocks that were removed, since the last report. No block is in both
    lists.
    """

    stored: list[StoredBlocks]
    removed: list[bytes]


@dataclass
class _Chain:
    """The hashes of the full blocks that one slot had when it was last checked, with the slot's tokens and cache salt
    then.
    """

    # The very list of the slot. A slot only appends to its list; for every other change it gets another list.
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    hashes: list[bytes] = field(default_factory=list)


class CachedBlocks:
    """Finds out which full blocks of tokens are in the KV cache slots `slots`. A block in several slots counts once.

    `hash_block` returns the hash of a block. A slot with a block also has all blocks of the prompt before it.
    """

    def __init__(self, slots: Sequence[Slot], hash_block: HashBlock) -> None:
        self._chains = [(slot, _Chain()) for slot in slots]
        self._hash_block = hash_block
        self._holders: Counter[bytes] = Counter()

    @property
    def hashes(self) -> Collection[bytes]:
        """Hashes of the blocks that were in the slots at the last call of `changes`."""
        return self._holders.keys()

    def changes(self) -> BlockChanges:
        """Return the blocks that the slots have stored and removed since the last call."""
        stored: list[StoredBlocks] = []
        dropped: list[bytes] = []
        for slot, chain in self._chains:
            num_blocks = len(slot.tokens) // BLOCK_TOKENS
            if slot.tokens is chain.tokens and num_blocks == len(chain.hashes):
                continue
            kept = self._num_kept(slot, chain)
            dropped += chain.hashes[kept:]
            chain.hashes = chain.hashes[:kept]
            chain.tokens, chain.salt = slot.tokens, slot.salt
            stored += self._add(slot, chain, num_blocks)
        self._holders.subtract(dropped)
        removed = [block for block in dict.fromkeys(dropped) if not self._holders[block]]
        for block in removed:
            del self._holders[block]
        return BlockChanges(stored, removed)

    def _num_kept(self, slot: Slot, chain: _Chain) -> int:
        if slot.tokens is chain.tokens:
            return len(chain.hashes)
        if slot.salt != chain.salt:
            return 0
        return min(len(chain.hashes), common_length(slot.tokens, chain.tokens) // BLOCK_TOKENS)

    def _add(self, slot: Slot, chain: _Chain, num_blocks: int) -> list[StoredBlocks]:
        """Compute the hashes of those of a slot's first `num_blocks` blocks that `chain` lacks, and append them to
        `chain`.

        Returns a list with the blocks that were in no slot before; empty if there are none. As a slot with a block has
        all blocks before it, these are the last ones.
        """
        parent = chain.hashes[-1] if chain.hashes else None
        new: list[bytes] = []
        for index in range(len(chain.hashes), num_blocks):
            tokens = chain.tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
            if min(tokens) < 0:  # a feature of an image; others do not know its id
                break
            block = self._hash_block(parent, tokens, slot)
            if not self._holders[block]:
                new.append(block)
            self._holders[block] += 1
            chain.hashes.append(block)
            parent = block
        if not new:
            return []
        first, end = len(chain.hashes) - len(new), len(chain.hashes)
        before = chain.hashes[first - 1] if first else None
        return [StoredBlocks(new, before, chain.tokens[first * BLOCK_TOKENS : end * BLOCK_TOKENS], slot.adapter)]


def prefix_digest(parent: bytes | None, tokens: Sequence[int], slot: Slot) -> bytes:
    """Return the hash of a block of tokens in a slot, which API processes compute in the same way for the blocks of a
    prompt (messages/prefix_cache.py).

    `parent` is the hash of the block before it; None for the first block of the slot.
    """
    return block_digest(_root(slot) if parent is None else parent, tokens)


def _root(slot: Slot) -> bytes:
    """Return the digest from which the hashes of all blocks in a slot are derived, by the request's cache salt and
    adapter name.

    API processes know an adapter's name but not the digest of its file, which is at the end of the slot's salt.
    """
    if slot.adapter is None:
        return root_digest(slot.salt, None)
    return root_digest((slot.salt or "").rpartition(":")[0] or None, slot.adapter)
