"""What an engine tells of its work without being asked: its load now, and what it has counted."""

from msgspec import Struct


class Capacity(Struct, frozen=True):
    """What an idle device takes."""

    # Requests that run at once, and that wait besides.
    running: int
    waiting: int
    # Tokens of the prompts that wait, together; None for any number.
    waiting_tokens: int | None = None
    # What `running` comes from, such as the name of a setting.
    limited_by: str = "GENAI_MAX_BATCH_SIZE"

    @property
    def requests(self) -> int:
        """How many run and wait together."""
        return self.running + self.waiting


class Load(Struct, frozen=True, tag=True):
    """The device's work, sent when it changes."""

    running: int = 0
    waiting: int = 0
    # Requests, running or waiting, which other API processes have sent.
    others: int = 0
    # Whether terminate_session has ended the device's session.
    terminated: bool = False
    # Requests that would be taken now; None while that is not known.
    room: int | None = None
    # Tokens of their prompts, together; None for any number.
    room_tokens: int | None = None
    # Seconds until there is room again, as estimated when there was none last; else 0.
    retry_after: int = 0
    # None while it is not known.
    capacity: Capacity | None = None


class Histogram(Struct, frozen=True):
    """Values by size."""

    bounds: list[float]
    # One more than bounds: counts[i] values are at most bounds[i] and above bounds[i - 1], the last above all bounds.
    counts: list[int]
    # Of the values.
    sum: float


class Figures(Struct, frozen=True, tag=True):
    """What an engine has counted since its start; sent to all API processes, once a second while it changes."""

    # Of running sequences, whose keys and values are kept now.
    kv_tokens: int
    # A prompt counts once its first token is there.
    prompt_tokens: int
    generation_tokens: int
    # Tokens of the prompts whose beginning was looked for in the cache, and how many of them it had.
    cache_queries: int
    cache_hits: int
    # Sequences that terminate_session has ended.
    terminated: int
    # Those that have begun.
    profile_sessions: int
    # Sequences that run and are profiled.
    profiled: int
    # In seconds.
    prefill_passes: Histogram
    decode_passes: Histogram
    # Rows of each step that decodes.
    decode_rows: Histogram
    # Seconds between two tokens of an answer.
    token_gaps: Histogram
