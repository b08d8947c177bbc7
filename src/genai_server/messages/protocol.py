"""The connection between an API process and an engine: its messages, and the frames that carry them.

A frame is a four-byte big-endian length and a MessagePack list of messages; nothing is pickled. The messages of admin
calls are in admin.py, what an engine has counted is in figures.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from genai_server.errors import QueueFull
from genai_server.messages.admin import AdminCall, AdminReply
from genai_server.messages.error import ErrorInfo
from genai_server.messages.figures import Figures
from genai_server.messages.generation_request import (
    Batching,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    Phases,
    TokenLogprob,
)

MAX_FRAME_BYTES = 64 * 1024 * 1024
_PREFIX_BYTES = 4


# the first message of each side


class Hello(Struct, frozen=True, tag=True):
    """From an API process. Without the right secret the engine closes the connection."""

    secret: str


class Welcome(Struct, frozen=True, tag=True):
    """From the engine: its model is loaded, and it takes requests on this connection."""

    model: ModelInfo
    batching: Batching


# what an engine accepts


class Capacity(Struct, frozen=True):
    """What an idle device accepts, and the errors for more than that."""

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
        """How many run and wait together."""
        return self.running + self.waiting

    def num_free(self, present: Mapping[str, int], tenant: str) -> int:
        """How many more requests of a tenant are accepted next to the present ones, whose numbers are given by tenant.

        A tenant has at least an equal share, however many requests others have.
        """
        equal_share = self.requests // _num_tenants(present, tenant)
        return max(0, self.requests - sum(present.values()), equal_share - present.get(tenant, 0))

    def free_tokens(self, present: Mapping[str, int], waiting_tokens: Mapping[str, int], tenant: str) -> int | None:
        """How many tokens the prompt of one more request of a tenant may have; None without a limit, or if the request
        may run at once.

        `waiting_tokens` are those of the prompts that cannot run at once, by tenant. Each has at least an equal share.
        """
        if self.waiting_tokens is None:
            return None
        num_tenants, own = _num_tenants(present, tenant), present.get(tenant, 0)
        is_free = not waiting_tokens and sum(present.values()) < self.running
        if is_free or (num_tenants > 1 and own < max(1, self.running // num_tenants)):
            return None
        equal_share = self.waiting_tokens // num_tenants
        free = self.waiting_tokens - sum(waiting_tokens.values())
        return max(0, free, equal_share - waiting_tokens.get(tenant, 0))

    def full_of_requests(
        self, device: str, present: Mapping[str, int], tenant: str, retry_after: int | None, more: str = ""
    ) -> QueueFull:
        """The error for a request of a tenant on a device that has too many requests of the same kind already."""
        num_tenants = _num_tenants(present, tenant)
        own = f", {present.get(tenant, 0)} of them of this key" if num_tenants > 1 else ""
        equal_share = (
            f"; the equal share of each of {num_tenants} keys is {self.requests // num_tenants}" if own else ""
        )
        return QueueFull(
            f"{sum(present.values())} requests are on {device} already{own}: {self.limited_by} lets {self.running} run "
            f"and GENAI_MAX_QUEUE lets {self.waiting} wait{equal_share}{more}",
            retry_after=retry_after,
        )

    def full_of_tokens(self, device: str, num_tokens: int, own: int, retry_after: int | None) -> QueueFull:
        """The error for a request whose `own` tokens would make those of all waiting prompts too many."""
        return QueueFull(
            f"the prompts of the requests that wait for {device} would have {num_tokens} tokens with this one's {own}: "
            f"GENAI_MAX_QUEUE_TOKENS lets {self.waiting_tokens} wait",
            retry_after=retry_after,
        )


def _num_tenants(present: Mapping[str, int], tenant: str) -> int:
    """How many tenants there are with one more."""
    return len({*present, tenant})


class Load(Struct, frozen=True, tag=True):
    """The device's load, sent when it changes. Low-priority requests count in their own fields only."""

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
        """Whether the device would accept no request of a tenant now, as far as is known."""
        return self.capacity is not None and not self.capacity.num_free(self.present, tenant)


# one request and its answer


class Submit(Struct, frozen=True, tag=True):
    """Generate; answered by `Accepted` or `Refused`, then by `Tokens` and one of `Finished` and `Failed`."""

    # Numbers the request within its connection, here and in all messages below.
    key: int
    request: GenerationRequest
    # The next message is a Submit of the same HTTP request: the engine accepts all of these, or none.
    more: bool = False


class Cancel(Struct, frozen=True, tag=True):
    """End the request; nothing is answered."""

    key: int


class Stop(Struct, frozen=True, tag=True):
    """End the answer with the tokens so far; answered by `Finished` if it still runs."""

    key: int


class Accepted(Struct, frozen=True, tag=True):
    """The request will end in exactly one `Finished` or `Failed`."""

    key: int


class Refused(Struct, frozen=True, tag=True):
    """The request was not accepted."""

    key: int
    error: ErrorInfo


class Tokens(Struct, frozen=True, tag=True, omit_defaults=True):
    """The next tokens of an answer."""

    key: int
    # Their ids.
    tokens: list[int]
    # One for each token if the request asks for them, otherwise empty.
    logprobs: list[TokenLogprob] = []


class PromptLogprobs(Struct, frozen=True, tag=True):
    """The log probabilities of the next tokens of the prompt. The first token has none and is left out."""

    key: int
    logprobs: list[TokenLogprob]


class Progress(Struct, frozen=True, tag=True):
    """How far the prompt has been read; sent after each chunk if the request asks for it."""

    key: int
    # Tokens, cached ones included.
    num_read: int
    # Tokens that were in the prefix cache.
    num_cached: int


class Vectors(Struct, frozen=True, tag=True):
    """What has been computed for the next texts of a request, in their order."""

    key: int
    # The same number of little-endian float32 for each text.
    data: bytes


class Finished(Struct, frozen=True, tag=True):
    """The answer is complete."""

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
    """The answer ended in an error."""

    key: int
    error: ErrorInfo


# What an engine reports of a request.
Event = Accepted | Refused | Tokens | PromptLogprobs | Progress | Vectors | Finished | Failed


# frames

ToEngine = Hello | Submit | Cancel | Stop | AdminCall
ToApi = Welcome | Load | Figures | Event | AdminReply


def encode_frame(messages: Sequence[Struct]) -> bytes:
    """The bytes of one frame."""
    body = msgspec.msgpack.encode(messages)
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


M = TypeVar("M")


class FrameDecoder(Generic[M]):
    """Turns the bytes of a stream, however they are split, into messages for one of the two sides."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[list[M]]", max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[M]:
        """The messages that `data` completes.

        Raises msgspec.DecodeError if the stream is not one of ours, or if a frame is over `max_bytes`.
        """
        if not self._buffer and len(data) >= _PREFIX_BYTES:
            size = int.from_bytes(data[:_PREFIX_BYTES], "big")
            if len(data) == _PREFIX_BYTES + size <= _PREFIX_BYTES + self.max_bytes:  # most frames arrive like this
                yield from self._decoder.decode(memoryview(data)[_PREFIX_BYTES:])
                return
        self._buffer += data
        while len(self._buffer) >= _PREFIX_BYTES:
            size = int.from_bytes(self._buffer[:_PREFIX_BYTES], "big")
            if size > self.max_bytes:
                raise msgspec.DecodeError(f"a frame of {size} bytes is over the limit of {self.max_bytes}")
            end = _PREFIX_BYTES + size
            if len(self._buffer) < end:
                return
            messages = self._decoder.decode(bytes(self._buffer[_PREFIX_BYTES:end]))
            del self._buffer[:end]
            yield from messages


def engine_decoder(max_bytes: int = MAX_FRAME_BYTES) -> FrameDecoder[ToEngine]:
    """Decodes what an engine receives."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToEngine]), max_bytes)


def api_decoder() -> FrameDecoder[ToApi]:
    """Decodes what an API process receives."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToApi]))
