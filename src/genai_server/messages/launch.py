"""The messages between the supervisor and an engine process, as frames (see protocol.py) on the engine's standard
streams.

Standard input carries `EngineLaunch` and then commands. It stays open as long as the supervisor lives, so the engine
exits when it ends. Standard output carries one `EngineReport` when the model is loaded or has failed to load.
Heartbeats (`Beat`) and `RetainedOptions`, the values that a restarted engine must get again, are sent before and after
that.
"""

import msgspec
from msgspec import Struct

from genai_server.messages.frames import FrameDecoder
from genai_server.messages.generation_request import Adapter
from genai_server.messages.prefix_cache import KvEventTarget
from genai_server.messages.server_status import EngineCores
from genai_server.options.device import DeviceOptions


class EngineSpec(Struct, frozen=True):
    """The configuration of an engine process, which the supervisor derives from the settings.

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
        """Whether the value of the field `name` is that of the setting with the same name.

        This holds for the fields without a default, except the first two.
        """
        num_settings = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
        return name in cls.__struct_fields__[2:num_settings]


class RetainedOptions(Struct, frozen=True, tag=True):
    """The runtime options that an operator has set for a device, so that a restarted engine gets the values of its
    predecessor.
    """

    terminated: bool = False
    # "0", or the prefix of the profiles' files.
    profile: str = "0"


# from the supervisor


class EngineLaunch(Struct, frozen=True, tag=True):
    """The first message to an engine process: its configuration, where it listens and the secret of its connections."""

    spec: EngineSpec
    # A path for a Unix socket, or "" for a free TCP port on loopback.
    address: str = ""
    # API processes must send it before anything else.
    secret: str = ""
    # The supervisor's folder, which the engine removes if the supervisor dies; "" for none.
    folder: str = ""
    kept: RetainedOptions = RetainedOptions()


class Resize(Struct, frozen=True, tag=True):
    """Change the memory for the KV cache to this number of bytes."""

    num_bytes: int


class Unload(Struct, frozen=True, tag=True):
    """Unload the model and exit. The engine must not remove the supervisor's folder, since the supervisor continues."""


# from the engine


class EngineReport(Struct, frozen=True, tag=True):
    """An engine process has loaded its model or has failed to. Sent once to the supervisor."""

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
    """A heartbeat of an engine: a counter and the current load. It contains no times, so that clock changes and a
    suspended machine do not look like a hanging engine.
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
    """A decoder of the messages that an engine receives from the supervisor."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromSupervisor]))


def report_decoder() -> FrameDecoder[FromEngine]:
    """A decoder of the messages that the supervisor receives from an engine."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromEngine]))
