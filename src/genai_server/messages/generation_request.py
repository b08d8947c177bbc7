"""A request to an engine (`GenerationRequest`) and its parts, such as sampling parameters, images and reasoning rules;
the reasons why an answer ends; and what an engine reports about its model. All processes share these structs.

This module imports nothing about HTTP, models or sockets.
"""

from enum import StrEnum

import msgspec
from msgspec import Struct


class Sampling(Struct, frozen=True):
    """The sampling parameters of a request, such as temperature, top_p, penalties and logit bias. With the defaults,
    only the most likely token is chosen (greedy sampling) and every filter, penalty and bias is off.
    """

    # 0 is greedy; `top_k`, `top_p`, `min_p` and `seed` then have no effect.
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    # None for a random one.
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    # Added to the logits of these token ids; 100 or more selects a token, -100 or less bans it.
    logit_bias: dict[int, float] = {}
    # How many of the last tokens of prompt and answer the three penalties look at; -1 for all, 0 for no penalties.
    repeat_last_n: int = -1
    # A bit for each token of the vocabulary, the lowest id first: whether the answer may have it. Empty for all tokens.
    allowed_tokens: bytes = b""
    # Words of one or more tokens that the answer must not have.
    bad_words: list[list[int]] = []

    @property
    def penalizes(self) -> bool:
        """Whether the repetition, frequency or presence penalty changes any logits."""
        values = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        return self.repeat_last_n != 0 and values != (1.0, 0.0, 0.0)


class Adapter(Struct, frozen=True):
    """A LoRA adapter of a model: the name by which requests choose it, its file, and an id that is new for each
    load.
    """

    # The name by which requests choose it.
    name: str
    # A file in the format of onnxruntime-genai.
    path: str
    # New for each load, so that two adapters with the same name differ.
    id: str


class PooledText(Struct, frozen=True, array_like=True):
    """One text, or a pair of texts, of an embedding or reranking request: the model computes one vector or one score
    for it. The fields say which part of the request's `prompt` it is, in tokens.
    """

    num_tokens: int
    # Where the second text of a pair begins; 0 for a single text.
    second: int = 0
    # Number of tokens at the beginning that are read but not pooled.
    num_left_out: int = 0


class Image(Struct, frozen=True):
    """An image of a prompt, preprocessed for the model: the file with its tensors, and the position of its tokens in
    the prompt.
    """

    # Equal for images that the model sees alike. Requests with different salts have different digests.
    digest: str
    # An .npz file with the tensors that the library's image processor makes of this image.
    path: str
    # Where its tokens begin in the prompt, and how many there are. Some may only structure the others.
    start: int
    num_tokens: int
    # Frames, rows and columns of its features; None for models whose positions have no such axes.
    grid: tuple[int, int, int] | None = None


class AudioInput(Struct, frozen=True):
    """A window of a recording, preprocessed for a model that transcribes audio: the file with the audio features, and a
    digest that identifies equal windows.
    """

    # Equal for equal windows. Requests with different salts have different digests.
    digest: str
    # An .npz file with the float32 array `audio_features` [1, mels, frames] of the library's audio processor.
    path: str


class Alignment(Struct, frozen=True):
    """A request's known transcript of a window of audio, for which the engine computes when each token is spoken."""

    # The model's prompt for a transcript without timestamps, the text, and the end of text.
    tokens: list[int]
    # Tokens of the prompt in front of the text; at least one.
    num_before: int
    # Length of the audio.
    seconds: float


class TranscriptRules(Struct, frozen=True):
    """Constraints on the tokens that may be chosen for a transcript: tokens that never occur, and the order of
    timestamps. They are those of SuppressTokens and ApplyTimestampRules in openai/whisper.
    """

    # Never chosen.
    suppressed: list[int]
    end_of_text: int
    # The token of the first timestamp. Those after it have ascending ids.
    first_timestamp: int
    # The last timestamp with which a transcript may begin, counted from the first one. Further ones come in pairs of an
    # end and a start, and never decrease.
    max_first: int


class ReasoningRules(Struct, frozen=True):
    """How the engine recognizes reasoning ("thoughts") in the text of an answer, and how many tokens the reasoning may
    have before the engine ends it. A part of `GenerationRequest` for reasoning models.
    """

    # Regular expressions that find, in an answer's text, the marker that begins a thought and the one that ends it.
    opening: str
    closing: str
    # Whether the answer begins within a thought.
    is_open: bool
    # Whether an answer may have several thoughts, anywhere; otherwise it may have one, at its beginning.
    allows_several: bool
    # Tokens that close the first thought whose tokens are used up, and those for each later one.
    end: list[int]
    later_end: list[int]
    # Maximum number of tokens of all thoughts together, before such an end; None for any number.
    budget: int | None = None


class GenerationRequest(Struct, frozen=True):
    """A request as an API process sends it to an engine: one prompt to continue, or texts for which to compute vectors
    or scores. The API process has already put a value in place of each field that the client left out.
    """

    # The client's name for the request; need not be unique.
    request_id: str
    # Token ids; at least one. With `texts`, the tokens of all texts, concatenated.
    prompt: list[int]
    # Maximum number of tokens of the answer.
    max_tokens: int
    # Maximum number of tokens of prompt and answer together.
    max_length: int
    sampling: Sampling = Sampling()
    # Whether the answer continues after an end-of-sequence token.
    ignore_eos: bool = False
    # Whether a cached prefix of the same `cache_salt` may be used.
    cache_prompt: bool = True
    cache_salt: str | None = None
    # Stands for the API key: a device is shared equally among the tenants that have requests there. Requests without a
    # key have the same.
    tenant: str = ""
    # Lower values are served earlier, among the requests of a tenant.
    priority: int = 0
    # Lower values are served earlier, whatever the tenant.
    precedence: int = 0
    # Whether the answer may wait for all others: it only takes what these leave of the device, whatever its tenant and
    # priority.
    low_priority: bool = False
    # Whether the answer must be bitwise independent of other requests.
    exact: bool = False
    # Minimum number of tokens before an end-of-sequence token may be chosen.
    min_tokens: int = 0
    # Number of most likely tokens to return with each token's log probability; None for no log probabilities.
    top_logprobs: int | None = None
    # Whether to return them for the prompt's tokens, too. Such a prompt is not taken from the cache.
    prompt_logprobs: bool = False
    # Tokens that end the answer and are not part of it, whatever `ignore_eos` says.
    stop_token_ids: list[int] = []
    # What the answer must match, in one of llguidance's two forms.
    grammar: str | None = None
    # Whether the answer fails where its grammar cannot be followed. Otherwise it continues without it.
    needs_grammar: bool = True
    # Seconds after which the answer ends with the tokens so far.
    timeout: float | None = None
    # Whether the engine reports the progress of reading the prompt.
    progress: bool = False
    adapter: Adapter | None = None
    # The server's own name for the request, where `request_id` is not unique.
    unique_id: str = ""
    # The name of the client's API key, for operators; "" without one.
    key_name: str = ""
    # Tokens that the answer may contain, for drafts. Where tokens do not have the same result in any pass, drafts may
    # change the chosen token near a tie, and have no effect with a seed.
    prediction: list[int] = []
    # Stands for the clients that may share answers, as drafts. Drafts come from earlier answers with the same, unless
    # `cache_prompt` is off, and this answer is kept for later ones; "" for neither.
    answer_memory: str = ""
    # The texts in the prompt, each of which gets a vector or a score; empty for a prompt to continue.
    texts: list[PooledText] = []
    # In the order of their tokens in the prompt.
    images: list[Image] = []
    # Only for models for speech, which need one.
    sound: AudioInput | None = None
    transcript: TranscriptRules | None = None
    # Only with audio, and only if `ModelInfo.aligns`.
    alignment: Alignment | None = None
    # With log probabilities, these tokens' follow the most likely ones of each token.
    scored_tokens: list[int] = []
    # How the engine finds and ends thoughts; None for a model whose thoughts have no known format.
    thoughts: ReasoningRules | None = None

    @property
    def own_id(self) -> str:
        """The id by which the server distinguishes the request from all others: its unique id, or the client's id if
        the server has given it no unique id.
        """
        return self.unique_id or self.request_id

    def after(self, seconds: float) -> "GenerationRequest":
        """Return a copy of the request to be sent again after it has waited for `seconds`: its timeout is shorter by
        that time, but not below 0.
        """
        if self.timeout is None:
            return self
        return msgspec.structs.replace(self, timeout=max(0.0, self.timeout - seconds))


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token's id with its log probability (natural logarithm), and the most likely other tokens at its position with
    theirs.
    """

    token: int
    # Natural logarithm, from the model's logits before sampling options, but with the rules of a transcript.
    logprob: float
    # The most likely tokens at its position with their log probabilities, in descending order, and the request's
    # `scored_tokens` with theirs.
    top: list[tuple[int, float]] = []


class FinishReason(StrEnum):
    """The reason why an answer ended without an error, such as a stop sequence, the maximum length, a timeout, or an
    operator who cancelled it.
    """

    STOP = "stop"
    LENGTH = "length"
    # Ended by the runtime option terminate_session.
    TERMINATED = "terminated"
    # At the request's deadline.
    TIMEOUT = "timeout"
    # Ended by an admin call that named the request.
    CANCELLED = "cancelled"
    # The answer repeated itself.
    REPETITION = "repetition"

    @property
    def is_interruption(self) -> bool:
        """Whether something other than the model ended the answer: an operator, a runtime option or the deadline."""
        return self in (FinishReason.TERMINATED, FinishReason.TIMEOUT, FinishReason.CANCELLED)

    @property
    def is_own(self) -> bool:
        """Whether the reason exists only in this server, and has no counterpart in the HTTP APIs that the server
        implements.
        """
        return self is FinishReason.REPETITION or self.is_interruption


class Phases(Struct, frozen=True):
    """How many seconds a request spent in each phase in the engine: waiting in the queue, prefill (up to the first
    token) and decode (up to the last token).
    """

    # Waiting, before the first step.
    queue: float = 0.0
    # From the first step to the first token.
    prefill: float = 0.0
    # From the first token to the last.
    decode: float = 0.0


class Batching(Struct, frozen=True):
    """How an engine runs several sequences at a time: its scheduler, its number of slots, and abilities such as
    speculative decoding. The engine reports it to API processes when they connect.
    """

    # "batched", "generator" or, where texts are pooled, "pooled".
    scheduler: str = "generator"
    # Why `scheduler` is "generator".
    reason: str | None = None
    # Maximum number of running sequences.
    num_slots: int = 0
    # Number of the graph's nodes by execution provider, in descending order; None if the library does not report it.
    nodes: dict[str, int | None] = {}
    # Whether a pass can read any number of tokens of any sequences.
    mixes: bool = False
    # Whether answers are bitwise the same in any company.
    exact: bool = False
    # Whether the next tokens of sequences are drafted and verified together.
    speculates: bool = False
    # The name of the directory of the model that drafts them; None if only their own text does.
    draft_model: str | None = None


# What limits the length of sequences, unless the settings or the memory do.
CONTEXT = "the model's context"


class ModelInfo(Struct, frozen=True):
    """What an engine reports about its model when an API process connects: context length, vocabulary size, tokens that
    end an answer, default sampling parameters, and abilities.
    """

    # Tokens of prompt and answer together that the model was made for.
    context_length: int
    vocab_size: int
    # Tokens that end an answer.
    eos_token_ids: list[int]
    # For sampling fields that a request leaves out.
    defaults: Sampling
    # Whether it can compute the log probabilities of a prompt's tokens.
    scores_prompts: bool = True
    # Whether it can tell when the tokens of a transcript are spoken.
    aligns: bool = False
    # Tokens of prompt and answer together that its engine takes; 0 for the model's context.
    limit: int = 0
    # What sets `max_length`, in words for messages.
    limited_by: str = CONTEXT

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of prompt and answer together: the engine's limit if it has one, otherwise the
        model's context length.
        """
        return self.limit or self.context_length
