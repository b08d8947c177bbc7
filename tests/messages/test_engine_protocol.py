"""The messages between the processes: decoded unchanged, however the stream is cut, and nothing else is accepted."""

import math
from typing import get_args

import msgspec
import pytest

from genai_server.messages.admin import (
    AdapterReply,
    CacheReset,
    CallFailed,
    CancelRequest,
    EndProfile,
    EndReasoning,
    GetRuntimeOptions,
    ListProfiles,
    ListRequests,
    LoadAdapter,
    OpenProfiles,
    Profiled,
    ProfiledRequest,
    ProfilePlan,
    ProfileState,
    ReasoningEnded,
    RequestList,
    RequestPhase,
    RequestState,
    ResetPrefixCache,
    RuntimeOptions,
    RuntimeOptionsReply,
    SetRuntimeOption,
    SlowTokens,
    StartProfile,
    UnloadAdapter,
)
from genai_server.messages.engine_protocol import (
    Accepted,
    CachedPrefixes,
    Cancel,
    Capacity,
    Failed,
    Figures,
    Finished,
    Hello,
    Histogram,
    Load,
    Progress,
    PromptLogprobs,
    Refused,
    Stop,
    Submit,
    ToApi,
    ToEngine,
    Tokens,
    Vectors,
    Welcome,
    api_decoder,
    engine_decoder,
)
from genai_server.messages.frames import MAX_FRAME_BYTES, ErrorInfo, encode_frame
from genai_server.messages.generation_request import (
    Adapter,
    Batching,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    Phases,
    Sampling,
    TokenLogprob,
)

_SAMPLING = Sampling(0.7, 40, 0.9, 0.05, 1.1, seed=2**63 - 1)
_OPTIONS = RuntimeOptions("0", "slow", [ProfiledRequest("r1", 3)], "profiles/cpu", 4, 5000, None)
TO_ENGINE: list[ToEngine] = [
    Hello("secret"),
    Submit(1, GenerationRequest("héllo 🦜", [1, 2, 151_935], 10, 20, _SAMPLING, ignore_eos=True)),
    Submit(2, GenerationRequest("", [0], 1, 2)),
    Submit(3, GenerationRequest("", [0], 1, 2, cache_prompt=False, priority=-3, exact=True)),
    Submit(4, GenerationRequest("", [0], 1, 2, cache_salt="5a"), more=True),
    Submit(
        4,
        GenerationRequest(
            "",
            [0],
            0,
            1,
            Sampling(frequency_penalty=-2.0, presence_penalty=0.5, logit_bias={0: -100.0, 151_935: 100.0}),
            min_tokens=3,
            top_logprobs=20,
            prompt_logprobs=True,
            grammar="start: /é+/",
            timeout=0.125,
        ),
    ),
    Cancel(2**40),
    Stop(1),
    SetRuntimeOption(3, "enable_profiling", "0"),
    SetRuntimeOption(4, "terminate_session", "1", "r1"),
    GetRuntimeOptions(5),
    StartProfile(9, ProfilePlan("slow")),
    StartProfile(9, ProfilePlan("slow", "r1", 50, 60, 3, 0.5, SlowTokens(ratio=3.0, num_tokens=7, max_per_hour=2))),
    EndProfile(10, "slow_2026"),
    ListProfiles(11),
    ResetPrefixCache(6),
    ListRequests(7),
    CancelRequest(8, "req-é"),
    EndReasoning(8, "req-é", is_unique=True, tenant="one"),
    LoadAdapter(9, Adapter("law", "/srv/é.onnx_adapter", "1f")),
    UnloadAdapter(10, "1f"),
]
_HISTOGRAM = Histogram([0.25, 1.0], [1, 0, 3], 12.5)
TO_API: list[ToApi] = [
    Welcome(ModelInfo(8192, 151_936, [1, 2], _SAMPLING), Batching()),
    Welcome(ModelInfo(8, 9, [], _SAMPLING, scores_prompts=False), Batching("batched", None, 16)),
    Load(running=1, waiting=2, others=3, terminated=True),
    Load(low_priority_running=4, low_priority_waiting=1000),
    Load(present={"": 2, "key": 1}, waiting_tokens={"key": 2**40}, retry_after=600, capacity=Capacity(1, 2, 2**40)),
    Load(capacity=Capacity(16, 256)),
    CachedPrefixes([b"\x00\xff" * 4, b"8 bytes "], []),
    CachedPrefixes([], [b"\x80" * 8]),
    Figures(
        *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _HISTOGRAM,
        _HISTOGRAM,
        Histogram([], [0], 0.0),
        Histogram([], [2**40], 1e9),
    ),
    Accepted(1),
    Refused(2, ErrorInfo("queue_full", "too many")),
    Refused(2, ErrorInfo("invalid_value", "not this", "grammar")),
    Refused(2, ErrorInfo("queue_full", "too many", retry_after=17)),
    Tokens(1, []),
    Tokens(1, [0, 151_935]),
    Tokens(1, [7], [TokenLogprob(7, -0.25, [(151_935, -0.125), (7, -0.25)])]),
    PromptLogprobs(1, [TokenLogprob(7, -math.inf), TokenLogprob(8, -1e-300, [])]),
    Progress(1, 2**40, 7),
    Vectors(1, b"\x00\xff" * 8),
    *(Finished(1, reason, Phases(0.1, 0.2, 0.3)) for reason in FinishReason),
    Finished(1, FinishReason.STOP, Phases(), num_cached=7),
    Finished(1, FinishReason.STOP, Phases(), num_profiled=7),
    Finished(1, FinishReason.STOP, Phases(), num_drafted=2**40, num_accepted=7),
    OpenProfiles(9, [ProfileState("slow_2026", "recording", Profiled(3, 1, 12.5, 9.25))]),
    CallFailed(9, ErrorInfo("invalid_value", "not this", "prefix")),
    Failed(1, ErrorInfo("engine_died", "gone")),
    Failed(1, ErrorInfo("invalid_value", "nothing left", "logit_bias")),
    RuntimeOptionsReply(5, _OPTIONS, [RequestState("r1", RequestPhase.DECODE, 0.5, 7, 3, 9)], "why not"),
    CacheReset(6, 3),
    RequestList(7, []),
    RequestList(8, [RequestState("r1", RequestPhase.DECODE, 0.5, 7, 3, 2**20, "law")]),
    ReasoningEnded(8, [RequestState("r1", RequestPhase.DECODE, 0.5, 7, 3, 9)], 2),
    AdapterReply(10, ["r1", "r2"]),
]


def test_the_samples_of_this_file_cover_every_message() -> None:
    assert {type(message) for message in TO_ENGINE} == set(get_args(ToEngine))
    assert {type(message) for message in TO_API} == set(get_args(ToApi))


def test_every_message_to_the_api_survives_the_way() -> None:
    assert list(api_decoder().feed(encode_frame(TO_API))) == TO_API


def test_messages_sent_byte_by_byte_are_decoded_in_order() -> None:
    decoder = engine_decoder()
    stream = encode_frame(TO_ENGINE[:3]) + encode_frame(TO_ENGINE[3:])
    assert [message for byte in stream for message in decoder.feed(bytes([byte]))] == TO_ENGINE


def test_a_stream_may_be_cut_anywhere() -> None:
    stream = encode_frame([Accepted(1)]) + encode_frame([Tokens(1, [5, 6]), Accepted(2)])
    whole = [Accepted(1), Tokens(1, [5, 6]), Accepted(2)]
    for cut in range(len(stream) + 1):
        decoder = api_decoder()
        assert [*decoder.feed(stream[:cut]), *decoder.feed(stream[cut:])] == whole, f"cut at {cut}"


def test_a_frame_without_messages_is_nothing() -> None:
    decoder = engine_decoder()
    assert list(decoder.feed(encode_frame([]) + encode_frame([Cancel(1)]))) == [Cancel(1)]


def test_a_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    with pytest.raises(msgspec.DecodeError, match=f"{MAX_FRAME_BYTES + 1} bytes.*limit of {MAX_FRAME_BYTES}"):
        list(engine_decoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_a_frame_of_exactly_the_limit_is_waited_for() -> None:
    assert list(engine_decoder().feed(MAX_FRAME_BYTES.to_bytes(4, "big"))) == []


def test_messages_before_a_broken_frame_are_delivered() -> None:
    messages = iter(engine_decoder().feed(encode_frame([Cancel(1)]) + b"\0\0\0\1\xc1"))
    assert next(messages) == Cancel(1)
    with pytest.raises(msgspec.DecodeError):
        next(messages)


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        encode_frame([Accepted(1)]),
        encode_frame([msgspec.structs.replace(Cancel(1), key="one")]),
    ],
    ids=["http", "empty", "message for the other side", "wrong type of a field"],
)
def test_a_stream_that_is_not_ours_is_refused(stream: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(engine_decoder().feed(stream))
