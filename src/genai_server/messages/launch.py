"""How an engine process is started and unloaded, over its standard input and output."""

from msgspec import Struct

from genai_server.messages.generation_request import Adapter
from genai_server.messages.kv_events import KvEventTarget
from genai_server.options.device import DeviceOptions


class EngineSettings(Struct, frozen=True):
    """The settings that every engine of a server has; config/settings.py describes each."""

    # Threads of each graph operator; 0 uses the physical cores that the process may use.
    threads: int
    # Maximum number of running requests.
    max_batch_size: int
    # Maximum number of waiting requests.
    max_queue: int
    # Maximum number of tokens of all waiting prompts; 0 for no limit.
    max_queue_tokens: int
    # Maximum number of tokens of a prompt in a step while other sequences decode.
    prefill_chunk: int
    # Maximum seconds of a step that reads a prompt while others decode; 0 for a multiple of their own time.
    itl_target: float
    # auto or off.
    speculation: str
    # Maximum number of tokens of a prompt and its answer together.
    max_length: int
    # auto, batched, generator or library.
    scheduler: str
    # Maximum bytes of the batch's KV cache; 0 uses half of the free memory.
    kv_cache_bytes: int
    kv_cache_type: str
    # Weights for CPU steps of many tokens: auto, int4 or int8.
    prefill_weights: str
    # Folder for packed weights; "" for no cache.
    cache_dir: str
    # Contains a folder for each engine.
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
    # API processes must send it before anything else.
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
    # None disables the events of its prefix cache.
    kv_events: KvEventTarget | None = None


# Sent to the engine's standard input, before that ends, if the engine is unloaded while its supervisor continues.
UNLOAD_ORDER = b"unload\n"


class EngineReport(Struct, frozen=True):
    """What an engine process reports once to its supervisor, as a line of JSON on its standard output."""

    # Where it listens; "" if it could not load.
    address: str = ""
    # Why it could not load.
    error: str = ""
