"""Evaluates streamed answers of benchmarks: `read_answer` parses a recorded response, and `answer_figures` computes
figures (named values such as `ttft_p50`) from many answers.

A `Measurement` has the figures of one target (server) in one case (kind of request) and one round, and a `Summary`
combines them over the rounds. All functions are pure, without I/O.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np

# Fields that hold text: some servers send a model's reasoning in a separate field.
_TEXTS = ("content", "reasoning_content", "reasoning")


@dataclass(frozen=True)
class Answer:
    """One complete streamed answer as the client saw it: when its parts arrived, in seconds of the client's clock, and
    its numbers of tokens. `read_answer` returns it.
    """

    sent: float
    # Arrivals of the pieces of text. A token without text, such as half a character, has none.
    chunks: tuple[float, ...]
    # Arrival of the last chunk of the answer, with or without text.
    ended: float
    prompt_tokens: int
    output_tokens: int
    # None if the server does not report it.
    cached_tokens: int | None = None
    # Output tokens that were drafted, without rejected ones; None if the server does not report it.
    drafted_tokens: int | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token: seconds from sending the request to the arrival of the first text; None if the answer
        has no text.
        """
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Time per output token: seconds from the first text to the end, divided by the number of tokens after the
        first, as in vLLM's benchmark. None if the answer has fewer than two tokens or no text.
        """
        if not self.chunks or self.output_tokens < 2:
            return None
        return (self.ended - self.chunks[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """The inter-token latencies: seconds between consecutive pieces of text."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]


class AnswerError(Exception):
    """A request of a benchmark has not brought a complete answer. The message says why."""


def read_answer(
    sent: float, pieces: Iterable[tuple[float, bytes]], *, prompt_tokens: int = 0, max_tokens: int | None = None
) -> Answer:
    """Return the answer in a recorded stream of server-sent events. `sent` is the time at which the request was sent,
    and `pieces` are the pieces of the stream, each with its arrival time; all times are in seconds.

    An event has the time of the piece that completed it. If the stream reports no usage, the prompt counts as
    `prompt_tokens`, and the answer as `max_tokens` if it was cut off there, otherwise as the number of its chunks.
    Raises AnswerError if the server reported an error, or if the stream ended without a finish reason.
    """
    chunks: list[float] = []
    ended: float | None = None
    reason: str | None = None
    usage: dict[str, Any] = {}
    for arrived, event in _events(pieces):
        if "error" in event:
            raise AnswerError(json.dumps(event["error"], ensure_ascii=False))
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            ended = arrived
            reason = reason or choice.get("finish_reason")
            delta = choice.get("delta") or {}
            if any(delta.get(name) for name in _TEXTS):
                chunks.append(arrived)
    if ended is None or not reason:
        raise AnswerError("the stream ended without a finish_reason")
    of_prompt, of_output = (usage.get(f"{name}_tokens_details") or {} for name in ("prompt", "completion"))
    return Answer(
        sent,
        tuple(chunks),
        ended,
        usage.get("prompt_tokens", prompt_tokens),
        usage.get("completion_tokens", max_tokens if max_tokens and reason == "length" else len(chunks)),
        of_prompt.get("cached_tokens"),
        of_output.get("accepted_prediction_tokens"),
    )


def text_times(pieces: Iterable[tuple[float, bytes]]) -> list[float]:
    """Return when each piece of text in a recorded stream arrived, even if the stream was cut off. `pieces` are the
    bytes of the stream, each with its arrival time in seconds.
    """
    return [
        arrived
        for arrived, event in _events(pieces)
        for choice in event.get("choices") or ()
        if any((choice.get("delta") or {}).get(name) for name in _TEXTS)
    ]


def _events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    incomplete = b""
    for arrived, piece in pieces:
        *lines, incomplete = (incomplete + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == line.strip() or data == b"[DONE]":
                continue
            try:
                event = json.loads(data)
            except ValueError:
                raise AnswerError(f"not JSON: {data[:200].decode(errors='replace')}") from None
            if isinstance(event, dict):
                yield arrived, event


Figures = dict[str, float | None]
# A rate needs at least this many tokens of each stream.
_MIN_TOKENS = 8


@dataclass(frozen=True)
class Spread:
    """The median, minimum and maximum of one figure over the `rounds` rounds of a benchmark in which it is known."""

    median: float
    min: float
    max: float
    rounds: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return the median, minimum and maximum of a figure. `values` has its value in each round, None where it is
    unknown; such rounds are left out. Returns None if the figure is unknown in all rounds.
    """
    present = [value for value in values if value is not None]
    return Spread(median(present), min(present), max(present), len(present)) if present else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile of `values`, by linear interpolation between the nearest ranks, as numpy and vLLM do.
    `percent` is from 0 to 100. Returns None if there are no values.
    """
    return float(np.percentile(values, percent)) if values else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of `values`; None if there are none."""
    return fmean(values) if values else None


def latencies(name: str, values: Sequence[float], *percents: int) -> Figures:
    """Return the percentiles `percents` (0 to 100) of `values`, by the names `{name}_p50` and so on, in the unit of the
    values. A percentile is None if there are no values.
    """
    return {f"{name}_p{percent}": percentile(values, percent) for percent in percents}


def answer_figures(answers: Sequence[Answer], streams: int) -> Figures:
    """Return the figures of a load with `streams` concurrent streams, from its complete answers. Times are in seconds,
    rates in tokens per second.

    `tokens_per_second` is the number of all output tokens divided by the time from the first request to the end of the
    last answer. `prefill_tokens_per_second` is the number of prompt tokens that were not cached, divided by the time to
    the first token. It is known only for one stream, since several streams wait for each other, and if the server
    reports cached tokens.
    """
    ttfts = [answer.ttft for answer in answers if answer.ttft is not None]
    cached = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    drafted = [answer.drafted_tokens for answer in answers if answer.drafted_tokens is not None]
    prefill = [
        (answer.prompt_tokens - answer.cached_tokens) / answer.ttft
        for answer in answers
        if answer.ttft and answer.cached_tokens is not None
    ]
    return {
        **latencies("ttft", ttfts, 50, 95, 99),
        **latencies("tpot", [answer.tpot for answer in answers if answer.tpot is not None], 50, 95, 99),
        **latencies("itl", [gap for answer in answers for gap in answer.gaps], 50, 95, 99),
        "tokens_per_second": output_rate(answers),
        "decode_tokens_per_second": decode_rate(answers, streams),
        "prefill_tokens_per_second": percentile(prefill, 50) if streams == 1 else None,
        "prompt_tokens": mean([answer.prompt_tokens for answer in answers]),
        "cached_tokens": mean(cached),
        "drafted_tokens": mean(drafted),
        "output_tokens": mean([answer.output_tokens for answer in answers]),
    }


def output_rate(answers: Sequence[Answer]) -> float | None:
    """Return how many tokens all answers together have per second, from the sending of the first request to the end of
    the last answer; None without answers.
    """
    if not answers:
        return None
    wall = max(answer.ended for answer in answers) - min(answer.sent for answer in answers)
    return sum(answer.output_tokens for answer in answers) / wall if wall > 0 else None


def per_token(answers: Sequence[Answer], before: float | None, after: float | None) -> float | None:
    """Return how much of a resource, such as CPU seconds, was used for each output token of `answers`; None if it is
    unknown.

    `before` and `after` are the total use of the resource before and after the answers; None if it could not be read.
    """
    tokens = sum(answer.output_tokens for answer in answers)
    return (after - before) / tokens if tokens and before is not None and after is not None else None


def decode_rate(answers: Sequence[Answer], streams: int) -> float | None:
    """Return the tokens per second of all streams together while all of them decode and no prompt is processed.

    It is measured over the time in which exactly `streams` answers are between their first text and their end. For one
    wave of requests, this is the time from the last first token to the first end. For a single stream it gives (tokens
    - 1) / (last - first). Tokens after the first text are assumed to arrive in equal parts with each chunk. None if
    that time has fewer than 8 tokens per stream.
    """
    decoding = [answer for answer in answers if answer.chunks and answer.output_tokens > 1]
    seconds = tokens = 0.0
    for start, end in _all_decoding(decoding, streams):
        seconds += end - start
        tokens += sum(_tokens_between(answer, start, end) for answer in decoding)
    return tokens / seconds if seconds > 0 and tokens >= _MIN_TOKENS * streams else None


def _all_decoding(answers: Sequence[Answer], streams: int) -> list[tuple[float, float]]:
    """Return the time spans, as pairs of start and end in seconds, in which exactly `streams` answers are between their
    first text and their end.
    """
    # At equal times an end (-1) sorts before a beginning.
    changes = sorted([(answer.chunks[0], 1) for answer in answers] + [(answer.ended, -1) for answer in answers])
    spans, active = [], 0
    for (moment, change), (following, _) in zip(changes, changes[1:], strict=False):
        active += change
        if active == streams and following > moment:
            spans.append((moment, following))
    return spans


def _tokens_between(answer: Answer, start: float, end: float) -> float:
    later = answer.chunks[1:]
    if not later:
        inside = answer.chunks[0] <= start and answer.ended <= end
        return answer.output_tokens - 1 if inside else 0.0
    if start <= answer.chunks[0] and answer.ended <= end:
        return answer.output_tokens - 1
    return sum(start < moment <= end for moment in later) * (answer.output_tokens - 1) / len(later)


def gaps_within(times: Sequence[float], start: float, end: float) -> list[float]:
    """Return those gaps between consecutive arrivals `times` that overlap the time from `start` to `end`, even in part.
    All times are in seconds.
    """
    return [after - before for before, after in zip(times, times[1:], strict=False) if after > start and before < end]


@dataclass(frozen=True)
class Case:
    """One kind of request that a benchmark measures: its name, the number of concurrent streams, and the numbers of
    prompt tokens and of output tokens.
    """

    name: str
    streams: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Measurement:
    """The results of one case (kind of request) on one target (server or library) in one round: figures by name, the
    number of completed requests, and a text for each failed one.
    """

    target: str
    case: Case
    round: int
    figures: Figures
    completed: int
    # One text for each failed request.
    errors: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Summary:
    """The results of one case (kind of request) on one target (server or library) over all rounds: the spread of each
    figure, and how many requests were completed and failed.
    """

    target: str
    case: Case
    figures: dict[str, Spread | None]
    completed: int
    failed: int
    first_error: str | None


def summarize(measurements: Iterable[Measurement]) -> list[Summary]:
    """Combine the measurements of all rounds: return a Summary for each pair of case and target, in the order in which
    these pairs first occur.

    A Summary has the median and extremes of each figure over the measurements of its case and target.
    """
    rounds: dict[tuple[str, Case], list[Measurement]] = {}
    for measurement in measurements:
        rounds.setdefault((measurement.target, measurement.case), []).append(measurement)
    return [_summary(target, case, of_case) for (target, case), of_case in rounds.items()]


def _summary(target: str, case: Case, rounds: Sequence[Measurement]) -> Summary:
    names = dict.fromkeys(name for measurement in rounds for name in measurement.figures)
    errors = [error for measurement in rounds for error in measurement.errors]
    return Summary(
        target,
        case,
        {name: spread([measurement.figures.get(name) for measurement in rounds]) for name in names},
        sum(measurement.completed for measurement in rounds),
        len(errors),
        errors[0] if errors else None,
    )
