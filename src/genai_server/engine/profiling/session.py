"""Decides which passes one profile session profiles, by request, output token and duration.

The module uses no library and no file. Its times are seconds of a monotonic clock.
"""

from collections import deque
from collections.abc import Collection
from statistics import median

from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.messages.profile_plan import Profiled, ProfilePlan, SlowTokens

_HOUR = 3600.0
# Maximum number of steps in a median, and the minimum before a step can be slow compared with it.
_MAX_STEPS = 256
_MIN_STEPS = 16


class ProfileSession:
    """A profile session that begins now and follows a plan.

    Sequences are identified by their ids and by the names of their requests. `num_tokens` counts profiled tokens,
    `num_triggers` the slow tokens that triggered profiling.
    """

    def __init__(self, id: str, plan: ProfilePlan, now: float) -> None:
        self.id = id
        self.plan = plan
        self.num_tokens = 0
        self.num_triggers = 0
        self._ends = now + plan.max_seconds
        # When slow tokens have triggered profiling, as often as the plan allows within an hour.
        self._fired: deque[float] = deque(maxlen=None if plan.slow is None else plan.slow.max_per_hour)
        self._until: dict[int, int] = {}
        self._profiled: deque[float] = deque(maxlen=_MAX_STEPS)
        self._unprofiled: deque[float] = deque(maxlen=_MAX_STEPS)

    def concerns(self, name: str) -> bool:
        """Whether the plan includes requests of this name."""
        return self.plan.request_id in (None, name)

    def selects(self, sequence: int, name: str, token: int) -> bool:
        """Whether to profile the pass of a sequence that produces this output token."""
        last = self.plan.last_token
        within = token >= self.plan.first_token and (last is None or token <= last)
        triggered = self.plan.slow is None or token < self._until.get(sequence, 0)
        return within and triggered and self.concerns(name)

    def awaits(self, name: str, token: int) -> bool:
        """Whether a pass that starts at this output token could skip the first token to profile if it had a draft."""
        first = self.plan.first_token
        return self.plan.slow is None and token < first <= token + MAX_DRAFTED and self.concerns(name)

    def decoded(self, next_tokens: dict[int, int], seconds: float, now: float, *, profiled: bool) -> None:
        """Record the duration of a decode step, and trigger profiling if it was slow.

        `next_tokens` has the number of the next output token of each sequence concerned, by sequence id.
        """
        if profiled:
            self._profiled.append(seconds)
            return
        slow = self.plan.slow
        if slow is not None and self._is_slow(slow, seconds) and self._may_fire(now):
            self._fired.append(now)
            self.num_triggers += 1
            self._until |= {sequence: token + slow.num_tokens for sequence, token in next_tokens.items()}
        self._unprofiled.append(seconds)

    def _is_slow(self, slow: SlowTokens, seconds: float) -> bool:
        if slow.over_ms is not None:
            return seconds * 1000 > slow.over_ms
        assert slow.ratio is not None
        return len(self._unprofiled) >= _MIN_STEPS and seconds > slow.ratio * median(self._unprofiled)

    def _may_fire(self, now: float) -> bool:
        return len(self._fired) != self._fired.maxlen or now - self._fired[0] >= _HOUR

    def keep(self, sequences: Collection[int]) -> None:
        """Forget all sequences that are not among `sequences`, because they have ended."""
        self._until = {sequence: token for sequence, token in self._until.items() if sequence in sequences}

    def over(self, now: float) -> str | None:
        """Message why the session must end; None if it continues."""
        if self.num_tokens >= self.plan.max_tokens:
            return f"{self.num_tokens} tokens are profiled (max_tokens)"
        if now >= self._ends:
            return f"{self.plan.max_seconds:g} seconds have passed (max_seconds)"
        return None

    @property
    def profiled(self) -> Profiled:
        """Results of the session up to now."""
        times = _milliseconds(self._profiled), _milliseconds(self._unprofiled)
        return Profiled(self.num_tokens, self.num_triggers, *times)


def _milliseconds(seconds: deque[float]) -> float | None:
    return round(median(seconds) * 1000, 3) if seconds else None
