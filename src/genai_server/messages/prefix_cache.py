"""What an engine reports about its prefix cache: KV events for external request routers, and digests by which the
server's API processes choose an engine.

The events (`BlockStored`, `BlockRemoved`, `AllBlocksCleared`) have the format of vLLM's KV events, which routers
subscribe to. Class names and fields are the wire format: a batch is a MessagePack array, and each event is a map whose
`type` is the name of the class.

From the digests an API process knows which prompts an engine's prefix cache holds. A prompt is cut into blocks of
BLOCK_TOKENS tokens. The digest of a block depends on all tokens up to the end of the block, and on the cache salt and
adapter of the request, so that equal digests mean equal prefixes. The tokens cannot be derived from a digest.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from msgspec import Struct

from genai_server.messages.server_status import ModelStatus

# Tokens of a block, as in vLLM.
BLOCK_TOKENS = 16


class BlockStored(Struct, frozen=True, tag=True):
    """A KV event, in vLLM's format: consecutive blocks of one prefix have been added to the engine's prefix cache."""

    block_hashes: list[int]
    # The block before the first one; None at the beginning of a prompt.
    parent_block_hash: int | None
    # The tokens of all these blocks.
    token_ids: list[int]
    block_size: int = BLOCK_TOKENS
    # Always None: vLLM numbers its adapters, and `lora_name` says which one it is.
    lora_id: None = None
    # The medium of the blocks. Routers take other values for slower media that vLLM offloads blocks to.
    medium: str = "GPU"
    # The adapter that the blocks were read with, as requests name it; None without one.
    lora_name: str | None = None


class BlockRemoved(Struct, frozen=True, tag=True):
    """A KV event, in vLLM's format: the blocks with these hashes have been removed from the engine's prefix cache."""

    block_hashes: list[int]
    medium: str = "GPU"


class AllBlocksCleared(Struct, frozen=True, tag=True):
    """A KV event, in vLLM's format: all blocks have been removed from the engine's prefix cache."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(Struct, frozen=True, array_like=True):
    """The KV events of one scheduler step of an engine, as the engine publishes them to routers in one message."""

    # Seconds since 1970.
    ts: float
    events: list[KvEvent]
    # Which engine of the server it is.
    data_parallel_rank: int = 0


class KvEventTarget(Struct, frozen=True):
    """The ZeroMQ address and topic to which an engine publishes its KV events, and the rank that distinguishes the
    engine.
    """

    # A ZeroMQ address: one with `*` is bound, any other is connected to.
    address: str
    topic: str
    rank: int = 0
    # The model's name. Requests name an adapter of it MODEL:NAME.
    model: str = ""


def event_target(
    address: str, topic: str, status: ModelStatus, device: str, *, num_devices: int
) -> KvEventTarget | None:
    """Return where an engine publishes its KV events; None if `address` is empty. The engine runs the model with the
    status `status` on `device`.

    `address` and `topic` are the settings GENAI_KV_EVENTS and GENAI_KV_EVENTS_TOPIC. Each engine has a rank, which
    numbers the engines of all models; every model has `num_devices` engines. If the host in `address` is `*`, the
    engine listens on a port of its own: the port in `address` plus the engine's rank.
    """
    if not address:
        return None
    rank = status.serial * num_devices + status.devices.index(device)
    host, _, port = address.rpartition(":")
    engine_address = f"{host}:{int(port) + rank}" if "*" in host else address
    return KvEventTarget(engine_address, topic.replace("{model}", status.name), rank, status.name)


_DIGEST_BYTES = 8


def root_digest(salt: str | None, adapter: str | None) -> bytes:
    """Return the digest that a prompt's first block uses in place of the digest of a block before it. It depends on the
    request's cache salt and on the name of its adapter; both may be None.
    """
    return blake2b(repr((salt, adapter)).encode(), digest_size=_DIGEST_BYTES).digest()


def block_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the digest of a block of tokens. `parent` is the digest of the block before it in the prompt, or the root
    digest for the first block.
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=_DIGEST_BYTES).digest()


def prefix_digests(tokens: Sequence[int], salt: str | None, adapter: str | None) -> Iterator[bytes]:
    """Yield the digests of all full blocks of a prompt, in order. Each digest is computed only when the iterator is
    asked for it. `salt` and `adapter` are the request's cache salt and the name of its adapter; both may be None.
    """
    digest = root_digest(salt, adapter)
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        digest = block_digest(digest, tokens[start : start + BLOCK_TOKENS])
        yield digest
