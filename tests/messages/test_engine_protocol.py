"""The messages between the processes: decoded unchanged, however the stream is cut, and nothing else is accepted."""

import math
from typing import get_args

import msgspec
import pytest

from genai_server.messages import admin
from genai_server.messages import engine_protocol as protocol
from genai_server.messages.engine_protocol import ToApi, ToEngine, api_decoder, engine_decoder
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
_BIASED = Sampling(frequency_penalty=-2.0, presence_penalty=0.5, logit_bias={0: -100.0, 151_935: 100.0})
_OPTIONS = admin.RuntimeOptions("0", "slow", [admin.ProfiledRequest("r1", 3)], "profiles/cpu", 4, 5000, None)
TO_ENGINE: list[ToEngine] = [
    protocol.Hello("secret"),
    protocol.Submit(1, GenerationRequest("héllo 🦜", [1, 2, 151_935], 10, 20, _SAMPLING, ignore_eos=True)),
    protocol.Submit(2, GenerationRequest("", [0], 1, 2)),
    protocol.Submit(3, GenerationRequest("", [0], 1, 2, cache_prompt=False, priority=-3, exact=True)),
    protocol.Submit(4, GenerationRequest("", [0], 1, 2, cache_salt="5a"), more=True),
    protocol.Submit(4, GenerationRequest("", [0], 0, 1, _BIASED, min_tokens=3, top_logprobs=20, prompt_logprobs=True)),
    protocol.Submit(5, GenerationRequest("", [0], 0, 1, grammar="start: /é+/", timeout=0.125)),
    protocol.Cancel(2**40),
    protocol.Stop(1),
    admin.SetRuntimeOption(3, "enable_profiling", "0"),
    admin.SetRuntimeOption(4, "terminate_session", "1", "r1"),
    admin.GetRuntimeOptions(5),
    admin.StartProfile(9, admin.ProfilePlan("slow")),
    admin.StartProfile(
        9, admin.ProfilePlan("slow", "r1", 50, 60, 3, 0.5, admin.SlowTokens(ratio=3.0, num_tokens=7, max_per_hour=2))
    ),
    admin.EndProfile(10, "slow_2026"),
    admin.ListProfiles(11),
    admin.ResetPrefixCache(6),
    admin.ListRequests(7),
    admin.CancelRequest(8, "req-é"),
    admin.EndReasoning(8, "req-é", is_unique=True, tenant="one"),
    admin.LoadAdapter(9, Adapter("law", "/srv/é.onnx_adapter", "1f")),
    admin.UnloadAdapter(10, "1f"),
]
_HISTOGRAM = protocol.Histogram([0.25, 1.0], [1, 0, 3], 12.5)
TO_API: list[ToApi] = [
    protocol.Welcome(ModelInfo(8192, 151_936, [1, 2], _SAMPLING), Batching()),
    protocol.Welcome(ModelInfo(8, 9, [], _SAMPLING, scores_prompts=False), Batching("batched", None, 16)),
    protocol.Load(running=1, waiting=2, others=3, terminated=True),
    protocol.Load(low_priority_running=4, low_priority_waiting=1000),
    protocol.Load(
        present={"": 2, "key": 1},
        waiting_tokens={"key": 2**40},
        retry_after=600,
        capacity=protocol.Capacity(1, 2, 2**40),
    ),
    protocol.Load(capacity=protocol.Capacity(16, 256)),
    protocol.CachedPrefixes([b"\x00\xff" * 4, b"8 bytes "], []),
    protocol.CachedPrefixes([], [b"\x80" * 8]),
    protocol.Figures(
        *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _HISTOGRAM,
        _HISTOGRAM,
        protocol.Histogram([], [0], 0.0),
        protocol.Histogram([], [2**40], 1e9),
    ),
    protocol.Accepted(1),
    protocol.Refused(2, ErrorInfo("queue_full", "too many")),
    protocol.Refused(2, ErrorInfo("invalid_value", "not this", "grammar")),
    protocol.Refused(2, ErrorInfo("queue_full", "too many", retry_after=17)),
    protocol.Tokens(1, []),
    protocol.Tokens(1, [0, 151_935]),
    protocol.Tokens(1, [7], [TokenLogprob(7, -0.25, [(151_935, -0.125), (7, -0.25)])]),
    protocol.PromptLogprobs(1, [TokenLogprob(7, -math.inf), TokenLogprob(8, -1e-300, [])]),
    protocol.Progress(1, 2**40, 7),
    protocol.Vectors(1, b"\x00\xff" * 8),
    *(protocol.Finished(1, reason, Phases(0.1, 0.2, 0.3)) for reason in FinishReason),
    protocol.Finished(1, FinishReason.STOP, Phases(), num_cached=7),
    protocol.Finished(1, FinishReason.STOP, Phases(), num_profiled=7),
    protocol.Finished(1, FinishReason.STOP, Phases(), num_drafted=2**40, num_accepted=7),
    admin.OpenProfiles(9, [admin.ProfileState("slow_2026", "recording", admin.Profiled(3, 1, 12.5, 9.25))]),
    admin.CallFailed(9, ErrorInfo("invalid_value", "not this", "prefix")),
    protocol.Failed(1, ErrorInfo("engine_died", "gone")),
    protocol.Failed(1, ErrorInfo("invalid_value", "nothing left", "logit_bias")),
    admin.RuntimeOptionsReply(
        5, _OPTIONS, [admin.RequestState("r1", admin.RequestPhase.DECODE, 0.5, 7, 3, 9)], "why not"
    ),
    admin.CacheReset(6, 3),
    admin.RequestList(7, []),
    admin.RequestList(8, [admin.RequestState("r1", admin.RequestPhase.DECODE, 0.5, 7, 3, 2**20, "law")]),
    admin.ReasoningEnded(8, [admin.RequestState("r1", admin.RequestPhase.DECODE, 0.5, 7, 3, 9)], 2),
    admin.AdapterReply(10, ["r1", "r2"]),
]


def test_every_message_survives_the_way() -> None:
    assert {type(message) for message in TO_ENGINE} == set(get_args(ToEngine))
    assert {type(message) for message in TO_API} == set(get_args(ToApi))
    assert list(api_decoder().feed(encode_frame(TO_API))) == TO_API
    decoder = engine_decoder()
    stream = encode_frame(TO_ENGINE[:3]) + encode_frame(TO_ENGINE[3:])
    assert [message for byte in stream for message in decoder.feed(bytes([byte]))] == TO_ENGINE


def test_a_stream_may_be_cut_anywhere() -> None:
    stream = encode_frame([protocol.Accepted(1)]) + encode_frame([protocol.Tokens(1, [5, 6]), protocol.Accepted(2)])
    whole = [protocol.Accepted(1), protocol.Tokens(1, [5, 6]), protocol.Accepted(2)]
    for cut in range(len(stream) + 1):
        decoder = api_decoder()
        assert [*decoder.feed(stream[:cut]), *decoder.feed(stream[cut:])] == whole, f"cut at {cut}"


def test_a_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    assert list(engine_decoder().feed(MAX_FRAME_BYTES.to_bytes(4, "big"))) == []
    with pytest.raises(msgspec.DecodeError, match=f"{MAX_FRAME_BYTES + 1} bytes.*limit of {MAX_FRAME_BYTES}"):
        list(engine_decoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_messages_before_a_broken_frame_are_delivered() -> None:
    cancel = protocol.Cancel(1)
    messages = iter(engine_decoder().feed(encode_frame([]) + encode_frame([cancel]) + b"\0\0\0\1\xc1"))
    assert next(messages) == cancel
    with pytest.raises(msgspec.DecodeError):
        next(messages)


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        encode_frame([protocol.Accepted(1)]),
        encode_frame([msgspec.structs.replace(protocol.Cancel(1), key="one")]),
    ],
    ids=["http", "empty", "message for the other side", "wrong type of a field"],
)
def test_a_stream_that_is_not_ours_is_refused(stream: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(engine_decoder().feed(stream))
