"""Admin calls to an engine, and their replies; `call` numbers a call within its connection."""

from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import Adapter
from genai_server.messages.profile_plan import ProfilePlan, ProfileState

R = TypeVar("R", bound="Reply")


class Reply(Struct, frozen=True, tag=True):
    """A reply to the call of this number."""

    call: int


class Call(Struct, Generic[R], frozen=True, tag=True):
    """A call that is answered by R, or by `CallFailed`."""

    call: int


class CallFailed(Reply, frozen=True):
    """Answers a call that cannot be carried out."""

    error: ErrorInfo


# the runtime options


class ProfiledRequest(Struct, frozen=True):
    """A request whose forward passes are profiled."""

    request_id: str
    # The first output token that is profiled, counted from 0.
    from_token: int


class RuntimeOptions(Struct, frozen=True):
    """The runtime options of a device."""

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
    """The state of the runtime options after the call."""

    options: RuntimeOptions
    # The sequences that the call's `name` stands for; empty without a name. If they belong to several requests, nothing
    # was done.
    requests: "list[RequestState]" = []
    # Why nothing was done.
    refused: str | None = None


class SetRuntimeOption(Call[RuntimeOptionsReply], frozen=True):
    """Set one of onnxruntime-genai's runtime options."""

    option: str
    value: str
    # As in `CancelRequest`; None for all requests of the device.
    name: str | None = None
    is_unique: bool = False


class GetRuntimeOptions(Call[RuntimeOptionsReply], frozen=True):
    """Ask for the state of the runtime options."""


# profile sessions


class OpenProfiles(Reply, frozen=True):
    """The open profile sessions, or only the one that the call has begun."""

    sessions: list[ProfileState]


class StartProfile(Call[OpenProfiles], frozen=True):
    """Begin a profile session."""

    plan: ProfilePlan


class EndProfile(Call[OpenProfiles], frozen=True):
    """End the profile session of this id."""

    id: str


class ListProfiles(Call[OpenProfiles], frozen=True):
    """Ask for the open profile sessions."""


# the prefix cache


class CacheReset(Reply, frozen=True):
    """How many slots had a cached prefix."""

    slots: int


class ResetPrefixCache(Call[CacheReset], frozen=True):
    """Remove all cached prefixes."""


# running and waiting requests


class RequestPhase(StrEnum):
    """The phase of a sequence."""

    QUEUED = "queued"
    # Its prompt is being read.
    PREFILL = "prefill"
    # It has its first token.
    DECODE = "decode"
    # The server lists or runs tools for it; no engine has it.
    TOOLS = "tools"


class RequestState(Struct, frozen=True):
    """One running or waiting sequence. A request for several answers has several."""

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
    """Sequences in order of arrival: all of them, or those that the call's name stands for."""

    requests: list[RequestState]


class ListRequests(Call[RequestList], frozen=True):
    """Ask for the running and waiting requests of all API processes."""

    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of this tenant.
    tenant: str | None = None


class CancelRequest(Call[RequestList], frozen=True):
    """End a request of any API process: its answers end with `Finished` and the tokens so far.

    The reply has what its name stands for. If these are several requests, none is ended.
    """

    # The unique id of a request or, unless `is_unique`, its id if no request of the engine has this unique id.
    name: str
    is_unique: bool = False


class ReasoningEnded(Reply, frozen=True):
    """What the call's name stands for, and how many of these sequences may have had thoughts to end."""

    requests: list[RequestState]
    num_ended: int = 0


class EndReasoning(Call[ReasoningEnded], frozen=True):
    """Close the thoughts of a request's answers, as at the end of their budget, so that the model answers.

    If its name stands for several requests, nothing is done.
    """

    # As in `CancelRequest`.
    name: str
    is_unique: bool = False
    # Only requests of this tenant.
    tenant: str | None = None


# adapters


class AdapterReply(Reply, frozen=True):
    """The adapter is loaded or unloaded."""

    # The requests that still have an unloaded adapter.
    request_ids: list[str] = []


class LoadAdapter(Call[AdapterReply], frozen=True):
    """Load this adapter and try it, so that requests may choose it; does nothing if it is loaded."""

    adapter: Adapter


class UnloadAdapter(Call[AdapterReply], frozen=True):
    """Refuse new requests with the adapter of this id, and free it after its last request."""

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
