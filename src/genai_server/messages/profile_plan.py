"""The plan of a profile session, which an operator gives to an engine, and its results."""

import re

from msgspec import Struct

# A valid prefix of profiles' file names: a name, not a path.
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SlowTokens(Struct, frozen=True):
    """A trigger that profiles tokens after a slow one. Exactly one of `over_ms` and `ratio` is given."""

    # A token is slow if it took more milliseconds than this.
    over_ms: float | None = None
    # A token is slow if it took more than this many times the running median.
    ratio: float | None = None
    # Tokens that are profiled after a slow one.
    num_tokens: int = 5
    # Maximum number of triggers within an hour.
    max_per_hour: int = 4


class ProfilePlan(Struct, frozen=True):
    """Which tokens a session profiles, and when it ends."""

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
    """The results of a session."""

    # Profiled tokens.
    tokens: int = 0
    # Slow tokens that triggered profiling.
    triggers: int = 0
    # Median of the profiled decode steps, each of which runs one sequence alone; None without any.
    step_ms: float | None = None
    # Median of the other decode steps with sequences that the session concerns; None without any.
    other_step_ms: float | None = None


class ProfileState(Struct, frozen=True):
    """An open session."""

    id: str
    # "waiting" until a request reaches what the session profiles, then "recording".
    state: str
    profiled: Profiled
