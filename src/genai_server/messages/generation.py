"""One request and its answer; `key` numbers the request within one connection."""

from msgspec import Struct

from genai_server.generation import FinishReason, GenerationRequest, Phases, TokenLogprob


class Submit(Struct, frozen=True, tag=True):
    """Generate; answered by `Accepted` or `Refused`, then by `Tokens` and one of `Finished` and `Failed`."""

    key: int
    request: GenerationRequest


class Cancel(Struct, frozen=True, tag=True):
    """Nobody wants this request's answer any more; nothing is answered."""

    key: int


class Stop(Struct, frozen=True, tag=True):
    """The answer is complete as far as it has come; answered by `Finished` if it runs."""

    key: int


class Accepted(Struct, frozen=True, tag=True):
    """The request will end in exactly one `Finished` or `Failed`."""

    key: int


class Refused(Struct, frozen=True, tag=True):
    """The request was not taken; `code` names a class of errors.py, `param` the field at fault, if one is, and
    `retry_after` the seconds after which it may be taken, if it may.
    """

    key: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None


class Tokens(Struct, frozen=True, tag=True, omit_defaults=True):
    """The next token ids of an answer, with one of `logprobs` for each if the request wants them."""

    key: int
    tokens: list[int]
    logprobs: list[TokenLogprob] = []


class PromptLogprobs(Struct, frozen=True, tag=True):
    """The log probabilities of the next tokens of the prompt; the very first token has none and is left out."""

    key: int
    logprobs: list[TokenLogprob]


class Progress(Struct, frozen=True, tag=True):
    """So many tokens of the prompt are read, those included that the cache had; sent after each chunk, if wanted."""

    key: int
    num_read: int
    num_cached: int


class Finished(Struct, frozen=True, tag=True):
    """The answer is complete; `phases` says what the engine spent on it, `num_cached` how much of the prompt it had,
    `num_profiled` how many of its tokens were profiled.
    """

    key: int
    reason: FinishReason
    phases: Phases
    num_cached: int = 0
    num_profiled: int = 0


class Failed(Struct, frozen=True, tag=True):
    """The answer ended in an error; `code` names a class of errors.py, `param` the field at fault, if one is."""

    key: int
    code: str
    message: str
    param: str | None = None


# What an engine tells of a request.
Event = Accepted | Refused | Tokens | PromptLogprobs | Progress | Finished | Failed
