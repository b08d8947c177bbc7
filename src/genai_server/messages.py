"""The messages between API processes and engine processes, and their framing.

A frame is a four-byte big-endian length and a MessagePack list of messages; nothing is pickled. `ToEngine` and `ToApi`
are grouped by destination. `key` numbers a request within one connection, `call` a question that wants one `Reply`.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from genai_server.generation import Batching, FinishReason, GenerationRequest, ModelInfo, Phases, TokenLogprob
from genai_server.options.device import DeviceOptions
from genai_server.profile_plan import ProfilePlan, ProfileState

MAX_FRAME_BYTES = 64 * 1024 * 1024
_PREFIX_BYTES = 4


class Hello(Struct, frozen=True, tag=True):
    """First message of an API process; without the right secret the engine hangs up."""

    secret: str


class Submit(Struct, frozen=True, tag=True):
    """Generate; answered by `Accepted` or `Refused`, then by `Tokens` and one of `Finished` and `Failed`."""

    key: int
    request: GenerationRequest


class Cancel(Struct, frozen=True, tag=True):
    """Nobody wants this request's answer any more; nothing is answered."""

    key: int


class Stop(Struct, frozen=True, tag=True):
    """The answer is complete as far as it has come; answered by `Finished` if it runs."""

    key: int


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


ToEngine = (
    Hello
    | Submit
    | Cancel
    | Stop
    | SetRuntimeOption
    | GetRuntimeOptions
    | StartProfile
    | EndProfile
    | ListProfiles
    | ResetPrefixCache
    | ListRequests
    | CancelRequest
)


class Welcome(Struct, frozen=True, tag=True):
    """The engine has loaded its model and takes work on this connection."""

    pid: int
    model: ModelInfo
    batching: Batching


class Load(Struct, frozen=True, tag=True):
    """The device's work, sent when it changes: those running and waiting, of which others sent some.

    `room` is how many more requests would be taken, None as long as that is not known, and `room_tokens` with how many
    tokens of prompts, None if any number. `retry_after` are the seconds until there is room again if there is none, as
    they were estimated then. `capacity` is how many an idle device takes, None as long as that is not known.
    """

    running: int = 0
    waiting: int = 0
    others: int = 0
    terminated: bool = False
    room: int | None = None
    room_tokens: int | None = None
    retry_after: int = 0
    capacity: int | None = None


class Histogram(Struct, frozen=True):
    """Values by size: `counts[i]` of them are at most `bounds[i]` and above the bound before, the last of them above
    all; `sum` is that of the values.
    """

    bounds: list[float]
    counts: list[int]
    sum: float


class Figures(Struct, frozen=True, tag=True):
    """What an engine has counted since its start; sent to all API processes, once a second while it changes.

    `kv_tokens` are those of running sequences whose keys and values are kept now. Of the prompts whose beginning was
    looked for in the cache, `cache_queries` tokens, `cache_hits` were there. Prompts count with their first token.
    `terminated` sequences were ended by the option. Passes take seconds, and those that decode have a number of rows;
    `token_gaps` are the seconds between the tokens of an answer.
    """

    kv_tokens: int
    prompt_tokens: int
    generation_tokens: int
    cache_queries: int
    cache_hits: int
    terminated: int
    profile_sessions: int
    profiled: int
    prefill_passes: Histogram
    decode_passes: Histogram
    decode_rows: Histogram
    token_gaps: Histogram


class Accepted(Struct, frozen=True, tag=True):
    """The request will end in exactly one `Finished` or `Failed`."""

    key: int


class Refused(Struct, frozen=True, tag=True):
    """The request was not taken; `code` names a class of errors.py, `param` the field at fault, if one is, and
    `retry_after` the seconds after which it may be taken, if it may.
    """

    key: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None


class Tokens(Struct, frozen=True, tag=True, omit_defaults=True):
    """The next token ids of an answer, with one of `logprobs` for each if the request wants them."""

    key: int
    tokens: list[int]
    logprobs: list[TokenLogprob] = []


class PromptLogprobs(Struct, frozen=True, tag=True):
    """The log probabilities of the next tokens of the prompt; the very first token has none and is left out."""

    key: int
    logprobs: list[TokenLogprob]


class Progress(Struct, frozen=True, tag=True):
    """So many tokens of the prompt are read, those included that the cache had; sent after each chunk, if wanted."""

    key: int
    num_read: int
    num_cached: int


class Finished(Struct, frozen=True, tag=True):
    """The answer is complete; `phases` says what the engine spent on it, `num_cached` how much of the prompt it had,
    `num_profiled` how many of its tokens were profiled.
    """

    key: int
    reason: FinishReason
    phases: Phases
    num_cached: int = 0
    num_profiled: int = 0


class Failed(Struct, frozen=True, tag=True):
    """The answer ended in an error; `code` names a class of errors.py, `param` the field at fault, if one is."""

    key: int
    code: str
    message: str
    param: str | None = None


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
    engine has it. A request for several answers has several.
    """

    request_id: str
    phase: str
    age: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class RequestList(Struct, frozen=True, tag=True):
    """Answers one ListRequests, in order of arrival, and one CancelRequest with what it has ended."""

    call: int
    requests: list[RequestState]


ToApi = (
    Welcome
    | Load
    | Figures
    | Accepted
    | Refused
    | Tokens
    | PromptLogprobs
    | Progress
    | Finished
    | Failed
    | Reply
    | OpenProfiles
    | CacheReset
    | RequestList
)


class EngineSpec(Struct, frozen=True):
    """What an engine process is started with, one line of JSON on its standard input.

    `address` is a path for a Unix socket, or "" for a free TCP port on loopback. `threads` 0 means the physical cores
    that the process may use. Sizes are in bytes, ages in seconds, `prefill_chunk` and `max_queue_tokens` in tokens.
    `state_file` keeps what the operator has set over a restart of the engine, into `heartbeat_file` go its heartbeats.
    `profile_folder` is the engine's own folder in `profile_dir`, named after the device without it.
    """

    device: str
    model_dir: str
    address: str
    secret: str
    threads: int
    max_batch_size: int
    max_queue: int
    max_queue_tokens: int
    prefill_chunk: int
    max_length: int
    scheduler: str
    kv_cache_bytes: int
    cache_dir: str
    profile_dir: str
    profile_max_files: int
    profile_max_bytes: int
    profile_max_age: int
    profile_max_rows: int
    state_file: str
    heartbeat_file: str
    log_level: str
    log_format: str = "text"
    options: DeviceOptions = DeviceOptions()
    profile_folder: str = ""


# What the engine's standard input brings before its end when it is unloaded alone: its supervisor stays.
UNLOAD_ORDER = b"unload\n"


class EngineReport(Struct, frozen=True):
    """What an engine process tells its supervisor, once, as a line of JSON on its standard output.

    Either `address` says where it listens, or `error` why it could not load.
    """

    address: str = ""
    error: str = ""


class EngineStatus(Struct, frozen=True):
    """One engine as its supervisor sees it; `state` is starting, ready, restarting, unloading, failed or stopped.

    It runs the model of this name and serial. `since` is when the state began, in seconds of the epoch.
    """

    device: str
    state: str
    pid: int | None = None
    restarts: int = 0
    address: str = ""
    error: str | None = None
    model: str = ""
    serial: int = 0
    since: float = 0.0


class ModelStatus(Struct, frozen=True):
    """One model that is served, with an engine on each of `devices` unless `state` is unloaded.

    `state` is loading, ready, unloading, unloaded or failed. `serial` is new whenever the directory is named anew. With
    `on_demand` requests have it loaded, and wait for that; one that is `leaving` is not served any more. `created`
    counts the seconds of the epoch.
    """

    name: str
    path: str
    devices: list[str]
    serial: int
    state: str
    created: int
    aliases: list[str] = []
    on_demand: bool = False
    leaving: bool = False


class Board(Struct, frozen=True):
    """What the supervisor publishes for the API processes; a file that only the server's user can read.

    The first of `models` is for requests that name none. `control` is where the supervisor takes commands.
    """

    secret: str
    engines: list[EngineStatus]
    models: list[ModelStatus] = []
    control: str = ""


class LoadModel(Struct, frozen=True, tag=True):
    """Serve the model in this directory by this name; in place of one that has failed, or that is unloaded."""

    name: str
    path: str
    devices: list[str]


class UnloadModel(Struct, frozen=True, tag=True):
    """Serve it no more: at once for new requests, for running ones after so many seconds at the most."""

    name: str
    timeout: float


class SetAlias(Struct, frozen=True, tag=True):
    """Let a model be known by another name, too; None forgets that name."""

    alias: str
    name: str | None


class WantModel(Struct, frozen=True, tag=True):
    """A request waits for this model; to be said again and again for as long as it does."""

    name: str


Command = LoadModel | UnloadModel | SetAlias | WantModel


class CommandReply(Struct, frozen=True):
    """The supervisor has taken a command, or `code` names the class of errors.py that says why not."""

    code: str = ""
    message: str = ""
    param: str | None = None


def encode_frame(messages: Sequence[Struct]) -> bytes:
    """The bytes of one frame."""
    body = msgspec.msgpack.encode(messages)
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


M = TypeVar("M")


class FrameDecoder(Generic[M]):
    """Turns the bytes of a stream, however they are cut, into messages of one destination."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[list[M]]", max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[M]:
        """The messages that `data` completes.

        Raises msgspec.DecodeError if the stream is not one of ours, or if a frame is over `max_bytes`.
        """
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
