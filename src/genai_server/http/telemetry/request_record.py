"""What is recorded about an HTTP request for log, metrics and traces (`RequestRecord`), and the token counts of its
response (`Usage`) in OpenAI's formats. When a request has ended, its record is passed to observers, functions that
write the log, count or export it. `log_request`, the observer that writes the log, is in this module.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from starlette.types import Scope

from genai_server.http.json_response import JsonObject
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.timing import Arrival, Timings


@dataclass(frozen=True)
class Usage:
    """The token counts of a response: tokens of the prompt and of the answers (`completion`), and how many of them were
    cached, are reasoning, were drafted, or stand for images or audio.
    """

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    # Drafted tokens that became part of the answer, and those that did not.
    accepted: int = 0
    rejected: int = 0
    # Tokens of the prompt that stand for images, and for audio.
    images: int = 0
    audio: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum of both, count by count."""
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> JsonObject:
        """Return the token counts as the object `usage` of OpenAI's chat completions."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {
                "audio_tokens": self.audio,
                "cached_tokens": self.cached,
                "image_tokens": self.images,
            },
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }

    def to_response_json(self) -> JsonObject:
        """Return the token counts as the object `usage` of OpenAI's Responses API. `cache_write_tokens` is always 0,
        because cache writes are not billed.
        """
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }


# The name by which operators filter the log, whatever the module is called.
log = logging.getLogger("genai_server.http.telemetry.request_log")

# The outcome of an answer whose client has left.
ABORT = "abort"


class AnswerFigures(Protocol):
    """What log, metrics and traces report about one answer to a request: outcome, token counts and times. A protocol
    that running answers implement.
    """

    @property
    def outcome(self) -> str:
        """How the answer ended: its finish reason, an error code, or `abort` if the client disconnected first."""

    @property
    def usage(self) -> Usage:
        """The tokens of the prompt and of the answer so far. Cached and drafted tokens are only known when the answer
        has ended.
        """

    def timings(self) -> Timings:
        """Return how long the parts of the answer took. Only complete when the answer has ended."""

    def close(self) -> None:
        """Cancel the answer in the engine unless it has ended."""


def usage_of(answers: Sequence[AnswerFigures], num_per_prompt: int) -> Usage:
    """Return the token counts of several answers together. The tokens of a prompt count once, however many answers it
    has.

    Answers to the same prompt must be next to each other. Each prompt has `num_per_prompt` answers.
    """
    usages = [answer.usage for answer in answers]
    return Usage(
        prompt=sum(usage.prompt for usage in usages[::num_per_prompt]),
        completion=sum(usage.completion for usage in usages),
        cached=sum(usage.cached for usage in usages[::num_per_prompt]),
        reasoning=sum(usage.reasoning for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
        rejected=sum(usage.rejected for usage in usages),
    )


@dataclass
class RequestRecord:
    """What is recorded about one HTTP request, from its arrival to its end, for the observers: log, metrics and traces.
    A refused request has a status but no answers. `start_request` creates it.
    """

    scope: Scope
    # The client's id if it gave one; several requests may have the same.
    request_id: str
    # The server's own id, which no other request has.
    unique_id: str
    # The model's name in answers; the first model's until one is chosen.
    model: str
    arrival: Arrival
    # Seconds since 1970 at the arrival.
    began_at: float
    # The model that the request asked for if none of that name is served, in at most 100 characters; "" otherwise.
    unknown_model: str = ""
    # The name of its API key; "" without one.
    key_name: str = ""
    # How long the request took; known at its end.
    seconds: float = 0.0
    # HTTP's status; 0 until the response has begun.
    status: int = 0
    # The code of the error in the response, before or after the headers.
    error_code: str | None = None
    # "" until one is chosen.
    device: str = ""
    # Answers to the same prompt stand side by side.
    answers: Sequence[AnswerFigures] = ()
    num_per_prompt: int = 1
    is_streamed: bool = False
    # How tokens are chosen; None until an engine has accepted the request.
    asked: Sampling | None = None
    # Most tokens of each answer; None until an engine has accepted the request.
    max_tokens: int | None = None
    # Whether the server itself makes it for a client which does not wait for it.
    is_low_priority: bool = False
    # Whether it continues after its HTTP response, until `end` is called.
    is_detached: bool = False
    # Passes it to the observers.
    end: Callable[[], None] = lambda: None

    def answered(self, answers: Sequence[AnswerFigures], num_per_prompt: int, request: GenerationRequest) -> None:
        """Record that engines have accepted the request and generate `answers`, of which each prompt has
        `num_per_prompt`. `request` is what was sent to the engine for one of them.
        """
        self.answers, self.num_per_prompt = answers, num_per_prompt
        self.asked, self.max_tokens = request.sampling, request.max_tokens

    @property
    def path(self) -> str:
        """The path of the route that handled the request, with the names of parameters instead of their values; "" if
        there was no route.
        """
        route_path: str = getattr(self.scope.get("route"), "path", "")
        return route_path

    @property
    def only_reads(self) -> bool:
        """Whether the request changes nothing, judged by its method: GET, HEAD or OPTIONS."""
        return self.scope["method"] in ("GET", "HEAD", "OPTIONS")

    @property
    def is_for_answers(self) -> bool:
        """Whether the request asked a model for answers, and got some or was refused. Requests to admin endpoints and
        unknown paths are not for answers.
        """
        is_refused = self.status >= 400 and not self.only_reads and self.path and "/admin/" not in self.path
        return bool(self.answers or is_refused)

    @property
    def usage(self) -> Usage:
        """The token counts of all answers to the request together."""
        return usage_of(self.answers, self.num_per_prompt)


# Receives each request that has ended; must not block.
Observer = Callable[[RequestRecord], None]


def log_request(record: RequestRecord) -> None:
    """Write the log line of a request that has ended: at level info, or at debug if it only reads or belongs to a
    batch. An observer of requests.

    If the log's level is debug, the line has the client's address.
    """
    level = logging.DEBUG if record.only_reads or record.is_low_priority else logging.INFO
    if log.isEnabledFor(level):
        fields = fields_of(record)
        if log.isEnabledFor(logging.DEBUG) and record.scope.get("client"):
            fields["client"] = record.scope["client"][0]
        log.log(level, "request", extra={"fields": fields})


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """Return the values in a request's log line, by name. Times are in seconds; for several answers, they are the times
    of the first answer.
    """
    fields: dict[str, Any] = {
        "id": record.request_id,
        "method": record.scope["method"],
        "path": record.path or None,
        "status": record.status,
        "error": record.error_code,
        "model": record.unknown_model or None,
        "seconds": record.seconds,
        "unique_id": record.unique_id if record.unique_id != record.request_id else None,
        "key_name": record.key_name or None,
    }
    if record.answers:
        first, usage = record.answers[0], record.usage
        timings = first.timings()
        fields |= {
            "model": record.model,
            "device": record.device,
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "output_tokens": usage.completion,
            **({} if timings.breakdown is None else asdict(timings.breakdown)),
            "total_latency": timings.total_latency,
            "ttft": timings.ttft,
            "tpot": timings.tpot,
            "finish_reason": ",".join(answer.outcome for answer in record.answers),
        }
    return {name: _short(value) for name, value in fields.items() if value is not None}


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
