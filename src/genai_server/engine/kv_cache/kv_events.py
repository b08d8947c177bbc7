"""Publishes which blocks of tokens are in the KV cache slots, for routers that choose among replicas.

The hash of a block is that of vLLM 0.32 with `--prefix-caching-hash-algo sha256_cbor` and PYTHONHASHSEED=0: SHA-256 of
the CBOR encoding of the previous block's hash, the block's tokens and the cache salt. Events have the last 64 bits of
it.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from genai_server.engine.kv_cache.block_changes import CachedBlocks, StoredBlocks
from genai_server.engine.kv_cache.kv_slots import Slot
from genai_server.errors import ConfigurationError
from genai_server.messages.prefix_cache import (
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
    """Return the hash that the first block of every prompt has in place of a previous block's hash."""
    return _digest(_SEED)


def block_hash(parent: bytes, tokens: Sequence[int], salt: str | None) -> bytes:
    """Return the hash of a block of tokens after the block with the hash `parent`.

    `salt` is the cache salt for the first block of a prompt, and None for all others.
    """
    return _digest((parent, tuple(tokens), None if salt is None else (("cache_salt", salt),)))


def external(digest: bytes) -> int:
    """Return the last 64 bits of a hash, as events have it."""
    return int.from_bytes(digest[-8:], "big")


def _digest(value: object) -> bytes:
    import cbor2

    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


class BlockEvents:
    """Creates the events about blocks of tokens that the KV cache slots `slots` store and remove, for the model named
    `model`.

    A block in several slots counts once.
    """

    def __init__(self, slots: Sequence[Slot], model: str = "") -> None:
        self._model = model
        first = first_parent()

        def hash_block(parent: bytes | None, tokens: Sequence[int], slot: Slot) -> bytes:
            return block_hash(first, tokens, slot.salt) if parent is None else block_hash(parent, tokens, None)

        self._blocks = CachedBlocks(slots, hash_block)

    def changes(self) -> list[KvEvent]:
        """Return events for the blocks that were stored and removed since the last call."""
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
    """Publishes over ZeroMQ which blocks of tokens the given KV cache slots store and remove. Used only by the thread
    that has created it.

    Raises ConfigurationError if the configured address cannot be used.
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
        """Close the socket. Nothing can be published afterwards."""
        self._socket.close()

    def publish(self) -> None:
        """Publish which blocks were stored and removed since the last call, if there are any. A slow subscriber loses
        events.
        """
        if events := self._blocks.changes():
            payload = msgspec.msgpack.encode(KvEventBatch(self._clock(), events, self._rank))
            self._socket.send_multipart([self._topic, next(self._numbers).to_bytes(8, "big"), payload])
