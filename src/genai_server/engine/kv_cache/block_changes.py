"""Follows which full blocks of tokens the KV cache slots hold.

API processes choose an engine, and routers choose a replica, by the blocks of a prompt that the KV cache holds already.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from genai_server.engine.kv_cache.kv_slots import Slot
from genai_server.engine.sequence import common_length
from genai_server.messages.kv_events import BLOCK_TOKENS
from genai_server.messages.prefix_digests import block_digest, root_digest

# Gives the hash of a block: from the hash of the block before it, None for a slot's first one; its tokens; the slot.
HashBlock = Callable[[bytes | None, Sequence[int], Slot], bytes]


@dataclass(frozen=True)
class StoredBlocks:
    """Consecutive blocks of tokens that one slot has stored, and that no slot had before."""

    hashes: list[bytes]
    # The hash of the block before the first one; None at the beginning of a prompt.
    parent: bytes | None
    # The tokens of all these blocks.
    tokens: list[int]
    # The adapter that the blocks were read with; None without one.
    adapter: str | None


@dataclass(frozen=True)
class BlockChanges:
    """Blocks that were stored, and hashes of blocks that were removed. No block is in both lists."""

    stored: list[StoredBlocks]
    removed: list[bytes]


@dataclass
class _Chain:
    """Hashes of the full blocks that one slot had when it was last examined, with the slot's tokens and cache salt."""

    # The slot's list itself. Slots only append to a list; whatever else they change, they have another list.
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    hashes: list[bytes] = field(default_factory=list)


class CachedBlocks:
    """Follows which full blocks of tokens the given slots hold. A block that several slots hold counts once.

    `hash_block` returns the hash of a block. A slot that holds a block also holds all blocks of the prompt before it.
    """

    def __init__(self, slots: Sequence[Slot], hash_block: HashBlock) -> None:
        self._chains = [(slot, _Chain()) for slot in slots]
        self._hash_block = hash_block
        self._holders: Counter[bytes] = Counter()

    @property
    def hashes(self) -> Collection[bytes]:
        """Hashes of the blocks that the slots held at the last call of `changes`."""
        return self._holders.keys()

    def changes(self) -> BlockChanges:
        """Blocks that the slots have stored and removed since the last call of this method."""
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
        """Hash those of a slot's first `num_blocks` blocks that `chain` does not have yet, and add them to `chain`.

        Returns a list with the blocks that no slot had before; empty if there are none. A slot that has a block has all
        blocks before that block, so the blocks that no slot had are the last ones.
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
    """Hash of a block of tokens in a slot, as API processes compute it for a prompt (messages/prefix_digests.py).

    `parent` is the hash of the block before; None for the first block of the slot.
    """
    return block_digest(_root(slot) if parent is None else parent, tokens)


def _root(slot: Slot) -> bytes:
    """Digest from which the digests of all blocks of a slot are derived: that of the cache salt and adapter name.

    API processes know the name of an adapter, but not the digest of its file, with which the slot's salt ends.
    """
    if slot.adapter is None:
        return root_digest(slot.salt, None)
    return root_digest((slot.salt or "").rpartition(":")[0] or None, slot.adapter)
