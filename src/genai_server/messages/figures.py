"""What an engine tells of its work without being asked: its load now, and what it has counted."""

from msgspec import Struct


class Capacity(Struct, frozen=True):
    """What an idle device takes: so many requests run and so many wait, whose prompts have at most `waiting_tokens`
    tokens together, any number if it is None.
    """

    running: int
    waiting: int
    waiting_tokens: int | None = None

    @property
    def requests(self) -> int:
        """How many run and wait together."""
        return self.running + self.waiting


class Load(Struct, frozen=True, tag=True):
    """The device's work, sent when it changes: those running and waiting, of which others sent some.

    `room` is how many more requests would be taken, None as long as that is not known, and `room_tokens` with how many
    tokens of prompts, None if any number. `retry_after` are the seconds until there is room again if there is none, as
    they were estimated then. `capacity` is None as long as it is not known.
    """

    running: int = 0
    waiting: int = 0
    others: int = 0
    terminated: bool = False
    room: int | None = None
    room_tokens: int | None = None
    retry_after: int = 0
    capacity: Capacity | None = None


class Histogram(Struct, frozen=True):
    """Values by size: `counts[i]` of them are at most `bounds[i]` and above the bound before, the last of them above
    all; `sum` is that of the values.
    """

    bounds: list[float]
    counts: list[int]
    sum: float


class Figures(Struct, frozen=True, tag=True):
    """What an engine has counted since its start; sent to all API processes, once a second while it changes.

    `kv_tokens` are those of running sequences whose keys and values are kept now. Of the prompts whose beginning was
    looked for in the cache, `cache_queries` tokens, `cache_hits` were there. Prompts count with their first token.
    `terminated` sequences were ended by the option. Passes take seconds, and those that decode have a number of rows;
    `token_gaps` are the seconds between the tokens of an answer.
    """

    kv_tokens: int
    prompt_tokens: int
    generation_tokens: int
    cache_queries: int
    cache_hits: int
    terminated: int
    profile_sessions: int
    profiled: int
    prefill_passes: Histogram
    decode_passes: Histogram
    decode_rows: Histogram
    token_gaps: Histogram
