"""Events about an engine's prefix cache, in the format of vLLM's KV events, which routers subscribe to.

Class names and fields are the wire format: a batch is a MessagePack array, and each event is a map whose `type` is the
name of the class.
"""

from msgspec import Struct

from genai_server.messages.server_status import ModelStatus

# Tokens of a block, as in vLLM.
BLOCK_TOKENS = 16


class BlockStored(Struct, frozen=True, tag=True):
    """Consecutive blocks of one prefix have been added to the prefix cache."""

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
    """The blocks with these hashes have been removed from the prefix cache."""

    block_hashes: list[int]
    medium: str = "GPU"


class AllBlocksCleared(Struct, frozen=True, tag=True):
    """All blocks have been removed from the prefix cache."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(Struct, frozen=True, array_like=True):
    """The events of one scheduler step of an engine."""

    # Seconds since 1970.
    ts: float
    events: list[KvEvent]
    # Which engine of the server it is.
    data_parallel_rank: int = 0


class KvEventTarget(Struct, frozen=True):
    """The ZeroMQ address and topic to which an engine publishes its KV events."""

    # A ZeroMQ address: one with `*` is bound, any other is connected to.
    address: str
    topic: str
    rank: int = 0
    # The model's name. Requests name an adapter of it MODEL:NAME.
    model: str = ""


def event_target(
    address: str, topic: str, status: ModelStatus, device: str, *, num_devices: int
) -> KvEventTarget | None:
    """The target of the KV events of the engine that runs a model, whose status is `status`, on `device`; None if
    `address` is empty.

    `address` and `topic` are the settings GENAI_KV_EVENTS and GENAI_KV_EVENTS_TOPIC. Each engine has a rank, which
    numbers the engines of all models; every model has `num_devices` engines. If the host in `address` is `*`, the
    engine listens on a port of its own: the port in `address` plus the engine's rank.
    """
    if not address:
        return None
    rank = status.serial * num_devices + status.devices.index(device)
    host, _, port = address.rpartition(":")
    own = f"{host}:{int(port) + rank}" if "*" in host else address
    return KvEventTarget(own, topic.replace("{model}", status.name), rank, status.name)
