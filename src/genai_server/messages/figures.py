"""What an engine reports unasked: its load, and the figures that it has counted."""

from msgspec import Struct


class Capacity(Struct, frozen=True):
    """What an idle device accepts."""

    # Maximum number of running requests.
    running: int
    # Maximum number of waiting requests.
    waiting: int
    # Maximum number of tokens of all waiting prompts; None for no limit.
    waiting_tokens: int | None = None
    # What limits `running`, such as the name of a setting.
    limited_by: str = "GENAI_MAX_BATCH_SIZE"

    @property
    def requests(self) -> int:
        """How many run and wait together."""
        return self.running + self.waiting


class Load(Struct, frozen=True, tag=True):
    """The device's load, sent when it changes."""

    running: int = 0
    waiting: int = 0
    # Running and waiting requests of other API processes.
    others: int = 0
    # Whether terminate_session has ended the device's session.
    terminated: bool = False
    # Requests that would be accepted now; None while unknown.
    num_free: int | None = None
    # Tokens that their prompts may have together; None for no limit.
    free_tokens: int | None = None
    # Seconds until a full queue has capacity again, as last estimated; else 0.
    retry_after: int = 0
    # None while unknown.
    capacity: Capacity | None = None


class Histogram(Struct, frozen=True):
    """Numbers of values by size."""

    bounds: list[float]
    # One more than bounds: counts[i] values are in (bounds[i - 1], bounds[i]], and the last counts those above all.
    counts: list[int]
    # Sum of all values.
    sum: float


class Figures(Struct, frozen=True, tag=True):
    """What an engine has counted since its start; sent to all API processes once a second if changed."""

    # Tokens of running sequences in the KV cache now.
    kv_tokens: int
    # A prompt is counted when it has been read.
    prompt_tokens: int
    generation_tokens: int
    # Tokens of prompts that were looked up in the prefix cache, and those that were found.
    cache_queries: int
    cache_hits: int
    # Tokens that were drafted, and those that were accepted.
    drafted: int
    accepted: int
    # Sequences that terminate_session has ended.
    terminated: int
    # Profile sessions that have begun.
    profile_sessions: int
    # Running sequences that are profiled.
    profiled: int
    # In seconds.
    prefill_passes: Histogram
    decode_passes: Histogram
    # Rows of each decode step.
    decode_rows: Histogram
    # Seconds between two tokens of an answer.
    token_gaps: Histogram
