"""What a profile session profiles and when it ends: what an operator asks of an engine."""

from msgspec import Struct


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


class StepTimes(Struct, frozen=True):
    """The median decode step's milliseconds while a session was open: of the passes that were profiled, which then run
    on a Generator alone, and of those beside; None where there was none.
    """

    profiled_ms: float | None = None
    unprofiled_ms: float | None = None


class ProfileState(Struct, frozen=True):
    """An open session: `state` is "waiting" or "recording". So many tokens were profiled, and so often was one slow."""

    id: str
    state: str
    num_tokens: int
    num_triggered: int
    steps: StepTimes
