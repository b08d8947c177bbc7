"""How long an answer takes; pure, the clock is passed in."""

from collections.abc import Callable

from msgspec import Struct

Clock = Callable[[], float]


class Timings(Struct, frozen=True):
    """The figures of one answer: times in seconds, rates in tokens per second, None where they cannot be known.

    `ttft` and `total_latency` are measured where the request arrived. `tpot` is the time per output token without the
    first one, (last − first) / (output_tokens − 1), as the engine made them, and `output_tokens_per_second` its
    inverse. `tokens_per_second` counts input and output over the total latency.
    """

    ttft: float | None
    total_latency: float
    tokens_per_second: float | None
    output_tokens_per_second: float | None
    input_tokens: int
    output_tokens: int
    tpot: float | None


class Stopwatch:
    """Times one answer, from its making on. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Clock, input_tokens: int = 0) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = 0
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._ended: float | None = None

    def count(self, tokens: int) -> None:
        """So many tokens have arrived now."""
        if self._first is None:
            self._first = self._clock()
        self.output_tokens += tokens

    @property
    def first(self) -> float | None:
        """When the first token came, by the clock."""
        return self._first

    @property
    def elapsed(self) -> float:
        """Seconds up to now."""
        return self._clock() - self._started

    def stop(self) -> None:
        """The answer has ended now."""
        self._ended = self._clock()

    def timings(self, decode_seconds: float) -> Timings:
        """The figures at the end, or now if that is still to come; `decode_seconds` is the time from the first token to
        the last in the engine.
        """
        total = (self._clock() if self._ended is None else self._ended) - self._started
        tpot = decode_seconds / (self.output_tokens - 1) if self.output_tokens > 1 else None
        return Timings(
            ttft=None if self._first is None else self._first - self._started,
            total_latency=total,
            tokens_per_second=(self.input_tokens + self.output_tokens) / total if total else None,
            output_tokens_per_second=1 / tpot if tpot else None,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            tpot=tpot,
        )
