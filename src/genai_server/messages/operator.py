"""What operators ask of an engine and change in it; `call` numbers a question within one connection."""

from msgspec import Struct

from genai_server.generation import Adapter
from genai_server.profile_plan import ProfilePlan, ProfileState


class SetRuntimeOption(Struct, frozen=True, tag=True):
    """Set one of onnxruntime-genai's runtime options on all requests of the device, or on those named."""

    call: int
    option: str
    value: str
    request_id: str | None = None


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
    """Forget the past of all sequences that have ended."""

    call: int


class ListRequests(Struct, frozen=True, tag=True):
    """Ask for all requests that run or wait, whoever has sent them."""

    call: int


class CancelRequest(Struct, frozen=True, tag=True):
    """End all requests of this name, whoever has sent them: each is answered by `Finished` with its tokens so far."""

    call: int
    request_id: str


class LoadAdapter(Struct, frozen=True, tag=True):
    """Load this adapter and try it, so that requests may bring it; one that is loaded already changes nothing."""

    call: int
    adapter: Adapter


class UnloadAdapter(Struct, frozen=True, tag=True):
    """Take no more requests with the adapter of this id; it is freed once those that have it have ended."""

    call: int
    id: str


# Each gets one of the answers.
Question = (
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
    """A request whose forward passes are profiled, from its output token `from_token` (counted from 0) on."""

    request_id: str
    from_token: int


class RuntimeOptions(Struct, frozen=True):
    """The runtime options of a device.

    `enable_profiling` is "0", or the prefix of the files. `profile_stopped` says which limit ended the profiling.
    """

    terminate_session: str
    enable_profiling: str
    requests: list[ProfiledRequest]
    profile_dir: str
    profile_files: int
    profile_bytes: int
    profile_stopped: str | None


class Reply(Struct, frozen=True, tag=True):
    """Answers one call.

    `matched` says whether the call's `request_id` was found (always true without one), `refused` why nothing was done.
    """

    call: int
    options: RuntimeOptions
    matched: bool = True
    refused: str | None = None


class Refusal(Struct, frozen=True):
    """Why nothing was done; `code` names a class of errors.py, `param` the field at fault, if one is."""

    code: str
    message: str
    param: str | None = None


class OpenProfiles(Struct, frozen=True, tag=True):
    """Answers StartProfile, EndProfile and ListProfiles."""

    call: int
    sessions: list[ProfileState] = []
    refusal: Refusal | None = None


class CacheReset(Struct, frozen=True, tag=True):
    """Answers one ResetPrefixCache: so many slots had a past."""

    call: int
    slots: int


class RequestState(Struct, frozen=True):
    """One sequence that runs or waits: `phase` is "queued", "prefill" or "decode", `age` counts the seconds since the
    engine has it. A request for several answers has several. `adapter` is the name of the one it has, if it has one.
    """

    request_id: str
    phase: str
    age: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    adapter: str | None = None


class RequestList(Struct, frozen=True, tag=True):
    """Answers one ListRequests, in order of arrival, and one CancelRequest with what it has ended."""

    call: int
    requests: list[RequestState]


class AdapterReply(Struct, frozen=True, tag=True):
    """Answers one LoadAdapter and one UnloadAdapter: which requests have the adapter, or why it was not loaded."""

    call: int
    request_ids: list[str] = []
    refusal: Refusal | None = None


Answer = Reply | OpenProfiles | CacheReset | RequestList | AdapterReply
