"""Publishes which blocks of tokens are cached in the KV cache slots, for routers that choose among replicas.

The hash of a block is that of vLLM 0.32 with `--prefix-caching-hash-algo sha256_cbor` and PYTHONHASHSEED=0: SHA-256
over the CBOR encoding of the previous block's hash, the block's tokens and the cache salt. Events have the last 64
bits.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from genai_server.engine.kv_cache.kv_slots import Slot
from genai_server.engine.sequence import common_length
from genai_server.errors import ConfigurationError
from genai_server.messages.kv_events import (
    BLOCK_TOKENS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvEventTarget,
)

log = logging.getLogger(__name__)
# PYTHONHASHSEED of the vLLM whose hashes these are.
_SEED = "0"
# Batches that a subscriber may be behind before it loses some, as in vLLM.
_HIGH_WATER_MARK = 100_000


def first_parent() -> bytes:
    """Hash that stands for the block before the first block of every prompt."""
    return _digest(_SEED)


def block_hash(parent: bytes, tokens: Sequence[int], salt: str | None) -> bytes:
    """Hash of a block of tokens. `salt` is given only for the first block of a prompt."""
    return _digest((parent, tuple(tokens), None if salt is None else (("cache_salt", salt),)))


def external(digest: bytes) -> int:
    """The last 64 bits of a hash, as they appear in events."""
    return int.from_bytes(digest[-8:], "big")


def _digest(value: object) -> bytes:
    import cbor2

    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


@dataclass
class _Chain:
    """Full blocks of one slot when the slot was last examined."""

    # The slot's list itself. Slots only append to a list; whatever else they change, they have another list.
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    adapter: str | None = None
    hashes: list[bytes] = field(default_factory=list)


class CachedBlocks:
    """Finds the changes in the blocks that some slots of a model hold. A block that several slots hold counts once."""

    def __init__(self, slots: Sequence[Slot], model: str = "") -> None:
        self._model = model
        self._chains = [(slot, _Chain()) for slot in slots]
        self._first_parent = first_parent()
        self._holders: Counter[bytes] = Counter()

    def changes(self) -> list[KvEvent]:
        """Events for the blocks that were stored and removed since the last call."""
        events: list[KvEvent] = []
        dropped: list[bytes] = []
        for slot, chain in self._chains:
            num_blocks = len(slot.tokens) // BLOCK_TOKENS
            if slot.tokens is chain.tokens and num_blocks == len(chain.hashes):
                continue
            kept = self._num_kept(slot, chain)
            dropped += chain.hashes[kept:]
            chain.hashes = chain.hashes[:kept]
            chain.tokens, chain.salt, chain.adapter = slot.tokens, slot.salt, slot.adapter
            events += self._add(chain, num_blocks)
        self._holders.subtract(dropped)
        if removed := [digest for digest in dict.fromkeys(dropped) if not self._holders[digest]]:
            for digest in removed:
                del self._holders[digest]
            events.append(BlockRemoved([external(digest) for digest in removed]))
            if not self._holders:
                events.append(AllBlocksCleared())
        return events

    def _num_kept(self, slot: Slot, chain: _Chain) -> int:
        if slot.tokens is chain.tokens:
            return len(chain.hashes)
        if slot.salt != chain.salt:
            return 0
        return min(len(chain.hashes), common_length(slot.tokens, chain.tokens) // BLOCK_TOKENS)

    def _add(self, chain: _Chain, num_blocks: int) -> list[KvEvent]:
        """Hash the new blocks of a slot. Returns the event for blocks that no slot had before, or no event.

        If a slot has a block, it has all blocks before that block. So the blocks that no slot had are the last ones.
        """
        parent = chain.hashes[-1] if chain.hashes else self._first_parent
        stored: list[bytes] = []
        for index in range(len(chain.hashes), num_blocks):
            tokens = chain.tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
            if min(tokens) < 0:  # a feature of an image; routers do not know its id
                break
            digest = block_hash(parent, tokens, None if index else chain.salt)
            if not self._holders[digest]:
                stored.append(digest)
            self._holders[digest] += 1
            chain.hashes.append(digest)
            parent = digest
        if not stored:
            return []
        first, end = len(chain.hashes) - len(stored), len(chain.hashes)
        return [
            BlockStored(
                [external(digest) for digest in stored],
                external(chain.hashes[first - 1]) if first else None,
                chain.tokens[first * BLOCK_TOKENS : end * BLOCK_TOKENS],
                lora_name=None if chain.adapter is None else f"{self._model}:{chain.adapter}",
            )
        ]


class KvEventPublisher:
    """Publishes the changes in some slots with ZeroMQ. Only the thread that creates a publisher may use it.

    Raises ConfigurationError if the address cannot be used.
    """

    def __init__(self, target: KvEventTarget, slots: Sequence[Slot], clock: Callable[[], float] = time.time) -> None:
        import zmq

        self._blocks = CachedBlocks(slots, target.model)
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
        """Close the socket; nothing is published any more."""
        self._socket.close()

    def publish(self) -> None:
        """Publish the changes since the last call, if there are any. A subscriber that is too slow loses events."""
        if events := self._blocks.changes():
            payload = msgspec.msgpack.encode(KvEventBatch(self._clock(), events, self._rank))
            self._socket.send_multipart([self._topic, next(self._numbers).to_bytes(8, "big"), payload])
