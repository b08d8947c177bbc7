"""How an engine process is started and unloaded, over its standard input and output."""

from msgspec import Struct

from genai_server.generation import Adapter
from genai_server.options.device import DeviceOptions


class EngineSettings(Struct, frozen=True):
    """The settings that every engine of a server has; config/settings.py describes each."""

    # Of an operator; 0 takes the physical cores that the process may use.
    threads: int
    # Requests that run at once, at most.
    max_batch_size: int
    # Requests that wait, at most.
    max_queue: int
    # Tokens of the prompts that wait, at most; 0 for any number.
    max_queue_tokens: int
    # Tokens of a prompt that are read at once while other requests are answered, at most.
    prefill_chunk: int
    # Seconds of a step beside running streams; 0 for a share of what these take.
    itl_target: float
    # Tokens of a prompt and its answer, at most.
    max_length: int
    # auto, batched, generator or library.
    scheduler: str
    # Of a batch, at most; 0 takes half of what is free.
    kv_cache_bytes: int
    # Of CPU steps of many tokens: auto, int4 or int8.
    prefill_weights: str
    # For packed weights; "" does without.
    cache_dir: str
    # Holds a folder for each engine.
    profile_dir: str
    profile_max_files: int
    profile_max_bytes: int
    # In seconds.
    profile_max_age: int
    # Requests of a batch that a switch for the whole device profiles at a time.
    profile_max_rows: int
    log_level: str
    log_format: str
    # Whether the libraries may report how they are used.
    telemetry: bool


class EngineSpec(Struct, frozen=True):
    """What an engine process is started with, one line of JSON on its standard input."""

    device: str
    model_dir: str
    settings: EngineSettings
    # A path for a Unix socket, or "" for a free TCP port on loopback.
    address: str = ""
    # What an API process must know to be served.
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


# What the engine's standard input brings before its end when it is unloaded alone: its supervisor stays.
UNLOAD_ORDER = b"unload\n"


class EngineReport(Struct, frozen=True):
    """What an engine process tells its supervisor, once, as a line of JSON on its standard output."""

    # Where it listens; "" if it could not load.
    address: str = ""
    # Why it could not load.
    error: str = ""
