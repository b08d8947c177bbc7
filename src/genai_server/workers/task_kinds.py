"""The kinds of tasks of the worker pool. The code that does a task is in the package that the kind's module names.

A module has its processes' limit of memory, a task its limit of time.
"""

from dataclasses import dataclass

from genai_server.errors import AudioReaderUnavailable, CheckerUnavailable, ImageReaderUnavailable, Unavailable


@dataclass(frozen=True)
class CostUnit:
    """What the work that waits for a kind of tasks is counted in, for each tenant."""

    # In the plural.
    name: str
    # What there is of it, as in "images with 7 pixels".
    things: str
    # The field of `WorkerLimits` and the setting with the maximum.
    limit: str
    setting: str


PIXELS = CostUnit("pixels", "images", "waiting_pixels", "GENAI_MAX_WAITING_PIXELS")
SECONDS = CostUnit("seconds", "recordings and sounds", "waiting_seconds", "GENAI_MAX_WAITING_AUDIO_SECONDS")
BYTES = CostUnit("bytes", "grammars", "waiting_bytes", "GENAI_MAX_WAITING_GRAMMAR_BYTES")


@dataclass(frozen=True)
class TaskKind:
    """A kind of tasks, which have processes of their own."""

    name: str
    # The module that a process runs.
    module: str
    # What a process does, as in "checks grammars".
    purpose: str
    # The error if there is no process.
    unavailable: type[Unavailable]
    # What waiting tasks are counted in; None if each request has one at a time.
    unit: CostUnit | None = None
    # Whether a task may take minutes. Such tasks have few processes of their own, which give way to all others.
    is_long: bool = False


CHECK_GRAMMAR = TaskKind(
    "check_grammar", "genai_server.grammar_checker.process", "checks grammars", CheckerUnavailable, BYTES
)
READ_IMAGE = TaskKind("read_image", "genai_server.media.images.process", "reads images", ImageReaderUnavailable, PIXELS)
READ_SOUND = TaskKind(
    "read_sound", "genai_server.media.images.process", "reads sounds", ImageReaderUnavailable, SECONDS
)
DECODE = TaskKind(
    "decode", "genai_server.media.audio.decode_process", "decodes recordings", AudioReaderUnavailable, SECONDS
)
DECODE_LONG = TaskKind(
    "decode_long",
    "genai_server.media.audio.decode_process",
    "decodes long recordings",
    AudioReaderUnavailable,
    SECONDS,
    is_long=True,
)
READ_WINDOW = TaskKind(
    "read_window", "genai_server.media.audio.window_process", "reads recordings", AudioReaderUnavailable
)

TASK_KINDS = {kind.name: kind for kind in (CHECK_GRAMMAR, READ_IMAGE, READ_SOUND, DECODE, DECODE_LONG, READ_WINDOW)}
