"""How long an answer takes. The clock is passed in."""

from collections.abc import Callable

from msgspec import Struct

Clock = Callable[[], float]


class Timings(Struct, frozen=True):
    """The figures of one answer: times in seconds, rates in tokens per second, None where unknown."""

    # Time to first token, measured where the request arrived.
    ttft: float | None
    # Measured there as well.
    total_latency: float
    # Of input and output, over the total latency.
    tokens_per_second: float | None
    # The inverse of `tpot`.
    output_tokens_per_second: float | None
    input_tokens: int
    output_tokens: int
    # Time per output token without the first one, (last − first) / (output_tokens − 1), measured in the engine.
    tpot: float | None


class Stopwatch:
    """Times one answer from the creation of the stopwatch on."""

    def __init__(self, clock: Clock, input_tokens: int = 0) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = 0
        # In seconds; never goes back.
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._ended: float | None = None

    def count(self, tokens: int) -> None:
        """Note that so many tokens arrive now."""
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
        """Note that the answer ends now."""
        self._ended = self._clock()

    def timings(self, decode_seconds: float) -> Timings:
        """The figures at the end, or up to now; `decode_seconds` is the engine's time from first to last token."""
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
