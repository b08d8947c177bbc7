"""The kinds of tasks of the worker pool. The code of a task is in the module that its kind names.

The module limits its process's memory; each task has its own time limit.
"""

from dataclasses import dataclass

from genai_server.errors import AudioReaderUnavailable, CheckerUnavailable, ImageReaderUnavailable, Unavailable


@dataclass(frozen=True)
class CostUnit:
    """A unit, such as pixels, in which the cost of waiting tasks is counted, and the setting that limits the total cost
    per tenant (API key).
    """

    # In the plural.
    name: str
    # What there is of it, as in "images with 7 pixels".
    things: str
    # The field of `WorkerLimits` and the setting with the maximum.
    limit: str
    setting: str


PIXELS = CostUnit("pixels", "images", "waiting_pixels", "GENAI_MAX_WAITING_PIXELS")
SECONDS = CostUnit("seconds", "recordings and audio clips", "waiting_seconds", "GENAI_MAX_WAITING_AUDIO_SECONDS")
BYTES = CostUnit("bytes", "grammars", "waiting_bytes", "GENAI_MAX_WAITING_GRAMMAR_BYTES")


@dataclass(frozen=True)
class TaskKind:
    """A kind of tasks, such as preparing images: the module that its processes run, and how its waiting tasks are
    counted. Each kind has its own processes.
    """

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
    "check_grammar", "genai_server.grammar_checker.compiler", "checks grammars", CheckerUnavailable, BYTES
)
READ_IMAGE = TaskKind("read_image", "genai_server.media.images.process", "reads images", ImageReaderUnavailable, PIXELS)
READ_AUDIO = TaskKind(
    "read_audio", "genai_server.media.images.process", "reads audio clips", ImageReaderUnavailable, SECONDS
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

TASK_KINDS = {kind.name: kind for kind in (CHECK_GRAMMAR, READ_IMAGE, READ_AUDIO, DECODE, DECODE_LONG, READ_WINDOW)}
