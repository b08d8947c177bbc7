"""How an engine process is started and unloaded, over its standard input and output."""

from msgspec import Struct

from genai_server.generation import Adapter
from genai_server.messages.kv_events import KvEventTarget
from genai_server.options.device import DeviceOptions


class EngineSettings(Struct, frozen=True):
    """The settings that every engine of a server has; config/settings.py describes each."""

    # Of each graph operator; 0 takes the physical cores that the process may use.
    threads: int
    # Most requests that run at once.
    max_batch_size: int
    # Most requests that wait.
    max_queue: int
    # Most tokens of all waiting prompts; 0 for any number.
    max_queue_tokens: int
    # Most tokens of a prompt in a step while other sequences decode.
    prefill_chunk: int
    # Seconds that a step beside running streams may take; 0 for a share of their own time.
    itl_target: float
    # auto or off.
    speculation: str
    # Most tokens of a prompt and its answer together.
    max_length: int
    # auto, batched, generator or library.
    scheduler: str
    # Most bytes of the batch's KV cache; 0 takes half of the free memory.
    kv_cache_bytes: int
    # For CPU steps of many tokens: auto, int4 or int8.
    prefill_weights: str
    # Keeps packed weights; "" for no cache.
    cache_dir: str
    # Holds a folder for each engine.
    profile_dir: str
    profile_max_files: int
    profile_max_bytes: int
    # In seconds.
    profile_max_age: int
    # Requests of a batch that are profiled at a time when the whole device is.
    profile_max_rows: int
    log_level: str
    log_format: str
    # Whether the libraries may send usage data.
    telemetry: bool


class EngineSpec(Struct, frozen=True):
    """What an engine process is started with, one line of JSON on its standard input."""

    device: str
    model_dir: str
    settings: EngineSettings
    # A path for a Unix socket, or "" for a free TCP port on loopback.
    address: str = ""
    # API processes must send it to be served.
    secret: str = ""
    # Keeps the runtime options over a restart of the engine.
    state_file: str = ""
    # The engine writes its heartbeats into it.
    heartbeat_file: str = ""
    options: DeviceOptions = DeviceOptions()
    # The engine's own folder in `profile_dir`; "" for the device's name.
    profile_folder: str = ""
    # The engine is not ready before it has loaded all of them.
    adapters: list[Adapter] = []
    # None publishes no events of its prefix cache.
    kv_events: KvEventTarget | None = None


# What the engine's standard input brings before its end when it is unloaded alone: its supervisor stays.
UNLOAD_ORDER = b"unload\n"


class EngineReport(Struct, frozen=True):
    """What an engine process tells its supervisor, once, as a line of JSON on its standard output."""

    # Where it listens; "" if it could not load.
    address: str = ""
    # Why it could not load.
    error: str = ""
