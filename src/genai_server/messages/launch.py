"""How an engine process is started and unloaded: what it and its supervisor say over its standard input and output."""

from msgspec import Struct

from genai_server.generation import Adapter
from genai_server.options.device import DeviceOptions


class EngineSpec(Struct, frozen=True):
    """What an engine process is started with, one line of JSON on its standard input.

    `address` is a path for a Unix socket, or "" for a free TCP port on loopback. `threads` 0 means the physical cores
    that the process may use. Sizes are in bytes, ages in seconds, `prefill_chunk` and `max_queue_tokens` in tokens.
    `state_file` keeps what the operator has set over a restart of the engine, into `heartbeat_file` go its heartbeats.
    `profile_folder` is the engine's own folder in `profile_dir`, named after the device without it. Without one of the
    `adapters` it is not ready.
    """

    device: str
    model_dir: str
    address: str
    secret: str
    threads: int
    max_batch_size: int
    max_queue: int
    max_queue_tokens: int
    prefill_chunk: int
    max_length: int
    scheduler: str
    kv_cache_bytes: int
    cache_dir: str
    profile_dir: str
    profile_max_files: int
    profile_max_bytes: int
    profile_max_age: int
    profile_max_rows: int
    state_file: str
    heartbeat_file: str
    log_level: str
    log_format: str = "text"
    options: DeviceOptions = DeviceOptions()
    profile_folder: str = ""
    adapters: list[Adapter] = []


# What the engine's standard input brings before its end when it is unloaded alone: its supervisor stays.
UNLOAD_ORDER = b"unload\n"


class EngineReport(Struct, frozen=True):
    """What an engine process tells its supervisor, once, as a line of JSON on its standard output.

    Either `address` says where it listens, or `error` why it could not load.
    """

    address: str = ""
    error: str = ""
