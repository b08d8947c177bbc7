"""The vocabulary of generation that every process shares; it knows no HTTP, no model and no socket."""

from enum import StrEnum

from msgspec import Struct


class Sampling(Struct, frozen=True):
    """How the next token is chosen from the logits.

    A `temperature` of 0 is greedy, and the fields below it then have no effect. `top_k` 0 and `top_p` 1.0 switch the
    respective filter off, as do `min_p` 0.0 and `repetition_penalty` 1.0. Without a `seed` the request draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None


class GenerationRequest(Struct, frozen=True):
    """One prompt to go on from, with every default resolved.

    `prompt` are token ids, at least one. `max_tokens` bounds the answer, `max_length` prompt and answer together; both
    count tokens. `request_id` is the client's name for the request and need not be unique. `cache_prompt` lets a past
    that begins alike be used again; a lower `priority` is served earlier; an `exact` answer is bit for bit the same in
    any company.
    """

    request_id: str
    prompt: list[int]
    max_tokens: int
    max_length: int
    sampling: Sampling = Sampling()
    ignore_eos: bool = False
    cache_prompt: bool = True
    priority: int = 0
    exact: bool = False


class FinishReason(StrEnum):
    """Why a generation ended that did not fail."""

    STOP = "stop"
    LENGTH = "length"
    TERMINATED = "terminated"


class Phases(Struct, frozen=True):
    """Where a request's time went in the engine, in seconds: waiting for its turn to begin, reading the prompt up to
    the first token, and from the first token to the last.
    """

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Batching(Struct, frozen=True):
    """How an engine runs several sequences.

    `scheduler` is "batched" or "generator", `reason` why it is the latter. `num_slots` run at once. `exact` says
    whether a sequence alone gives bit for bit what it gives in a batch as it is; None where nothing is batched.
    """

    scheduler: str = "generator"
    reason: str | None = None
    num_slots: int = 0
    exact: bool | None = None


class ModelInfo(Struct, frozen=True):
    """What the API process must know of an engine's model.

    `context_length` counts tokens, prompt and answer together. `eos_token_ids` end an answer. `defaults` are the
    sampling values for fields that a request leaves out.
    """

    context_length: int
    vocab_size: int
    eos_token_ids: list[int]
    defaults: Sampling
