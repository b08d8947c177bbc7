"""The plan of a profile session, which an operator sends to an engine, and the results of the session."""

import re

from msgspec import Struct

# A valid prefix of profiles' file names: a name, not a path.
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SlowTokens(Struct, frozen=True):
    """Profile the tokens that follow a slow token. Exactly one of `over_ms` and `ratio` defines what is slow."""

    # A token is slow if it took more milliseconds than this.
    over_ms: float | None = None
    # A token is slow if it took more than this many times the running median.
    ratio: float | None = None
    # Tokens that are profiled after a slow one.
    num_tokens: int = 5
    # Maximum number of triggers within an hour.
    max_per_hour: int = 4


class ProfilePlan(Struct, frozen=True):
    """Which tokens a profile session records, and when the session ends."""

    # The beginning of the files' names.
    prefix: str
    # None profiles all requests.
    request_id: str | None = None
    # The first profiled output token, counted from 0. Reading the prompt belongs to token 0.
    first_token: int = 0
    # The last profiled output token, included.
    last_token: int | None = None
    # The session ends after this number of profiled tokens.
    max_tokens: int = 256
    # The session ends after this number of seconds.
    max_seconds: float = 3600.0
    # If given, only tokens after a slow one are profiled.
    slow: SlowTokens | None = None


class Profiled(Struct, frozen=True):
    """What a profile session has recorded so far."""

    # Profiled tokens.
    tokens: int = 0
    # Slow tokens that triggered profiling.
    triggers: int = 0
    # Median of the profiled decode steps, each of which runs one sequence alone; None without any.
    step_ms: float | None = None
    # Median of the other decode steps with sequences that the session concerns; None without any.
    other_step_ms: float | None = None


class ProfileState(Struct, frozen=True):
    """A profile session that has not ended: whether it waits or records, and what it has recorded so far."""

    id: str
    # "waiting" until a request reaches what the session profiles, then "recording".
    state: str
    profiled: Profiled
