"""Chat completions as OpenAI's client parses them."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from genai_server.answer_parts import ScoredToken, WholeAnswer
from genai_server.apis.chat_completions.response import ChatCompletionBuilder
from genai_server.apis.shared.usage import Usage
from genai_server.messages.generation_request import FinishReason
from tests.answer_parts import PARTS, whole

SCORED = ScoredToken(b"\xc3", -0.5, (ScoredToken(b"\xc3", -0.5), ScoredToken(b"e", -1.0)))


def _build(**options: Any) -> ChatCompletionBuilder:
    return ChatCompletionBuilder("id1", "m", 1234, **options)


def _complete(answer: WholeAnswer, reason: FinishReason = FinishReason.STOP, **options: Any) -> dict[str, Any]:
    build = _build(**options)
    return build.complete([build.choice(0, answer, reason)], Usage(3, 4))


@pytest.mark.parametrize("reason", FinishReason)
def test_a_whole_answer_is_one_of_openais(reason: FinishReason) -> None:
    read = ChatCompletion.model_validate(_complete(WholeAnswer("text"), reason))
    assert (read.id, read.model, read.created, read.object) == ("id1", "m", 1234, "chat.completion")
    assert [choice.message.content for choice in read.choices] == ["text"]
    assert read.choices[0].finish_reason in ("stop", "length")
    assert read.usage is not None
    assert read.usage.total_tokens == 7


def test_calls_and_reasoning_accompany_the_content() -> None:
    read = ChatCompletion.model_validate(_complete(whole(PARTS)))
    message = read.choices[0].message
    assert message.content == "Hello"
    assert message.model_extra == {"reasoning_content": "so be it", "reasoning": "so be it"}
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []] == [
        ("call_1", "add", '{"a": 1}'),
        ("call_2", "sub", "{}"),
    ]
    assert read.choices[0].finish_reason == "tool_calls"


def test_an_answer_of_calls_alone_has_no_content() -> None:
    built = _complete(whole(PARTS[4:]))
    assert built["choices"][0]["message"]["content"] is None


def test_logprobs_have_the_bytes_of_tokens_that_are_not_text() -> None:
    answer = WholeAnswer("x", tokens=[SCORED])
    read = ChatCompletion.model_validate(_complete(answer, has_logprobs=True))
    assert read.choices[0].logprobs is not None
    (token,) = read.choices[0].logprobs.content or []
    assert (token.token, token.bytes, token.logprob) == ("\ufffd", [0xC3], -0.5)
    assert [(other.token, other.logprob) for other in token.top_logprobs] == [("\ufffd", -0.5), ("e", -1.0)]
    assert _complete(answer)["choices"][0]["logprobs"] is None


def _stream(**options: bool) -> list[dict[str, Any]]:
    build = _build(**options)
    parts = [build.part(0, [part], [SCORED]) for part in PARTS]
    return [*build.first(1), *parts, build.last(0, FinishReason.STOP, calls_tools=True)]


def test_stream_chunks_are_openais_and_make_up_the_answer() -> None:
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in _stream()]
    assert {(chunk.id, chunk.model, chunk.created, chunk.object) for chunk in chunks} == {
        ("id1", "m", 1234, "chat.completion.chunk")
    }
    choices = [chunk.choices[0] for chunk in chunks]
    assert [choice.delta.role for choice in choices] == ["assistant", *[None] * (len(choices) - 1)]
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    arguments = ["", ""]
    for choice in choices:
        for call in choice.delta.tool_calls or []:
            arguments[call.index] += (call.function and call.function.arguments) or ""
    assert arguments == ['{"a": 1}', "{}"]


def test_parts_of_one_chunk_are_put_together() -> None:
    delta = _build().part(0, PARTS, [])["choices"][0]["delta"]
    assert (delta["reasoning_content"], delta["content"]) == ("so be it", "Hello")
    assert [call["function"]["arguments"] for call in delta["tool_calls"]] == ['{"a": 1}', "{}"]


def test_usage_is_null_in_chunks_if_requested_and_absent_if_not() -> None:
    assert {chunk["usage"] for chunk in _stream(has_usage=True)} == {None}
    assert not [chunk for chunk in _stream() if "usage" in chunk]


def test_continuous_usage_is_on_each_chunk() -> None:
    chunk = _build(has_usage=True).part(0, PARTS[:1], [], Usage(1, 2))
    assert chunk["usage"]["total_tokens"] == 3


def test_the_chunk_of_usage_has_no_choices() -> None:
    read = ChatCompletionChunk.model_validate(_build(has_usage=True).usage(Usage(1, 2)))
    assert read.choices == []
    assert read.usage is not None
    assert read.usage.total_tokens == 3
