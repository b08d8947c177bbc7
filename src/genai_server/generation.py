"""The vocabulary of generation that every process shares; it knows no HTTP, no model and no socket."""

from enum import StrEnum

import msgspec
from msgspec import Struct


class Sampling(Struct, frozen=True):
    """How the next token is chosen from the logits.

    A `temperature` of 0 is greedy, and `top_k`, `top_p`, `min_p` and `seed` then have no effect. `top_k` 0 and `top_p`
    1.0 switch the respective filter off, as do `min_p` 0.0, a `repetition_penalty` of 1.0 and the two other penalties
    at 0.0. `logit_bias` is added to the logits of these token ids, which must be in the vocabulary; 100 and more is
    exclusive selection, -100 and less a ban. Without a `seed` the request draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}


class Adapter(Struct, frozen=True):
    """A LoRA adapter of a model: a file in the form of onnxruntime-genai, which requests choose by `name`. The `id` is
    new whenever a file is loaded, so that two of the same name are told apart.
    """

    name: str
    path: str
    id: str


class GenerationRequest(Struct, frozen=True):
    """One prompt to go on from, with every default resolved.

    `prompt` are token ids, at least one. `max_tokens` bounds the answer, `max_length` prompt and answer together; both
    count tokens. `request_id` is the client's name for the request and need not be unique. `cache_prompt` lets a past
    that begins alike be used again; a lower `priority` is served earlier; an `exact` answer is bit for bit the same in
    any company. Until `min_tokens` are produced nothing that ends an answer is chosen. With `top_logprobs`, also if it
    is 0, each token comes with its log probability and those of so many likeliest ones; with `prompt_logprobs` so do
    the tokens of the prompt, which then is not taken from the cache. A `grammar`, in one of llguidance's two forms, is
    what the answer must fit. After `timeout` seconds the answer ends as it is. With `progress` it is told how far the
    prompt has been read. An `adapter` is the one that the model answers with.
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
    min_tokens: int = 0
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    grammar: str | None = None
    timeout: float | None = None
    progress: bool = False
    adapter: Adapter | None = None

    def after(self, seconds: float) -> "GenerationRequest":
        """The same request for somebody who gets it so much later: its deadline stays where it is."""
        if self.timeout is None:
            return self
        return msgspec.structs.replace(self, timeout=max(0.0, self.timeout - seconds))


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token with its log probability (natural), as the model gave it before any option of sampling, and the likeliest
    tokens at its place with theirs, likeliest first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


class FinishReason(StrEnum):
    """Why a generation ended that did not fail: the last three by an operator's option, at the request's deadline, and
    because somebody asked for it by the request's name.
    """

    STOP = "stop"
    LENGTH = "length"
    TERMINATED = "terminated"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"

    @property
    def is_interruption(self) -> bool:
        """Whether the answer was ended from outside, for which other servers' APIs have no word."""
        return self in (FinishReason.TERMINATED, FinishReason.TIMEOUT, FinishReason.CANCELLED)


class Phases(Struct, frozen=True):
    """Where a request's time went in the engine, in seconds: waiting for its turn to begin, reading the prompt up to
    the first token, and from the first token to the last.
    """

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Batching(Struct, frozen=True):
    """How an engine runs several sequences.

    `scheduler` is "batched", "library" or "generator", `reason` why it is the last. `num_slots` run at once. `exact`
    says whether a sequence alone gives bit for bit what it gives in a batch as it is; None where nothing is batched.
    `nodes` says how many nodes of the graph each execution provider runs, in the order of their share, or None for each
    where the library does not tell.
    """

    scheduler: str = "generator"
    reason: str | None = None
    num_slots: int = 0
    exact: bool | None = None
    nodes: dict[str, int | None] = {}


class ModelInfo(Struct, frozen=True):
    """What the API process must know of an engine's model.

    `context_length` counts tokens, prompt and answer together. `eos_token_ids` end an answer. `defaults` are the
    sampling values for fields that a request leaves out. `scores_prompts` says whether it gives the log probabilities
    of a prompt's tokens.
    """

    context_length: int
    vocab_size: int
    eos_token_ids: list[int]
    defaults: Sampling
    scores_prompts: bool = True
