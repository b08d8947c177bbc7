"""One streamed answer as the client saw it, parsed from a recording. Pure functions without I/O."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Fields that hold text: some servers send a model's reasoning in a separate field.
_TEXTS = ("content", "reasoning_content", "reasoning")


@dataclass(frozen=True)
class Answer:
    """When the parts of one answer arrived, in seconds of one clock, and the numbers of tokens."""

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
        """Time to first token: seconds from sending the request to the first text; None without any text."""
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds, as in vLLM's benchmark; None below two tokens."""
        if not self.chunks or self.output_tokens < 2:
            return None
        return (self.ended - self.chunks[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """The inter-token latencies: seconds between consecutive pieces of text."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]


class AnswerError(Exception):
    """A stream is not a complete answer. The message says why."""


def read_answer(
    sent: float, pieces: Iterable[tuple[float, bytes]], *, prompt_tokens: int = 0, max_tokens: int | None = None
) -> Answer:
    """Parse a stream of server-sent events that arrived in pieces, each with its arrival time in seconds.

    An event has the time of the piece that completed it. If the stream reports no usage, the prompt counts as
    `prompt_tokens`, and the answer as `max_tokens` if it was cut off there, else as the number of its chunks. Raises
    AnswerError if the server reported an error, or if the stream ended without a finish reason.
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
    """Return the arrival times of a stream's pieces of text, even if the stream was cut off."""
    return [
        arrived
        for arrived, event in _events(pieces)
        for choice in event.get("choices") or ()
        if any((choice.get("delta") or {}).get(name) for name in _TEXTS)
    ]


def _events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    rest = b""
    for arrived, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
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
