"""The vocabulary of generation that every process shares; it knows no HTTP, no model and no socket."""

from enum import StrEnum

import msgspec
from msgspec import Struct


class Sampling(Struct, frozen=True):
    """How the next token is chosen from the logits; each default but the temperature's switches its filter off."""

    # 0 is greedy; `top_k`, `top_p`, `min_p` and `seed` then have no effect.
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    # Without one the request draws its own.
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    # Added to the logits of these token ids, all of the vocabulary; at least 100 selects, at most -100 bans.
    logit_bias: dict[int, float] = {}


class Adapter(Struct, frozen=True):
    """A LoRA adapter of a model."""

    # Requests choose it by this.
    name: str
    # A file in onnxruntime-genai's form.
    path: str
    # New whenever a file is loaded, so that two of the same name are told apart.
    id: str


class GenerationRequest(Struct, frozen=True):
    """One prompt to continue, with every default resolved."""

    # The client's name for the request; need not be unique.
    request_id: str
    # Token ids, at least one.
    prompt: list[int]
    # Tokens of the answer, at most.
    max_tokens: int
    # Tokens of prompt and answer together, at most.
    max_length: int
    sampling: Sampling = Sampling()
    # A token that ends answers does not end this one.
    ignore_eos: bool = False
    # Whether a cached prefix may be used, one of the same `cache_salt`.
    cache_prompt: bool = True
    cache_salt: str | None = None
    # A lower one is served earlier.
    priority: int = 0
    # The answer is bitwise equal, whatever else runs.
    exact: bool = False
    # Before so many tokens nothing that ends an answer is chosen.
    min_tokens: int = 0
    # Each token comes with its log probability and those of so many likeliest ones, perhaps 0; None for without.
    top_logprobs: int | None = None
    # So do the tokens of the prompt, which then is not taken from the cache.
    prompt_logprobs: bool = False
    # What the answer must fit, in one of llguidance's two forms.
    grammar: str | None = None
    # Seconds after which the answer ends as it is.
    timeout: float | None = None
    # Whether the engine reports how far the prompt is read.
    progress: bool = False
    # The one that the model answers with.
    adapter: Adapter | None = None
    # The server's own name for the request, where `request_id` is not unique.
    unique_id: str = ""

    @property
    def own_id(self) -> str:
        """The name that no other request has."""
        return self.unique_id or self.request_id

    def after(self, seconds: float) -> "GenerationRequest":
        """The same request as one that is taken so much later: its deadline stays where it is."""
        if self.timeout is None:
            return self
        return msgspec.structs.replace(self, timeout=max(0.0, self.timeout - seconds))


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token with its log probability."""

    token: int
    # Natural, as the model gave it before any option of sampling.
    logprob: float
    # The likeliest tokens at its place with theirs, likeliest first.
    top: list[tuple[int, float]] = []


class FinishReason(StrEnum):
    """Why a generation ended that did not fail."""

    STOP = "stop"
    LENGTH = "length"
    # By the runtime option terminate_session.
    TERMINATED = "terminated"
    # At the request's deadline.
    TIMEOUT = "timeout"
    # By an admin call that named the request.
    CANCELLED = "cancelled"

    @property
    def is_interruption(self) -> bool:
        """Whether the answer was ended from outside, for which other servers' APIs have no word."""
        return self in (FinishReason.TERMINATED, FinishReason.TIMEOUT, FinishReason.CANCELLED)


class Phases(Struct, frozen=True):
    """Where a request's time went in the engine, in seconds."""

    # Before the first step.
    queue: float = 0.0
    # From there to the first token.
    prefill: float = 0.0
    # From the first token to the last.
    decode: float = 0.0


class Batching(Struct, frozen=True):
    """How an engine runs several sequences."""

    # "batched", "library" or "generator".
    scheduler: str = "generator"
    # Why it is "generator".
    reason: str | None = None
    # Sequences that run at once, at most.
    num_slots: int = 0
    # Whether a sequence alone is bitwise equal to the same in a batch; None where nothing is batched.
    exact: bool | None = None
    # Nodes of the graph that each execution provider runs, most first; None where the library does not tell.
    nodes: dict[str, int | None] = {}
    # Whether one step decodes and reads a chunk of a prompt.
    mixes: bool = False
    # From how many tokens on a step has weights of 8 bits; None if none has.
    int8_from: int | None = None


class ModelInfo(Struct, frozen=True):
    """What the API process must know of an engine's model."""

    # Tokens of prompt and answer together.
    context_length: int
    vocab_size: int
    # Each ends an answer.
    eos_token_ids: list[int]
    # For fields that a request leaves out.
    defaults: Sampling
    # Whether it gives the log probabilities of a prompt's tokens.
    scores_prompts: bool = True
