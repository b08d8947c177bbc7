"""What a profile session profiles and when it ends: what an operator asks of an engine."""

import re

from msgspec import Struct

# What the names of profiles begin with: a name and no path.
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SlowTokens(Struct, frozen=True):
    """A trigger: the next `num_tokens` tokens are profiled when one took more than `over_ms` milliseconds, or `ratio`
    times the running median, but at most `max_per_hour` times within an hour. Exactly one of the first two is given.
    """

    over_ms: float | None = None
    ratio: float | None = None
    num_tokens: int = 5
    max_per_hour: int = 4


class ProfilePlan(Struct, frozen=True):
    """Of all requests, or of those named `request_id`, the output tokens from `first_token` to `last_token` (both
    included, counted from 0) are profiled; reading the prompt belongs to token 0. With `slow` it is done only after a
    slow token. The session ends after `max_tokens` profiled tokens or `max_seconds` seconds. Files begin with `prefix`.
    """

    prefix: str
    request_id: str | None = None
    first_token: int = 0
    last_token: int | None = None
    max_tokens: int = 256
    max_seconds: float = 3600.0
    slow: SlowTokens | None = None


class Profiled(Struct, frozen=True):
    """What a session has come to: so many tokens were profiled, so often was one slow that had others profiled.

    `step_ms` is what a decode step takes that is profiled (the median; such a step runs alone), `other_step_ms` what
    the others take that the session might have profiled, all that they cost included; None where there was none.
    """

    tokens: int = 0
    triggers: int = 0
    step_ms: float | None = None
    other_step_ms: float | None = None


class ProfileState(Struct, frozen=True):
    """An open session: `state` is "waiting", until a request comes to what it wants to profile, or "recording"."""

    id: str
    state: str
    profiled: Profiled
