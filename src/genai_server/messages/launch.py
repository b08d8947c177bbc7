"""How an engine process is started and unloaded, over its standard input and output."""

from msgspec import Struct

from genai_server.messages.generation_request import Adapter
from genai_server.messages.kv_events import KvEventTarget
from genai_server.options.device import DeviceOptions


class EngineSpec(Struct, frozen=True):
    """The description of an engine, which its supervisor makes from the settings and starts its process with.

    The fields without a default are settings, which config/settings.py describes, after the device and the directory.
    """

    device: str
    model_dir: str
    threads: int
    max_batch_size: int
    max_queue: int
    max_queue_tokens: int
    prefill_chunk: int
    itl_target: float
    speculation: str
    # Bytes of answers that are kept for drafts; 0 for none.
    draft_memory_bytes: int
    # 0 allows the model's context, or what of it the memory holds.
    max_length: int
    scheduler: str
    # Whether requests are exact unless they say otherwise.
    exact: bool
    kv_cache_bytes: int
    kv_cache_type: str
    encoder_weights: str
    # Bytes of encoded images and sounds that no present request has.
    encoder_cache_bytes: int
    # A path; "" for no cache.
    cache_dir: str
    # A number, "0" for no prefix cache on disk, or "auto".
    prefix_cache_bytes: str
    prefix_cache_type: str
    prefix_cache_dir: str
    profile_dir: str
    profile_max_files: int
    profile_max_bytes: int
    profile_max_age: int
    profile_max_rows: int
    log_level: str
    log_format: str
    telemetry: bool
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
    # Memory for keys and values, unless the settings say it; 0 lets the engine choose.
    kv_bytes: int = 0
    # The directory of the draft model; "" for none.
    draft_model: str = ""

    @classmethod
    def is_setting(cls, name: str) -> bool:
        """Whether a field has the value of the setting of this name."""
        num_settings = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
        return name in cls.__struct_fields__[2:num_settings]


# Sent to the engine's standard input, before that ends, if the engine is unloaded while its supervisor continues.
UNLOAD_ORDER = b"unload\n"
# Begins a line on the engine's standard input with the new size of the memory for keys and values, in bytes.
RESIZE_ORDER = b"kv_bytes "


class EngineReport(Struct, frozen=True):
    """What an engine process reports once to its supervisor, as a line of JSON on its standard output."""

    # Where it listens; "" if it could not load.
    address: str = ""
    # Why it could not load.
    error: str = ""
    # Maximum number of tokens of prompt and answer together, and what sets it, in words for messages.
    max_length: int = 0
    limited_by: str = ""
    # Memory for keys and values in the host's memory, in bytes: the least that holds the longest sequence, and the most
    # that would be used. Equal if the size is fixed.
    min_kv_bytes: int = 0
    max_kv_bytes: int = 0
