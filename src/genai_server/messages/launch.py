"""The messages between the supervisor (the process that starts and monitors engines) and an engine process. They are
sent as frames (see frames.py) on the engine's standard input and output.

Standard input carries `EngineLaunch` and then the commands `Resize` and `Unload`. It stays open as long as the
supervisor lives, so the engine exits when standard input ends. Standard output carries one `EngineReport`, when the
model is loaded or has failed to load. Before and after the report it carries heartbeats (`Beat`) and `RetainedOptions`,
the values that a restarted engine must get again.
"""

import msgspec
from msgspec import Struct

from genai_server.messages.frames import FrameDecoder
from genai_server.messages.generation_request import Adapter
from genai_server.messages.prefix_cache import KvEventTarget
from genai_server.messages.server_status import EngineCores
from genai_server.options.device import DeviceOptions


class EngineSpec(Struct, frozen=True):
    """The configuration of one engine process: device, model directory, and the limits and options of the engine. The
    supervisor derives it from the server's settings and sends it to the engine in `EngineLaunch`.

    `device` and `model_dir` come first. All other fields without a default are settings, which config/settings.py
    describes.
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
    attention_type: str
    encoder_weights: str
    # Bytes of encoded images and audio that are kept for later requests.
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
    options: DeviceOptions = DeviceOptions()
    # The engine's own folder in `profile_dir`; "" for the device's name.
    profile_folder: str = ""
    # The engine is not ready before it has loaded all of them.
    adapters: list[Adapter] = []
    # None disables the events of its prefix cache.
    kv_events: KvEventTarget | None = None
    # Whether API processes receive what is in its prefix cache, to choose between engines of the same model.
    reports_prefixes: bool = False
    # Memory for keys and values, unless the settings say it; 0 lets the engine choose.
    kv_bytes: int = 0
    # The directory of the draft model; "" for none.
    draft_model: str = ""
    # The cores that its process is kept on; None for all that the supervisor may use.
    cores: EngineCores | None = None

    @classmethod
    def is_setting(cls, name: str) -> bool:
        """Return whether the field `name` of this struct is a copy of the server's setting with the same name.

        This holds for the fields without a default, except `device` and `model_dir`.
        """
        num_settings = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
        return name in cls.__struct_fields__[2:num_settings]


class RetainedOptions(Struct, frozen=True, tag=True):
    """The runtime options that an operator has set for a device. The engine reports them to the supervisor, which
    passes them to the next engine process after a restart, so that they stay in force.
    """

    terminated: bool = False
    # "0", or the prefix of the profiles' files.
    profile: str = "0"


# from the supervisor


class EngineLaunch(Struct, frozen=True, tag=True):
    """The supervisor's first message to an engine process: its configuration, the address on which it listens, and the
    secret that API processes must send when they connect.
    """

    spec: EngineSpec
    # A path for a Unix socket, or "" for a free TCP port on loopback.
    address: str = ""
    # API processes must send it before anything else.
    secret: str = ""
    # The supervisor's folder, which the engine removes if the supervisor dies; "" for none.
    folder: str = ""
    kept: RetainedOptions = RetainedOptions()


class Resize(Struct, frozen=True, tag=True):
    """The supervisor tells an engine to change the memory for its KV cache to `num_bytes` bytes."""

    num_bytes: int


class Unload(Struct, frozen=True, tag=True):
    """The supervisor tells an engine to unload its model and exit. The engine must not remove the supervisor's folder,
    since the supervisor continues.
    """


# from the engine


class EngineReport(Struct, frozen=True, tag=True):
    """An engine process tells the supervisor, once, that it has loaded its model or has failed to: where it listens, or
    the error; the maximum length of sequences; and the range of its KV cache size in bytes.
    """

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
    # Where its threads run; None on devices other than CPUs, and where the system does not tell.
    cores: EngineCores | None = None


# Maximum seconds between a pass and the last heartbeat that announced one like it, and between those of an idle engine.
BEAT_SECONDS = 0.5


class Beat(Struct, frozen=True, tag=True):
    """A heartbeat that an engine sends to the supervisor: a counter, and the current numbers of tokens and requests. It
    contains no times, so that clock changes and a suspended machine do not look like a hanging engine.
    """

    # Counted from 1 since the process started.
    number: int = 0
    # Tokens of the pass that begins; 0 while there is none.
    tokens: int = 0
    # Running and waiting requests.
    requests: int = 0
    # Requests that have ever arrived.
    arrived: int = 0
    # Bytes of keys and values in memory.
    kv_bytes: int = 0


FromSupervisor = EngineLaunch | Resize | Unload
FromEngine = EngineReport | Beat | RetainedOptions


def launch_decoder() -> FrameDecoder[FromSupervisor]:
    """Return a new decoder of the messages that an engine receives from the supervisor."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromSupervisor]))


def report_decoder() -> FrameDecoder[FromEngine]:
    """Return a new decoder of the messages that the supervisor receives from an engine."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromEngine]))
