"""Events about the prefix cache match the contents of the slots, in vLLM's form and with vLLM's hashes."""

import hashlib
import random
import struct
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest

from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.scheduling.scheduler_output import KvMemory
from genai_server.errors import ConfigurationError
from genai_server.messages.prefix_cache import (
    BLOCK_TOKENS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvEventTarget,
)
from tests.engine.kv_cache.no_buffers import NoBuffers
from tests.running_server import free_port

pytest.importorskip("cbor2")
zmq = pytest.importorskip("zmq")

from genai_server.engine.kv_cache.kv_events import BlockEvents, KvEventPublisher, block_hash, first_parent  # noqa: E402

LONG = list(range(1, 5 * BLOCK_TOKENS))


class Subscriber:
    """A router's view of one replica, built from its events."""

    def __init__(self) -> None:
        # The complete prefix that ends with each block, by the block's hash.
        self.prefixes: dict[int, tuple[int, ...]] = {}

    def receive(self, events: Sequence[KvEvent]) -> None:
        for event in events:
            match event:
                case BlockStored(hashes, parent, tokens, size):
                    prefix = () if parent is None else self.prefixes[parent]
                    assert len(tokens) == size * len(hashes)
                    for index, known in enumerate(hashes):
                        assert known not in self.prefixes
                        prefix += tuple(tokens[index * size : (index + 1) * size])
                        self.prefixes[known] = prefix
                case BlockRemoved(hashes):
                    for known in hashes:
                        del self.prefixes[known]
                case AllBlocksCleared():
                    assert not self.prefixes


def cached(slots: KvSlots) -> set[tuple[int, ...]]:
    """The prefixes of complete blocks in the slots."""
    ends = range(BLOCK_TOKENS, len(LONG) + 1, BLOCK_TOKENS)
    return {tuple(slot.tokens[:end]) for slot in slots.slots for end in ends if end <= len(slot.tokens)}


def test_hashes_are_vllms_over_cbor() -> None:
    first = hashlib.sha256(b"\x61\x30").digest()  # the text "0"
    assert first_parent() == first
    # An array of 16 small numbers behind the parent; the salt is a list of one pair.
    block = b"\x83\x58\x20" + first + b"\x90" + bytes(range(1, 17))
    for salt, encoded in ((None, b"\xf6"), ("s", b"\x81\x82\x6acache_salt\x61s")):
        assert block_hash(first, list(range(1, 17)), salt) == hashlib.sha256(block + encoded).digest()


def test_prompt_blocks_are_stored_as_read_and_removed_on_forget() -> None:
    slots = KvSlots(2, NoBuffers())
    blocks = BlockEvents(slots.slots)
    slots.acquire(1, LONG)
    assert blocks.changes() == []
    slots.append(1, LONG[:40])
    (first,) = blocks.changes()
    assert isinstance(first, BlockStored)
    assert first == BlockStored(first.block_hashes, None, LONG[:32])
    assert len(first.block_hashes) == 2
    assert blocks.changes() == []
    slots.append(1, LONG[40:50])
    (second,) = blocks.changes()
    assert isinstance(second, BlockStored)
    assert second == BlockStored(second.block_hashes, first.block_hashes[-1], LONG[32:48])
    slots.release(1)
    assert blocks.changes() == []
    slots.forget()
    assert blocks.changes() == [BlockRemoved(first.block_hashes + second.block_hashes), AllBlocksCleared()]


def test_blocks_of_an_adapter_have_its_name() -> None:
    slots = KvSlots(2, NoBuffers())
    blocks = BlockEvents(slots.slots, "demo")
    for sequence, salt, adapter in ((1, None, None), (2, ":digest", "lively")):
        slots.acquire(sequence, LONG, salt=salt)
        slots.of(sequence).adapter = adapter
        slots.append(sequence, LONG)
    names = [event.lora_name for event in blocks.changes() if isinstance(event, BlockStored)]
    assert names == [None, "demo:lively"]


@pytest.mark.parametrize("seed", range(6))
def test_router_state_always_matches_the_slots(seed: int) -> None:
    chance, slots = random.Random(seed), KvSlots(4, NoBuffers(), memory=KvMemory(16, 12))
    blocks, router = BlockEvents(slots.slots), Subscriber()
    prefixes = [[chance.randrange(9) for _ in range(chance.randrange(20, 60))] for _ in range(3)]
    running: dict[int, list[int]] = {}
    for number in range(300):
        if len(running) < 2 and chance.random() < 0.5:
            running[number] = [*chance.choice(prefixes), number]
            slots.acquire(number, running[number])
        elif running:
            sequence = chance.choice(list(running))
            have = len(slots.of(sequence).tokens)
            if have >= 64 or chance.random() < 0.2:
                slots.release(sequence)
                del running[sequence]
            else:
                more = running[sequence][have:][: chance.randrange(1, 30)] or [chance.randrange(9)]
                slots.reserve(sequence, len(more))
                slots.append(sequence, more)
        if chance.random() < 0.02:
            slots.forget()
        if chance.random() < 0.7:
            router.receive(blocks.changes())
            assert set(router.prefixes.values()) == cached(slots)


def test_events_are_published_as_vllm_does() -> None:
    port = free_port()
    slots = KvSlots(1, NoBuffers())
    publisher = KvEventPublisher(KvEventTarget(f"tcp://*:{port}", "kv@pod@m", 3), slots.slots, clock=lambda: 7.0)
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.setsockopt_string(zmq.SUBSCRIBE, "kv@")
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    subscriber.rcvtimeo = 100
    parts: list[bytes] = []
    for number in range(100):  # a new subscriber misses messages that are sent before its subscription arrives
        slots.acquire(number, [number] * (BLOCK_TOKENS + 2))
        slots.append(number, [number] * BLOCK_TOKENS)
        publisher.publish()
        slots.release(number)
        with suppress(zmq.Again):
            parts = subscriber.recv_multipart()
            break
    topic, number_of_batch, payload = parts
    assert (topic, len(number_of_batch)) == (b"kv@pod@m", struct.calcsize(">Q"))
    time, events, rank = msgspec.msgpack.decode(payload)
    assert (time, events[0]["type"], rank) == (7.0, "BlockStored", 3)
    msgspec.msgpack.decode(payload, type=KvEventBatch)
    subscriber.close()
    publisher.close()


def test_an_event_is_a_map_with_its_name_as_type() -> None:
    events = [BlockStored([1, 2], None, [5] * 32), BlockRemoved([1]), AllBlocksCleared()]
    stored, *others = msgspec.msgpack.decode(msgspec.msgpack.encode(events))
    assert stored == {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [5] * 32,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    assert others == [{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}, {"type": "AllBlocksCleared"}]


def test_an_address_that_is_in_use_is_named() -> None:
    port = free_port()
    target = KvEventTarget(f"tcp://*:{port}", "")
    kept = KvEventPublisher(target, KvSlots(1, NoBuffers()).slots)
    with pytest.raises(ConfigurationError, match=rf"GENAI_KV_EVENTS=tcp://\*:{port}: .*in use"):
        KvEventPublisher(target, KvSlots(1, NoBuffers()).slots)
    kept.close()
