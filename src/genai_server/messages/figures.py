"""The counters that an engine sends to the API processes once a second."""

from msgspec import Struct


class Histogram(Struct, frozen=True):
    """How many of the observed values lie in each interval between `bounds`."""

    bounds: list[float]
    # One more than bounds: counts[i] values are in (bounds[i - 1], bounds[i]], and the last counts those above all.
    counts: list[int]
    # Sum of all values.
    sum: float


class DiskCacheFigures(Struct, frozen=True):
    """The state and counters of the prefix cache on disk, as one engine sees it."""

    # Bytes of all models' files when this engine last wrote one, and their limit.
    num_bytes: int = 0
    max_bytes: int = 0
    # Prefixes that were loaded, with their tokens, and the seconds that took.
    loads: int = 0
    loaded_tokens: int = 0
    load_seconds: float = 0.0
    # Prefixes that were stored, but faster to read by the model.
    left_out: int = 0
    stored_tokens: int = 0
    # Measured rates of loading a prefix and of reading a prompt; 0 if unknown.
    loaded_per_second: float = 0.0
    read_per_second: float = 0.0
    # Why nothing is stored at the moment; "" if it is.
    error: str = ""


class Figures(Struct, frozen=True, tag=True):
    """An engine's counters since its start, and some current values. Sent to all API processes once a second if
    changed.
    """

    # Tokens of running sequences in the KV cache now.
    kv_tokens: int
    # Tokens that the KV cache holds for all sequences; 0 if each slot has memory for the longest sequence.
    kv_capacity: int
    # A prompt is counted when it has been read.
    prompt_tokens: int
    generation_tokens: int
    # Tokens of prompts that were looked up in the prefix cache, and those that were found.
    cache_queries: int
    cache_hits: int
    # Tokens that were drafted, and those that were accepted.
    drafted: int
    accepted: int
    # Images that were encoded, without those whose features were cached.
    encoded_images: int
    # Windows of audio that were encoded, without those whose features were cached.
    encoded_sounds: int
    # How often low-priority sequences gave up their slots to others.
    low_priority_preemptions: int
    # How often other sequences were preempted for lack of memory.
    preemptions: int
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
    # Tokens of prompts and answers by the name of the API key, "" without one.
    prompt_tokens_by_key: dict[str, int] = {}
    generation_tokens_by_key: dict[str, int] = {}
    # None without a prefix cache on disk.
    disk_cache: DiskCacheFigures | None = None
    # Memory of the answers that are kept for drafts.
    answer_bytes: int = 0
