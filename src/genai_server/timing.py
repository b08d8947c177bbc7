"""Measures how long a request and its answers take, and in which phases the time is spent: `Arrival` for the request
and `Stopwatch` for each answer, whose results are `Timings` with a `Breakdown`. The clock is passed in.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from genai_server.messages.generation_request import Phases

Clock = Callable[[], float]
# The clock of all request times in a process, in seconds.
request_clock: Clock = time.perf_counter
# Where the HTTP server leaves the time of the first byte, by `request_clock`, in a message of a WebSocket.
ARRIVAL_KEY = "arrived"


@dataclass(frozen=True)
class Breakdown:
    """The seconds that a request spent in each phase, from receiving it to delivering its answer. The phases add up to
    the answer's `total_latency`.
    """

    # From the request's first byte to its last.
    receive: float
    # Waiting for the model to be loaded.
    load: float
    # All else before the first token: checks, template, tokenizer, grammar, and messages to the engine and back.
    prepare: float
    # Waiting in the engine.
    queue: float
    # From the engine's first pass for the request to its first token.
    prefill: float
    # From the first token to the last, in the engine.
    decode: float
    # All else after the first token: messages from the engine, text, and a client that reads slowly.
    deliver: float


@dataclass(frozen=True)
class Timings:
    """The measured values of one answer: times in seconds, rates in tokens per second; None where unknown.
    `Stopwatch.timings` returns it.
    """

    # From the request's first byte to the first token.
    ttft: float | None
    # From the request's first byte to the end.
    total_latency: float
    # Input and output tokens, divided by the total latency.
    tokens_per_second: float | None
    # The inverse of `tpot`.
    output_tokens_per_second: float | None
    input_tokens: int
    output_tokens: int
    # Time per output token without the first one, measured in the engine.
    tpot: float | None
    breakdown: Breakdown | None


class Arrival:
    """The time at which a request arrived, and how long receiving its body and waiting for its model have taken.
    Created for each HTTP request; `began` is when the first byte arrived, in seconds by `clock`.
    """

    def __init__(self, clock: Clock, began: float | None = None) -> None:
        # In seconds; monotonic.
        self.clock = clock
        # When the first byte arrived, by the clock; the current time if that is unknown.
        self.began = clock() if began is None else began
        # Seconds until the last byte arrived.
        self.receive = 0.0
        # Seconds of waiting for models.
        self.load = 0.0

    @property
    def elapsed(self) -> float:
        """The seconds since the first byte of the request arrived."""
        return self.clock() - self.began

    def received(self) -> None:
        """Record that the last byte of the request has arrived now."""
        self.receive = self.elapsed

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Context manager that counts the time of its block as waiting for the model to be loaded."""
        began = self.clock()
        try:
            yield
        finally:
            self.load += self.clock() - began


class Stopwatch:
    """Measures the times of one answer, starting with the arrival of its request. It is created when the request is
    sent to its engine; `count` is called for the tokens that arrive, `stop` at the end, and `timings` returns the
    result.
    """

    def __init__(self, arrival: Arrival, input_tokens: int = 0) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = 0
        self._arrival = arrival
        self._created = arrival.clock()
        self._first: float | None = None
        self._ended: float | None = None

    def count(self, tokens: int) -> None:
        """Record that `tokens` tokens have arrived now."""
        if self._first is None:
            self._first = self._arrival.clock()
        self.output_tokens += tokens

    @property
    def has_begun(self) -> bool:
        """Whether the first token has arrived."""
        return self._first is not None

    @property
    def since_submission(self) -> float:
        """The seconds since the stopwatch was created, which is when the request is sent to its engine."""
        return self._arrival.clock() - self._created

    def stop(self) -> None:
        """Record that the answer has ended now."""
        self._ended = self._arrival.clock()

    def timings(self, phases: Phases | None, num_produced: int) -> Timings:
        """Return the measured values at the end of the answer, or up to now if it has not ended.

        `phases` are the times that the engine has measured, or None while they are unknown. `num_produced` is the
        number of tokens that the engine generated in that time; it exceeds the answer's tokens if a stop string ended
        the answer.
        """
        total = (self._arrival.clock() if self._ended is None else self._ended) - self._arrival.began
        ttft = None if self._first is None else self._first - self._arrival.began
        tpot = phases.decode / (num_produced - 1) if phases is not None and num_produced > 1 else None
        return Timings(
            ttft=ttft,
            total_latency=total,
            tokens_per_second=(self.input_tokens + self.output_tokens) / total if total else None,
            output_tokens_per_second=1 / tpot if tpot else None,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            tpot=tpot,
            breakdown=None if phases is None else self._breakdown(phases, total if ttft is None else ttft, total),
        )

    def _breakdown(self, phases: Phases, before: float, total: float) -> Breakdown:
        """Divide `total`, the seconds that the answer took, into phases. `phases` are the times that the engine has
        measured, and `before` is the part of `total` before the first token.

        A phase that another process has measured may be longer than the time left, because the first token may have
        waited while the engine generated more. So each phase gets at most the time left, and none is negative.
        """
        remaining = before
        parts = {"receive": self._arrival.receive, "load": self._arrival.load}
        for name, seconds in {**parts, "queue": phases.queue, "prefill": phases.prefill}.items():
            parts[name] = min(seconds, remaining)
            remaining -= parts[name]
        decode = min(phases.decode, total - before)
        return Breakdown(**parts, prepare=remaining, decode=decode, deliver=total - before - decode)
