"""One request and its answer; `key` numbers the request within one connection."""

from msgspec import Struct

from genai_server.generation import FinishReason, GenerationRequest, Phases, TokenLogprob
from genai_server.messages.error import ErrorInfo


class Submit(Struct, frozen=True, tag=True):
    """Generate; answered by `Accepted` or `Refused`, then by `Tokens` and one of `Finished` and `Failed`."""

    key: int
    request: GenerationRequest
    # The next message is a Submit, too, and belongs with this one: all of these are taken, or none is.
    more: bool = False


class Cancel(Struct, frozen=True, tag=True):
    """End the request; nothing is answered."""

    key: int


class Stop(Struct, frozen=True, tag=True):
    """The answer is complete as far as it has come; answered by `Finished` if it runs."""

    key: int


class Accepted(Struct, frozen=True, tag=True):
    """The request will end in exactly one `Finished` or `Failed`."""

    key: int


class Refused(Struct, frozen=True, tag=True):
    """The request was not taken."""

    key: int
    error: ErrorInfo


class Tokens(Struct, frozen=True, tag=True, omit_defaults=True):
    """The next tokens of an answer."""

    key: int
    # Their ids.
    tokens: list[int]
    # One for each token if the request wants them, else none.
    logprobs: list[TokenLogprob] = []


class PromptLogprobs(Struct, frozen=True, tag=True):
    """The log probabilities of the next tokens of the prompt; the very first token has none and is left out."""

    key: int
    logprobs: list[TokenLogprob]


class Progress(Struct, frozen=True, tag=True):
    """How far the prompt is read; sent after each chunk, if the request wants it."""

    key: int
    # Tokens, those included that the cache had.
    num_read: int
    num_cached: int


class Finished(Struct, frozen=True, tag=True):
    """The answer is complete."""

    key: int
    reason: FinishReason
    phases: Phases
    # Tokens of the prompt that the cache had.
    num_cached: int = 0
    # Tokens of the answer that were profiled.
    num_profiled: int = 0


class Failed(Struct, frozen=True, tag=True):
    """The answer ended in an error."""

    key: int
    error: ErrorInfo


# What an engine tells of a request.
Event = Accepted | Refused | Tokens | PromptLogprobs | Progress | Finished | Failed
