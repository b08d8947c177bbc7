"""Admin calls to an engine, and their replies; `call` numbers a call within its connection."""

from enum import StrEnum

from msgspec import Struct

from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import Adapter
from genai_server.profile_plan import ProfilePlan, ProfileState


class SetRuntimeOption(Struct, frozen=True, tag=True):
    """Set one of onnxruntime-genai's runtime options."""

    call: int
    option: str
    value: str
    # The request's id; None for all requests of the device.
    unique_id: str | None = None


class GetRuntimeOptions(Struct, frozen=True, tag=True):
    """Ask for the state of the runtime options."""

    call: int


class StartProfile(Struct, frozen=True, tag=True):
    """Begin a profile session; answered by `OpenProfiles` with it alone."""

    call: int
    plan: ProfilePlan


class EndProfile(Struct, frozen=True, tag=True):
    """End the profile session of this id; answered by `OpenProfiles` with those that are still open."""

    call: int
    id: str


class ListProfiles(Struct, frozen=True, tag=True):
    """Ask for the open profile sessions."""

    call: int


class ResetPrefixCache(Struct, frozen=True, tag=True):
    """Remove all cached prefixes."""

    call: int


class ListRequests(Struct, frozen=True, tag=True):
    """Ask for all running and waiting requests, of all API processes."""

    call: int


class CancelRequest(Struct, frozen=True, tag=True):
    """End a request of any API process: its answers end with `Finished` and the tokens so far."""

    call: int
    unique_id: str


class LoadAdapter(Struct, frozen=True, tag=True):
    """Load this adapter and try it, so that requests may choose it; does nothing if it is loaded."""

    call: int
    adapter: Adapter


class UnloadAdapter(Struct, frozen=True, tag=True):
    """Refuse new requests with the adapter of this id, and free it after its last request."""

    call: int
    id: str


# Each gets one AdminReply.
AdminCall = (
    SetRuntimeOption
    | GetRuntimeOptions
    | StartProfile
    | EndProfile
    | ListProfiles
    | ResetPrefixCache
    | ListRequests
    | CancelRequest
    | LoadAdapter
    | UnloadAdapter
)


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


class Reply(Struct, frozen=True, tag=True):
    """Answers SetRuntimeOption and GetRuntimeOptions."""

    call: int
    options: RuntimeOptions
    # Whether the call's `unique_id` was found; always true without one.
    matched: bool = True
    # Why nothing was done.
    refused: str | None = None


class OpenProfiles(Struct, frozen=True, tag=True):
    """Answers StartProfile, EndProfile and ListProfiles."""

    call: int
    sessions: list[ProfileState] = []
    error: ErrorInfo | None = None


class CacheReset(Struct, frozen=True, tag=True):
    """Answers ResetPrefixCache."""

    call: int
    # Slots that had a cached prefix.
    slots: int


class RequestPhase(StrEnum):
    """The phase of a sequence."""

    QUEUED = "queued"
    # Its prompt is being read.
    PREFILL = "prefill"
    # It has its first token.
    DECODE = "decode"


class RequestState(Struct, frozen=True):
    """One running or waiting sequence. A request for several answers has several."""

    # The client's id of the request.
    request_id: str
    phase: RequestPhase
    # Seconds since it arrived in the engine.
    age: float
    prompt_tokens: int
    # Tokens of the prompt that were in the prefix cache.
    cached_tokens: int
    output_tokens: int
    # The name of the request's adapter, if it has one.
    adapter: str | None = None
    # The same for all answers of a request, and different for other requests.
    unique_id: str = ""


class RequestList(Struct, frozen=True, tag=True):
    """Answers ListRequests, in order of arrival, and CancelRequest with what it ended."""

    call: int
    requests: list[RequestState]


class AdapterReply(Struct, frozen=True, tag=True):
    """Answers LoadAdapter and UnloadAdapter."""

    call: int
    # Names of the requests that still have the unloaded adapter.
    request_ids: list[str] = []
    # Why it was not loaded.
    error: ErrorInfo | None = None


AdminReply = Reply | OpenProfiles | CacheReset | RequestList | AdapterReply
