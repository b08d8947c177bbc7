"""What API processes know of a prefix cache matches the slots, and is what they compute from requests."""

import random

import pytest

from genai_server.engine.kv_cache.kv_events import BlockChanges, CachedBlocks, prefix_digest
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.scheduling.scheduler_output import KvMemory
from genai_server.messages.prefix_cache import BLOCK_TOKENS, prefix_digests
from tests.engine.kv_cache.no_buffers import NoBuffers

LONG = list(range(1, 5 * BLOCK_TOKENS))


def read(slots: KvSlots, sequence: int, tokens: list[int], salt: str | None = None, adapter: str | None = None) -> None:
    slots.acquire(sequence, tokens, salt=salt)
    slots.of(sequence).adapter = adapter
    slots.append(sequence, tokens[len(slots.of(sequence).tokens) :])


def apply(changes: BlockChanges, known: set[bytes]) -> None:
    """Follow changes as an API process does. Only what is unknown may be stored, and only what is known removed."""
    added = {block for stored in changes.stored for block in stored.hashes}
    removed = set(changes.removed)
    assert known.isdisjoint(added)
    assert removed <= known
    known |= added
    known -= removed


@pytest.mark.parametrize(
    ("salt", "adapter", "slot_salt"),
    [(None, None, None), ("key", None, "key"), (None, "lively", ":file"), ("key", "lively", "key:file")],
)
def test_a_request_finds_what_its_slot_holds(salt: str | None, adapter: str | None, slot_salt: str | None) -> None:
    """An adapter's slot has the digest of its file in its salt (Sequence.cache_salt)."""
    slots = KvSlots(1, NoBuffers())
    blocks = CachedBlocks(slots.slots, prefix_digest)
    read(slots, 1, LONG, slot_salt, adapter)
    blocks.changes()
    assert set(blocks.hashes) == set(prefix_digests(LONG, salt, adapter))
    for other in (("other", adapter), (salt, "other"), (None, None) if salt or adapter else ("key", None)):
        assert set(blocks.hashes).isdisjoint(prefix_digests(LONG, *other))


def test_only_full_blocks_before_an_image_have_digests() -> None:
    slots = KvSlots(1, NoBuffers())
    blocks = CachedBlocks(slots.slots, prefix_digest)
    text, feature = LONG[: 2 * BLOCK_TOKENS + 5], -7
    read(slots, 1, [*text, *[feature] * BLOCK_TOKENS, *LONG])
    blocks.changes()
    assert list(blocks.hashes) == list(prefix_digests(text, None, None))
    assert len(blocks.hashes) == 2


@pytest.mark.parametrize("seed", range(4))
def test_digests_always_match_the_slots(seed: int) -> None:
    chance = random.Random(seed)
    slots = KvSlots(4, NoBuffers(), memory=KvMemory(16, 12))
    blocks = CachedBlocks(slots.slots, prefix_digest)
    known: set[bytes] = set()
    prefixes = [[chance.randrange(9) for _ in range(chance.randrange(20, 60))] for _ in range(3)]
    for number in range(200):
        read(slots, number, [*chance.choice(prefixes), number], chance.choice([None, "key"]))
        if chance.random() < 0.7:
            apply(blocks.changes(), known)
            expected = {block for slot in slots.slots for block in prefix_digests(slot.tokens, slot.salt, None)}
            assert known == set(blocks.hashes) == expected
        slots.release(number)
        if chance.random() < 0.02:
            slots.forget()
