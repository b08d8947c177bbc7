"""Admin calls of an API process to an engine, and the engine's replies; and the plan of a profile session, which an
operator sends to an engine.

The field `call` is a number that the API process gives to a call, unique within its connection; the reply repeats it.
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
    """Profile the tokens that follow a slow token. Exactly one of `over_ms` and `ratio` defines what is slow."""

    # A token is slow if it took more milliseconds than this.
    over_ms: float | None = None
    # A token is slow if it took more than this many times the running median.
    ratio: float | None = None
    # Tokens that are profiled after a slow one.
    num_tokens: int = 5
    # Maximum number of triggers within an hour.
    max_per_hour: int = 4


class ProfilePlan(Struct, frozen=True):
    """Which tokens a profile session records, and when the session ends."""

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
    """What a profile session has recorded so far."""

    # Profiled tokens.
    tokens: int = 0
    # Slow tokens that triggered profiling.
    triggers: int = 0
    # Median of the profiled decode steps, each of which runs one sequence alone; None without any.
    step_ms: float | None = None
    # Median of the other decode steps with sequences that the session concerns; None without any.
    other_step_ms: float | None = None


class ProfileState(Struct, frozen=True):
    """A profile session that has not ended: whether it waits or records, and what it has recorded so far."""

    id: str
    # "waiting" until a request reaches what the session profiles, then "recording".
    state: str
    profiled: Profiled


R = TypeVar("R", bound="Reply")


class Reply(Struct, frozen=True, tag=True):
    """The base of replies. `call` is the number of the call that is answered."""

    call: int


class Call(Struct, Generic[R], frozen=True, tag=True):
    """The base of calls. The engine answers a call with a message of the type R, or with `CallFailed`."""

    call: int


class CallFailed(Reply, frozen=True):
    """The reply to a call that could not be carried out, with the reason."""

    error: ErrorInfo


# the runtime options


class ProfiledRequest(Struct, frozen=True):
    """A running request whose forward passes are being profiled."""

    request_id: str
    # The first output token that is profiled, counted from 0.
    from_token: int


class RuntimeOptions(Struct, frozen=True):
    """The current values of onnxruntime-genai's runtime options on a device, and the state of profiling there."""

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
    """The values of the runtime options after the call has been carried out."""

    options: RuntimeOptions
    # The sequences that the call's `name` stands for; empty without a name. If they belong to several requests, nothing
    # was done.
    requests: "list[RequestState]" = []
    # Why nothing was done.
    refused: str | None = None


class SetRuntimeOption(Call[RuntimeOptionsReply], frozen=True):
    """Set one of onnxruntime-genai's runtime options, for the whole device or for the request with one id."""

    option: str
    value: str
    # As in `CancelRequest`; None for all requests of the device.
    name: str | None = None
    is_unique: bool = False


class GetRuntimeOptions(Call[RuntimeOptionsReply], frozen=True):
    """Ask for the current values of the runtime options."""


# profile sessions


class OpenProfiles(Reply, frozen=True):
    """Profile sessions that have not ended: all of them or, in reply to `StartProfile`, only the new one."""

    sessions: list[ProfileState]


class StartProfile(Call[OpenProfiles], frozen=True):
    """Begin a profile session, which profiles what its plan selects."""

    plan: ProfilePlan


class EndProfile(Call[OpenProfiles], frozen=True):
    """End the profile session with this id."""

    id: str


class ListProfiles(Call[OpenProfiles], frozen=True):
    """Ask for the profile sessions that have not ended."""


# the prefix cache


class CacheReset(Reply, frozen=True):
    """The prefix cache has been emptied; `slots` is the number of slots that held a cached prefix."""

    slots: int


class ResetPrefixCache(Call[CacheReset], frozen=True):
    """Remove all prefixes from the engine's prefix cache."""


# running and waiting requests


class RequestPhase(StrEnum):
    """What a sequence is waiting for or doing."""

    QUEUED = "queued"
    # The prompt is being read.
    PREFILL = "prefill"
    # Tokens are being generated.
    DECODE = "decode"
    # The server lists or runs tools for the request; no engine has it.
    TOOLS = "tools"


class RequestState(Struct, frozen=True):
    """One running or waiting sequence, for operators. A request that asks for several answers has one sequence for
    each.
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
    """Running and waiting sequences in order of arrival: all of them, or only those that match the field `name` of the
    call.
    """

    requests: list[RequestState]


class ListRequests(Call[RequestList], frozen=True):
    """Ask for the running and waiting requests that all API processes have sent to this engine."""

    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of this tenant.
    tenant: str | None = None


class CancelRequest(Call[RequestList], frozen=True):
    """End a request, whichever API process has sent it: its answers end with `Finished` and the tokens generated so
    far.

    The reply lists the sequences that match `name`. If they belong to several requests, no request is ended.
    """

    # The unique id of a request or, unless `is_unique`, its id if no request of the engine has this unique id.
    name: str
    is_unique: bool = False


class ReasoningEnded(Reply, frozen=True):
    """The sequences that match the field `name` of the call, and the number of those whose reasoning may still have
    been open.
    """

    requests: list[RequestState]
    num_ended: int = 0


class EndReasoning(Call[ReasoningEnded], frozen=True):
    """End the reasoning of a request's answers, as if the reasoning budget were used up, so that the model writes the
    final answer.

    If the name matches several requests, nothing is done.
    """

    # As in `CancelRequest`.
    name: str
    is_unique: bool = False
    # Only requests of this tenant.
    tenant: str | None = None


# adapters


class AdapterReply(Reply, frozen=True):
    """The adapter has been loaded or unloaded."""

    # The requests that still have an unloaded adapter.
    request_ids: list[str] = []


class LoadAdapter(Call[AdapterReply], frozen=True):
    """Load a LoRA adapter and run it once as a test, so that requests may choose it. Does nothing if the adapter is
    loaded.
    """

    adapter: Adapter


class UnloadAdapter(Call[AdapterReply], frozen=True):
    """Refuse new requests that use this LoRA adapter, and free the adapter when the last running request that uses it
    ends.
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
