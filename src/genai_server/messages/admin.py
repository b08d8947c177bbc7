"""The admin calls that an API process (which serves HTTP) sends to an engine (the process that runs a model), and the
engine's replies: runtime options, profile sessions, the prefix cache, running requests, and LoRA adapters.

Calls derive from `Call`, replies from `Reply`. The field `call` of both is a number that the API process gives to the
call, unique within its connection; the reply repeats it.
"""

import re
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import Adapter

# A valid prefix of profiles' file names: a name, not a path.
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SlowTokens(Struct, frozen=True):
    """The part of a `ProfilePlan` that limits profiling to tokens which are generated after a slow token.

    Exactly one of `over_ms` (milliseconds) and `ratio` (a multiple of the running median) defines when a token is slow.
    The other fields say how many tokens are then profiled, and how often that may happen in an hour.
    """

    # A token is slow if it took more milliseconds than this.
    over_ms: float | None = None
    # A token is slow if it took more than this many times the running median.
    ratio: float | None = None
    # Tokens that are profiled after a slow one.
    num_tokens: int = 5
    # Maximum number of triggers within an hour.
    max_per_hour: int = 4


class ProfilePlan(Struct, frozen=True):
    """The plan of a profile session, in which an engine lets ONNX Runtime profile the forward passes of some tokens. An
    operator sends it: the requests and tokens to profile, the beginning of the file names, and after how many tokens or
    seconds the session ends.
    """

    # The beginning of the files' names.
    prefix: str
    # None profiles all requests.
    request_id: str | None = None
    # The first profiled output token, counted from 0. Reading the prompt belongs to token 0.
    first_token: int = 0
    # The last profiled output token, included.
    last_token: int | None = None
    # The session ends after this number of profiled tokens.
    max_tokens: int = 256
    # The session ends after this number of seconds.
    max_seconds: float = 3600.0
    # If given, only tokens after a slow one are profiled.
    slow: SlowTokens | None = None


class Profiled(Struct, frozen=True):
    """What a profile session has recorded so far: numbers of profiled and of slow tokens, and the median duration of
    decode steps with and without profiling, in milliseconds.
    """

    # Profiled tokens.
    tokens: int = 0
    # Slow tokens that triggered profiling.
    triggers: int = 0
    # Median of the profiled decode steps, each of which runs one sequence alone; None without any.
    step_ms: float | None = None
    # Median of the other decode steps with sequences that the session concerns; None without any.
    other_step_ms: float | None = None


class ProfileState(Struct, frozen=True):
    """A profile session (a recording of ONNX Runtime's profiles of some tokens) that has not ended, as operators see
    it: its id, whether it waits or records, and what it has recorded so far.
    """

    id: str
    # "waiting" until a request reaches what the session profiles, then "recording".
    state: str
    profiled: Profiled


R = TypeVar("R", bound="Reply")


class Reply(Struct, frozen=True, tag=True):
    """The base class of an engine's replies to admin calls. `call` is the number of the call that is answered."""

    call: int


class Call(Struct, Generic[R], frozen=True, tag=True):
    """The base class of the admin calls that an API process sends to an engine. `call` is the number of the call, which
    the reply repeats. The engine answers with a message of the type R, or with `CallFailed`.
    """

    call: int


class CallFailed(Reply, frozen=True):
    """The engine's reply to an admin call that it could not carry out. `error` has the reason."""

    error: ErrorInfo


# the runtime options


class ProfiledRequest(Struct, frozen=True):
    """A running request whose forward passes are being profiled: its id, and the output token with which profiling
    began.
    """

    request_id: str
    # The first output token that is profiled, counted from 0.
    from_token: int


class RuntimeOptions(Struct, frozen=True):
    """The current values of onnxruntime-genai's runtime options `terminate_session` and `enable_profiling` in one
    engine, the requests that are being profiled, and the number and bytes of the profile files.
    """

    terminate_session: str
    # "0", or the prefix of the profiles' files.
    enable_profiling: str
    requests: list[ProfiledRequest]
    profile_dir: str
    # Current contents of `profile_dir`.
    profile_files: int
    profile_bytes: int
    # The limit that ended the profiling, if one did.
    profile_stopped: str | None


class RuntimeOptionsReply(Reply, frozen=True):
    """The engine's reply to `SetRuntimeOption` and `GetRuntimeOptions`: the values of the runtime options after the
    call, the requests that the call named, and the reason if nothing was done.
    """

    options: RuntimeOptions
    # The sequences that the call's `name` stands for; empty without a name. If they belong to several requests, nothing
    # was done.
    requests: "list[RequestState]" = []
    # Why nothing was done.
    refused: str | None = None


class SetRuntimeOption(Call[RuntimeOptionsReply], frozen=True):
    """A call that sets one of onnxruntime-genai's runtime options (`terminate_session` or `enable_profiling`), for the
    whole device, or only for the request that `name` identifies. The engine answers with `RuntimeOptionsReply`.
    """

    option: str
    value: str
    # As in `CancelRequest`; None for all requests of the device.
    name: str | None = None
    is_unique: bool = False


class GetRuntimeOptions(Call[RuntimeOptionsReply], frozen=True):
    """A call that asks an engine for the current values of onnxruntime-genai's runtime options. The engine answers with
    `RuntimeOptionsReply`.
    """


# profile sessions


class OpenProfiles(Reply, frozen=True):
    """The engine's reply to calls about profile sessions: all sessions that have not ended or, after `StartProfile`,
    only the new session.
    """

    sessions: list[ProfileState]


class StartProfile(Call[OpenProfiles], frozen=True):
    """A call that begins a profile session, in which the engine lets ONNX Runtime profile the tokens that `plan`
    selects. The engine answers with `OpenProfiles`.
    """

    plan: ProfilePlan


class EndProfile(Call[OpenProfiles], frozen=True):
    """A call that ends the profile session (a recording of ONNX Runtime's profiles) with the given id. The engine
    answers with `OpenProfiles`.
    """

    id: str


class ListProfiles(Call[OpenProfiles], frozen=True):
    """A call that asks an engine for the profile sessions (recordings of ONNX Runtime's profiles) that have not ended.
    The engine answers with `OpenProfiles`.
    """


# the prefix cache


class CacheReset(Reply, frozen=True):
    """The engine's reply to `ResetPrefixCache`: the prefix cache is now empty. `slots` is the number of slots of the KV
    cache that held a cached prefix.
    """

    slots: int


class ResetPrefixCache(Call[CacheReset], frozen=True):
    """A call that removes all prefixes from the engine's prefix cache. The engine answers with `CacheReset`."""


# running and waiting requests


class RequestPhase(StrEnum):
    """The phase of a running or waiting request, as operators see it: it waits in the queue, its prompt is read
    (prefill), its tokens are generated (decode), or the server runs tools for it.
    """

    QUEUED = "queued"
    # The prompt is being read.
    PREFILL = "prefill"
    # Tokens are being generated.
    DECODE = "decode"
    # The server lists or runs tools for the request; no engine has it.
    TOOLS = "tools"


class RequestState(Struct, frozen=True):
    """The state of one running or waiting sequence, for the list of requests that operators see: ids, phase, age in
    seconds, and numbers of tokens. A request that asks for several answers has one sequence for each answer.
    """

    # The client's id of the request.
    request_id: str
    phase: RequestPhase
    # Seconds since it arrived in the engine; since it arrived in the server, if no engine has it.
    age: float
    prompt_tokens: int
    # Tokens of the prompt that were in the prefix cache.
    cached_tokens: int
    output_tokens: int
    # The name of the request's adapter, if it has one.
    adapter: str | None = None
    # The same for all answers of a request, and different for other requests.
    unique_id: str = ""
    # Whether it only takes what others leave of the device.
    background: bool = False
    # The name of its API key; "" without one.
    key_name: str = ""


class RequestList(Reply, frozen=True):
    """The engine's reply to `ListRequests` and `CancelRequest`: running and waiting sequences in order of arrival,
    either all of them or only those that match the call's field `name`.
    """

    requests: list[RequestState]


class ListRequests(Call[RequestList], frozen=True):
    """A call that asks an engine for its running and waiting requests, from all API processes. `name` (an id) and
    `tenant` (an API key) restrict the list if they are given. The engine answers with `RequestList`.
    """

    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of this tenant.
    tenant: str | None = None


class CancelRequest(Call[RequestList], frozen=True):
    """A call that ends the request with the id `name`, whichever API process has sent the request. Its answers end with
    `Finished` and keep the tokens generated so far.

    The engine answers with a `RequestList` of the sequences that match `name`. If they belong to several requests, no
    request is ended.
    """

    # The unique id of a request or, unless `is_unique`, its id if no request of the engine has this unique id.
    name: str
    is_unique: bool = False


class ReasoningEnded(Reply, frozen=True):
    """The engine's reply to `EndReasoning`: the sequences that match the call's field `name`, and the number of those
    whose reasoning may still have been open.
    """

    requests: list[RequestState]
    num_ended: int = 0


class EndReasoning(Call[ReasoningEnded], frozen=True):
    """A call that ends the reasoning in the answers to the request with the id `name`, as if the reasoning budget were
    used up, so that the model writes the final answer.

    The engine answers with `ReasoningEnded`. If `name` matches several requests, nothing is changed.
    """

    # As in `CancelRequest`.
    name: str
    is_unique: bool = False
    # Only requests of this tenant.
    tenant: str | None = None


# adapters


class AdapterReply(Reply, frozen=True):
    """The engine's reply to `LoadAdapter` and `UnloadAdapter`. After `UnloadAdapter`, `request_ids` has the requests
    that still use the adapter.
    """

    # The requests that still have an unloaded adapter.
    request_ids: list[str] = []


class LoadAdapter(Call[AdapterReply], frozen=True):
    """A call that loads a LoRA adapter and runs it once as a test, so that requests may choose it. An adapter that is
    already loaded stays as it is. The engine answers with `AdapterReply`.
    """

    adapter: Adapter


class UnloadAdapter(Call[AdapterReply], frozen=True):
    """A call after which the engine refuses new requests with this LoRA adapter. The adapter's memory is freed when the
    last running request with it ends. The engine answers with `AdapterReply` at once.
    """

    id: str


AdminCall = (
    SetRuntimeOption
    | GetRuntimeOptions
    | StartProfile
    | EndProfile
    | ListProfiles
    | ResetPrefixCache
    | ListRequests
    | CancelRequest
    | EndReasoning
    | LoadAdapter
    | UnloadAdapter
)
# Each call gets one.
AdminReply = RuntimeOptionsReply | OpenProfiles | CacheReset | RequestList | ReasoningEnded | AdapterReply | CallFailed
