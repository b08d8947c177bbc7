"""The protocol between an API process (which serves HTTP) and an engine (the process that runs a model on a device):
requests (`Submit`), the tokens and results of answers (`Tokens`, `Finished`, `Failed`), the engine's load (`Load`), and
its counters for the metrics (`Figures`).

The messages of admin calls are in admin.py, the frames that carry all of these messages in frames.py.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from genai_server.errors import QueueFull
from genai_server.messages.admin import AdminCall, AdminReply
from genai_server.messages.frames import MAX_FRAME_BYTES, ErrorInfo, FrameDecoder
from genai_server.messages.generation_request import (
    Batching,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    Phases,
    TokenLogprob,
)

# the first message of each side


class Hello(Struct, frozen=True, tag=True):
    """The first message that an API process sends to an engine or to the supervisor. If the secret is wrong, the
    receiver closes the connection.
    """

    secret: str


class Welcome(Struct, frozen=True, tag=True):
    """The engine's answer to `Hello`: its model is loaded, and it accepts requests on this connection. The message
    describes the model and how the engine runs several sequences at a time.
    """

    model: ModelInfo
    batching: Batching


# what an engine accepts


class Capacity(Struct, frozen=True):
    """How many requests and tokens an idle engine accepts, running and waiting. The methods compute what is left for
    one more request, so that tenants (API keys) share the engine fairly.
    """

    # Maximum number of running requests.
    running: int
    # Maximum number of waiting requests.
    waiting: int
    # Maximum number of tokens of all waiting prompts; None for no limit.
    waiting_tokens: int | None = None
    # What limits `running`, such as the name of a setting.
    limited_by: str = "GENAI_MAX_BATCH_SIZE"

    @property
    def requests(self) -> int:
        """Maximum number of requests on the device, running and waiting ones together."""
        return self.running + self.waiting

    def num_free(self, present: Mapping[str, int], tenant: str) -> int:
        """Return how many more requests of `tenant` (an API key) the device accepts. `present` has the number of
        requests now on the device by tenant.

        A tenant may always have an equal share of the capacity, however many requests the other tenants have.
        """
        equal_share = self.requests // _num_tenants(present, tenant)
        return max(0, self.requests - sum(present.values()), equal_share - present.get(tenant, 0))

    def free_tokens(self, present: Mapping[str, int], waiting_tokens: Mapping[str, int], tenant: str) -> int | None:
        """Return the maximum number of prompt tokens that one more request of `tenant` (an API key) may have.

        The result is None if the number is not limited, or if the request could run at once. `present` has the number
        of requests on the device by tenant, and `waiting_tokens` the number of tokens, by tenant, of the prompts that
        must wait. A tenant may always have an equal share of the limit for waiting tokens.
        """
        if self.waiting_tokens is None:
            return None
        num_tenants, num_own = _num_tenants(present, tenant), present.get(tenant, 0)
        is_free = not waiting_tokens and sum(present.values()) < self.running
        if is_free or (num_tenants > 1 and num_own < max(1, self.running // num_tenants)):
            return None
        equal_share = self.waiting_tokens // num_tenants
        free = self.waiting_tokens - sum(waiting_tokens.values())
        return max(0, free, equal_share - waiting_tokens.get(tenant, 0))

    def request_limit_error(
        self, device: str, present: Mapping[str, int], tenant: str, retry_after: int | None, more: str = ""
    ) -> QueueFull:
        """Return the error for one more request of `tenant` (an API key) when the device has its maximum number of
        requests.

        `device` is the device's name in the message. `present` has the number of requests by tenant. `retry_after` is
        the number of seconds after which there may be space; None if unknown. `more` is put at the end of the message.
        """
        num_tenants = _num_tenants(present, tenant)
        tenant_note = f", {present.get(tenant, 0)} of them of this key" if num_tenants > 1 else ""
        equal_share = (
            f"; the equal share of each of {num_tenants} keys is {self.requests // num_tenants}" if tenant_note else ""
        )
        return QueueFull(
            f"{sum(present.values())} requests are on {device} already{tenant_note}: "
            f"{self.limited_by} lets {self.running} run and "
            f"GENAI_MAX_QUEUE lets {self.waiting} wait{equal_share}{more}",
            retry_after=retry_after,
        )

    def token_limit_error(self, device: str, num_tokens: int, length: int, retry_after: int | None) -> QueueFull:
        """Return the error for a request whose prompt of `length` tokens may not wait, because all waiting prompts
        together would then have `num_tokens` tokens, which is more than the limit.

        `device` is the device's name in the message. `retry_after` is the number of seconds after which there may be
        space; None if unknown.
        """
        return QueueFull(
            f"the prompts of the requests that wait for {device} would have {num_tokens} tokens with this one's "
            f"{length}: GENAI_MAX_QUEUE_TOKENS lets {self.waiting_tokens} wait",
            retry_after=retry_after,
        )


def _num_tenants(present: Mapping[str, int], tenant: str) -> int:
    """Return the number of tenants (API keys) that have requests on the device, counting `tenant` even if it has none
    yet. `present` has the number of requests by tenant.
    """
    return len({*present, tenant})


class Load(Struct, frozen=True, tag=True):
    """The number of running and waiting requests on an engine's device, and how many more requests it accepts. The
    engine sends this message to each API process whenever the numbers change.

    Low-priority requests are counted only in the fields whose names begin with `low_priority`.
    """

    running: int = 0
    waiting: int = 0
    # Low-priority requests that run, and that wait or are preempted.
    low_priority_running: int = 0
    low_priority_waiting: int = 0
    # Running and waiting requests of other API processes.
    others: int = 0
    # Whether terminate_session has ended the device's session.
    terminated: bool = False
    # Requests by tenant, including those that are still prepared.
    present: dict[str, int] = {}
    # Tokens of the prompts that cannot run at once, by tenant.
    waiting_tokens: dict[str, int] = {}
    # Seconds until a full queue has capacity again, as last estimated; else 0.
    retry_after: int = 0
    # None while unknown.
    capacity: Capacity | None = None

    def is_full(self, tenant: str) -> bool:
        """Return whether the device would refuse a request of `tenant` (an API key) now. False while the capacity is
        unknown.
        """
        return self.capacity is not None and not self.capacity.num_free(self.present, tenant)


class CachedPrefixes(Struct, frozen=True, tag=True):
    """The engine tells an API process which blocks of tokens were added to its prefix cache and removed from it since
    the last such message. API processes choose by this the engine that has most of a prompt cached.

    Blocks are identified by digests (see prefix_cache.py). Only an engine whose model has other engines, too, sends
    this message. The first message on a connection has all cached blocks.
    """

    added: list[bytes]
    removed: list[bytes]


# one request and its answer


class Submit(Struct, frozen=True, tag=True):
    """An API process sends a request to an engine, to run it. `key` is the number by which all further messages name
    the request.

    The engine answers with `Accepted` or `Refused`; after `Accepted`, with `Tokens` and then with one `Finished` or
    `Failed`. With `more`, the next message is a `Submit` for the same HTTP request, and the engine accepts all of them
    or none.
    """

    # Numbers the request within its connection, here and in all messages below.
    key: int
    request: GenerationRequest
    # The next message is a Submit of the same HTTP request: the engine accepts all of these, or none.
    more: bool = False


class Cancel(Struct, frozen=True, tag=True):
    """An API process ends a request whose answer nobody reads any more. The engine sends nothing more about the
    request.
    """

    key: int


class Stop(Struct, frozen=True, tag=True):
    """An API process ends an answer with the tokens generated so far. The engine sends `Finished` unless the answer has
    already ended.
    """

    key: int


class Accepted(Struct, frozen=True, tag=True):
    """The engine has accepted the request with the number `key`, and will end it with exactly one `Finished` or
    `Failed`.
    """

    key: int


class Refused(Struct, frozen=True, tag=True):
    """The engine has not accepted the request with the number `key`. `error` has the reason."""

    key: int
    error: ErrorInfo


class Tokens(Struct, frozen=True, tag=True, omit_defaults=True):
    """The engine sends the next tokens of an answer, with their log probabilities if the request asks for these."""

    key: int
    # Ids of the tokens.
    tokens: list[int]
    # One for each token if the request asks for them, otherwise empty.
    logprobs: list[TokenLogprob] = []


class PromptLogprobs(Struct, frozen=True, tag=True):
    """The engine sends the log probabilities of the next tokens of a prompt, for a request that asks for them. The
    prompt's first token has no log probability and is left out.
    """

    key: int
    logprobs: list[TokenLogprob]


class Progress(Struct, frozen=True, tag=True):
    """The engine tells how many tokens of a prompt it has read. It sends this message after each chunk of the prefill
    if the request asks for progress.
    """

    key: int
    # Tokens, cached ones included.
    num_read: int
    # Tokens that were in the prefix cache.
    num_cached: int


class Vectors(Struct, frozen=True, tag=True):
    """The engine sends the vectors or scores of the next texts of an embedding or reranking request, in the order of
    the texts, as little-endian float32 numbers.
    """

    key: int
    # The same number of little-endian float32 for each text.
    data: bytes


class Finished(Struct, frozen=True, tag=True):
    """The engine's last message about a request whose answer has ended without an error: the reason, the seconds spent
    in each phase, and numbers of cached, drafted and profiled tokens.
    """

    key: int
    reason: FinishReason
    phases: Phases
    # Tokens of the prompt that were in the prefix cache.
    num_cached: int = 0
    # Tokens of the answer that were profiled.
    num_profiled: int = 0
    # Tokens that were drafted, and those that were accepted.
    num_drafted: int = 0
    num_accepted: int = 0
    # When each token of the request's `alignment` behind those before the text begins, in seconds.
    token_times: list[float] = []


class Failed(Struct, frozen=True, tag=True):
    """The engine's last message about a request whose answer has ended with an error."""

    key: int
    error: ErrorInfo


# the engine's counters


class Histogram(Struct, frozen=True):
    """A histogram of observed values, for the metrics: `counts` has the number of values in each interval between
    `bounds`, and `sum` is the sum of all values.
    """

    bounds: list[float]
    # One more than bounds: counts[i] values are in (bounds[i - 1], bounds[i]], and the last counts those above all.
    counts: list[int]
    # Sum of all values.
    sum: float


class DiskCacheFigures(Struct, frozen=True):
    """The state and counters of the prefix cache on disk, as one engine sees it, for the metrics: bytes, loaded and
    stored prefixes, and the speed of loading in tokens per second.
    """

    # Bytes of all models' files when this engine last wrote one, and their limit.
    num_bytes: int = 0
    max_bytes: int = 0
    # Prefixes that were loaded, with their tokens, and the seconds that took.
    loads: int = 0
    loaded_tokens: int = 0
    load_seconds: float = 0.0
    # Prefixes that were stored, but faster to read by the model.
    left_out: int = 0
    stored_tokens: int = 0
    # Measured rates of loading a prefix and of reading a prompt; 0 if unknown.
    loaded_per_second: float = 0.0
    read_per_second: float = 0.0
    # Why nothing is stored at the moment; "" if it is.
    error: str = ""


class Figures(Struct, frozen=True, tag=True):
    """An engine's counters since its start, and some current values, from which API processes make the metrics. The
    engine sends them to all API processes once a second if they have changed.
    """

    # Tokens of running sequences in the KV cache now.
    kv_tokens: int
    # Tokens that the KV cache holds for all sequences; 0 if each slot has memory for the longest sequence.
    kv_capacity: int
    # A prompt is counted when it has been read.
    prompt_tokens: int
    generation_tokens: int
    # Tokens of prompts that were looked up in the prefix cache, and those that were found.
    cache_queries: int
    cache_hits: int
    # Tokens that were drafted, and those that were accepted.
    drafted: int
    accepted: int
    # Images that were encoded, without those whose features were cached.
    encoded_images: int
    # Windows of audio that were encoded, without those whose features were cached.
    encoded_sounds: int
    # How often low-priority sequences gave up their slots to others.
    low_priority_preemptions: int
    # How often other sequences were preempted for lack of memory.
    preemptions: int
    # Sequences that terminate_session has ended.
    terminated: int
    # Profile sessions that have begun.
    profile_sessions: int
    # Running sequences that are profiled.
    profiled: int
    # In seconds.
    prefill_passes: Histogram
    decode_passes: Histogram
    # Rows of each decode step.
    decode_rows: Histogram
    # Seconds between two tokens of an answer.
    token_gaps: Histogram
    # Tokens of prompts and answers by the name of the API key, "" without one.
    prompt_tokens_by_key: dict[str, int] = {}
    generation_tokens_by_key: dict[str, int] = {}
    # None without a prefix cache on disk.
    disk_cache: DiskCacheFigures | None = None
    # Memory of the answers that are kept for drafts.
    answer_bytes: int = 0


# What an engine reports of a request.
Event = Accepted | Refused | Tokens | PromptLogprobs | Progress | Vectors | Finished | Failed


# frames

ToEngine = Hello | Submit | Cancel | Stop | AdminCall
ToApi = Welcome | Load | CachedPrefixes | Figures | Event | AdminReply


def engine_decoder(max_bytes: int = MAX_FRAME_BYTES) -> FrameDecoder[ToEngine]:
    """Return a new decoder of the messages that an engine receives from an API process. A frame of more than
    `max_bytes` bytes is an error.
    """
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToEngine]), max_bytes)


def api_decoder() -> FrameDecoder[ToApi]:
    """Return a new decoder of the messages that an API process receives from an engine."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToApi]))
