"""Finds out which full blocks of tokens are in the KV cache slots, and reports the blocks that were added and removed.

The reports have two kinds of readers, and both use them to find a KV cache that already has most of a prompt. API
processes of this server choose an engine for each request; they receive the changes that `CachedBlocks` returns.
Routers outside this server choose among its replicas; they receive events over ZeroMQ from `KvEventPublisher`, in the
format of vLLM.

The hash of a block in an event is that of vLLM 0.32 with `--prefix-caching-hash-algo sha256_cbor` and PYTHONHASHSEED=0:
SHA-256 of the CBOR encoding of the previous block's hash, the block's tokens and the cache salt. An event has the last
64 bits of the hash.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from genai_server.engine.kv_cache.kv_slots import Slot
from genai_server.engine.sequence import common_prefix_length
from genai_server.errors import ConfigurationError
from genai_server.messages.prefix_cache import (
    BLOCK_TOKENS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvEventTarget,
    block_digest,
    root_digest,
)

log = logging.getLogger(__name__)
# Gives the hash of a block: from the hash of the block before it, None for a slot's first one; its tokens; the slot.
HashBlock = Callable[[bytes | None, Sequence[int], Slot], bytes]
# PYTHONHASHSEED of the vLLM whose hashes these are.
_SEED = "0"
# Batches that a subscriber may be behind before it loses some, as in vLLM.
_HIGH_WATER_MARK = 100_000


@dataclass(frozen=True)
class StoredBlocks:
    """Consecutive blocks of tokens that one KV cache slot has stored since the last report, and that were in no slot
    before.
    """

    hashes: list[bytes]
    # The hash of the block before the first one; None at the beginning of a prompt.
    parent: bytes | None
    # The tokens of all these blocks.
    tokens: list[int]
    # The name of the adapter with which the blocks were read; None without an adapter.
    adapter: str | None


@dataclass(frozen=True)
class BlockChanges:
    """The changes of the KV cache since the last report: blocks that were stored, and hashes of blocks that are in no
    slot any more. No block is in both lists.
    """

    stored: list[StoredBlocks]
    removed: list[bytes]


@dataclass
class _Chain:
    """What `CachedBlocks` knows of one KV cache slot: the hashes of the full blocks that the slot had when it was last
    checked, and the tokens and the cache salt that it had at that time.
    """

    # The very list of the slot. A slot only appends to its list; for every other change it gets another list.
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    hashes: list[bytes] = field(default_factory=list)


class CachedBlocks:
    """Finds out which full blocks of tokens the KV cache slots `slots` have, by comparing each slot with its state at
    the last call of `changes`. A block in several slots counts once.

    `hash_block` returns the hash of a block: its arguments are the hash of the block before it (None for a slot's first
    block), the block's tokens, and the slot. The hash stands for all tokens up to the end of the block, so a slot that
    has a block also has all blocks of the prompt before it.
    """

    def __init__(self, slots: Sequence[Slot], hash_block: HashBlock) -> None:
        self._chains = [(slot, _Chain()) for slot in slots]
        self._hash_block = hash_block
        self._holders: Counter[bytes] = Counter()

    @property
    def hashes(self) -> Collection[bytes]:
        """The hashes of all blocks that were in the slots when `changes` was last called."""
        return self._holders.keys()

    def changes(self) -> BlockChanges:
        """Return the blocks that the slots have stored and removed since the last call of this method. The first call
        returns all blocks in the slots.
        """
        stored: list[StoredBlocks] = []
        dropped: list[bytes] = []
        for slot, chain in self._chains:
            num_blocks = len(slot.tokens) // BLOCK_TOKENS
            if slot.tokens is chain.tokens and num_blocks == len(chain.hashes):
                continue
            num_kept = self._num_kept(slot, chain)
            dropped += chain.hashes[num_kept:]
            chain.hashes = chain.hashes[:num_kept]
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
        return min(len(chain.hashes), common_prefix_length(slot.tokens, chain.tokens) // BLOCK_TOKENS)

    def _add(self, slot: Slot, chain: _Chain, num_blocks: int) -> list[StoredBlocks]:
        """Compute the hashes of those full blocks of a slot that `chain` does not have yet, and append them to `chain`.
        `num_blocks` is the number of full blocks in the slot.

        Returns a list with the blocks that were in no slot before, which are consecutive; an empty list if there are
        none. A block with features of an image, and the blocks after it, are left out, because no other process knows
        the ids of the features.
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
    """Return the hash of a block of tokens in a KV cache slot. API processes compute the same hash for a block of a
    prompt (messages/prefix_cache.py), to find the engine that has it in the KV cache.

    `parent` is the hash of the block before this one; None for the first block of the slot.
    """
    return block_digest(_root(slot) if parent is None else parent, tokens)


def _root(slot: Slot) -> bytes:
    """Return the digest from which the hashes of all blocks in a KV cache slot are derived. It depends on the request's
    cache salt and on the name of the LoRA adapter.

    The slot's own salt ends with the digest of the adapter's file, which is cut off here, because API processes know
    only the adapter's name.
    """
    if slot.adapter is None:
        return root_digest(slot.salt, None)
    return root_digest((slot.salt or "").rpartition(":")[0] or None, slot.adapter)


def first_parent() -> bytes:
    """Return the hash that takes the place of the previous block's hash when the first block of a prompt is hashed for
    an event.
    """
    return _digest(_SEED)


def block_hash(parent: bytes, tokens: Sequence[int], salt: str | None) -> bytes:
    """Return the hash, as vLLM computes it, of a block of tokens that comes after the block with the hash `parent`.

    `salt` is the cache salt of the request. It must be given only for the first block of a prompt, and be None for all
    other blocks and without a salt.
    """
    return _digest((parent, tuple(tokens), None if salt is None else (("cache_salt", salt),)))


def external(digest: bytes) -> int:
    """Return the last 64 bits of the hash `digest` as an integer, which is the form in which events name a block."""
    return int.from_bytes(digest[-8:], "big")


def _digest(value: object) -> bytes:
    import cbor2

    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


class BlockEvents:
    """Creates the events about blocks of tokens that the KV cache slots `slots` store and remove. `KvEventPublisher`
    sends them to routers.

    `model` is the name of the model, with which the name of a LoRA adapter begins in events. A block in several slots
    counts once.
    """

    def __init__(self, slots: Sequence[Slot], model: str = "") -> None:
        self._model = model
        first = first_parent()

        def hash_block(parent: bytes | None, tokens: Sequence[int], slot: Slot) -> bytes:
            return block_hash(first, tokens, slot.salt) if parent is None else block_hash(parent, tokens, None)

        self._blocks = CachedBlocks(slots, hash_block)

    def changes(self) -> list[KvEvent]:
        """Return events for the blocks that were stored and removed since the last call of this method; an empty list
        if nothing has changed.
        """
        changes = self._blocks.changes()
        events: list[KvEvent] = [self._stored(blocks) for blocks in changes.stored]
        if changes.removed:
            events.append(BlockRemoved([external(digest) for digest in changes.removed]))
            if not self._blocks.hashes:
                events.append(AllBlocksCleared())
        return events

    def _stored(self, blocks: StoredBlocks) -> BlockStored:
        return BlockStored(
            [external(digest) for digest in blocks.hashes],
            None if blocks.parent is None else external(blocks.parent),
            blocks.tokens,
            lora_name=None if blocks.adapter is None else f"{self._model}:{blocks.adapter}",
        )


class KvEventPublisher:
    """Publishes over ZeroMQ which blocks of tokens the KV cache slots `slots` store and remove, for routers that choose
    among replicas of the server. The engine's loop calls `publish` after each step. Only the thread that has created
    the object may use it.

    `target` has the settings: address, topic, the name of the model and the number of the engine. `clock` returns the
    time in seconds since 1970 that events get. Raises ConfigurationError if the address cannot be used.
    """

    def __init__(self, target: KvEventTarget, slots: Sequence[Slot], clock: Callable[[], float] = time.time) -> None:
        import zmq

        self._blocks = BlockEvents(slots, target.model)
        self._topic = target.topic.encode()
        self._rank = target.rank
        self._clock = clock
        self._numbers = count()
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.set_hwm(_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            if "*" in target.address:
                self._socket.bind(target.address)
            else:
                self._socket.connect(target.address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConfigurationError(f"GENAI_KV_EVENTS={target.address}: {error}") from None
        log.info("changes of the prefix cache are published at %s, topic %r", target.address, target.topic)

    def close(self) -> None:
        """Close the ZeroMQ socket. Nothing can be published afterwards."""
        self._socket.close()

    def publish(self) -> None:
        """Publish one message about the blocks that were stored and removed since the last call. Does nothing if no
        block was. A subscriber that reads too slowly loses messages.
        """
        if events := self._blocks.changes():
            payload = msgspec.msgpack.encode(KvEventBatch(self._clock(), events, self._rank))
            self._socket.send_multipart([self._topic, next(self._numbers).to_bytes(8, "big"), payload])
