"""Chat completions as OpenAI's client parses them, and chunks of both older APIs, without a server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    WholeAnswer,
)
from genai_server.apis.chat_completions import ChatCompletionBuilder, ChatCompletionRequest, chunks, openai_reason
from genai_server.apis.completions import CompletionBuilder
from genai_server.engine_client.in_flight import TokenStream
from genai_server.generation.answers import Ending, Generation, RunningAnswer
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.generation.prompts import EchoedPrompt
from genai_server.generation.tool_loop import ServedTool, ServedTools
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.engine_protocol import Finished, Progress, PromptLogprobs, Tokens
from genai_server.messages.generation_request import FinishReason, Phases, Sampling, TokenLogprob
from genai_server.messages.supervisor_protocol import ToolInfo
from genai_server.text.answers.answer_text import AnswerText, PlainParser
from genai_server.text.tokenizer import ByteTokenizer
from genai_server.timing import Arrival, Stopwatch
from tests.answer_parts import PARTS, whole

ENDED, CALLED = Ending(), Ending(calls_tools=True)
SCORED = ScoredToken(b"\xc3", -0.5, (ScoredToken(b"\xc3", -0.5), ScoredToken(b"e", -1.0)))


def _build(**options: Any) -> ChatCompletionBuilder:
    return ChatCompletionBuilder("id1", "m", 1234, **options)


def _complete(answer: WholeAnswer, ending: Ending = ENDED, **options: Any) -> dict[str, Any]:
    build = _build(**options)
    return build.complete([build.choice(0, answer, ending)], Usage(3, 4))


def test_logprobs_have_the_bytes_of_tokens_that_are_not_text() -> None:
    answer = whole([Content("x")])
    answer.tokens.append(SCORED)
    read: Any = ChatCompletion.model_validate(_complete(answer, has_logprobs=True))
    (token,) = read.choices[0].logprobs.content
    assert (token.token, token.bytes, token.logprob) == ("\ufffd", [0xC3], -0.5)
    assert [(other.token, other.logprob) for other in token.top_logprobs] == [("\ufffd", -0.5), ("e", -1.0)]
    assert _complete(answer)["choices"][0]["logprobs"] is None


def test_parts_of_one_chunk_are_put_together() -> None:
    delta = _build().part(0, PARTS, [])["choices"][0]["delta"]
    assert (delta["reasoning_content"], delta["content"]) == ("so be it", "Hello")
    assert [call["function"]["arguments"] for call in delta["tool_calls"]] == ['{"a": 1}', "{}"]


@pytest.mark.parametrize(
    ("ending", "reasons"),
    [
        (Ending(FinishReason.STOP), ("stop", None)),
        (Ending(FinishReason.LENGTH), ("length", None)),
        *((Ending(FinishReason(own)), ("length", own)) for own in ("terminated", "timeout", "cancelled")),
        (CALLED, ("tool_calls", None)),
        # A stop text has ended the answer within a call.
        (Ending(has_incomplete_call=True, stop_string="x"), ("length", "stop")),
    ],
)
def test_an_ending_has_openais_reason_and_this_servers(ending: Ending, reasons: tuple[str, str | None]) -> None:
    found = openai_reason(ending)
    assert (found["finish_reason"], found.get("genai_finish_reason")) == reasons
    if ending == CALLED:
        assert openai_reason(ending, calling="function_call") == {"finish_reason": "function_call"}


ECHO = EchoedPrompt("ab", [b"a", b"b"])


def _generation(
    tokens: bytes,
    *,
    echo: EchoedPrompt | None = None,
    prompt_logprobs: Sequence[TokenLogprob] = (),
    drafts: tuple[int, int] = (0, 0),
) -> Generation:
    """A completed answer to "ab" with these bytes as tokens; `drafts` are numbers of drafted and of accepted tokens."""
    stream, tokenizer = TokenStream(lambda: None), ByteTokenizer()
    stream.receive(Progress(1, 2, 0))
    stream.receive(PromptLogprobs(0, list(prompt_logprobs)))
    scored = [TokenLogprob(token, -1.0) for token in tokens] if prompt_logprobs else []
    stream.receive(Tokens(1, list(tokens), scored))
    stream.receive(Finished(0, FinishReason.STOP, Phases(), num_drafted=drafts[0], num_accepted=drafts[1]))
    offset = len(echo.text) if echo else 0
    text = AnswerText(tokenizer.decoder(), [], PlainParser(), tokenizer.token_bytes, offset=offset)
    answer = RunningAnswer(stream, text, Stopwatch(Arrival(lambda: 0.0), 2), echo=echo)
    return Generation("m", [answer], 1, Sampling())


def _chunks(generation: Generation, build: Any, body: Any) -> list[Any]:
    """All chunks of an answer as objects, whichever way they were built."""

    async def run() -> list[Any]:
        found = [chunk async for chunk in chunks(generation, build, body)]
        return [msgspec.json.decode(chunk) if isinstance(chunk, bytes) else chunk for chunk in found]

    return asyncio.run(run())


def _chat(tokens: bytes, *, drafts: tuple[int, int] = (0, 0), **fields: Any) -> list[Any]:
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    build = ChatCompletionBuilder("id", "m", 1, has_usage=body.has_last_usage or body.has_running_usage)
    return _chunks(_generation(tokens, drafts=drafts), build, body)


def _completion(
    tokens: bytes, prompt_logprobs: Sequence[TokenLogprob] = (), *, echo: EchoedPrompt = ECHO, **fields: Any
) -> list[Any]:
    body = CompletionRequest.model_validate({"prompt": "ab", "echo": True, **fields})
    build = CompletionBuilder("id", "m", 1, has_logprobs=bool(prompt_logprobs))
    return _chunks(_generation(tokens, echo=echo, prompt_logprobs=prompt_logprobs), build, body)


def test_chat_stream_starts_with_role_and_ends_with_done() -> None:
    *chunks, mark = _chat(b"hi")
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = [{"role": "assistant", "content": ""}, {"content": "h"}, {"content": "i"}, {}]
    assert [choice["delta"] for choice in choices] == texts
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert mark == "[DONE]"


def test_usage_counts_accepted_and_rejected_drafts() -> None:
    *_, last, _ = _chat(b"answer", drafts=(9, 5), stream=True, stream_options={"include_usage": True})
    details = last["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (5, 4)


def test_prompt_is_echoed_without_any_token() -> None:
    *chunks, _ = _completion(b"")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_echoed_prompt_tokens_precede_those_of_the_answer() -> None:
    first, *_ = _completion(b"hi", [TokenLogprob(ord("b"), -2.0)], logprobs=0)
    scores = first["choices"][0]["logprobs"]
    assert (scores["tokens"], scores["token_logprobs"]) == (["a", "b", "h"], [None, -2.0, -1.0])
    assert scores["text_offset"] == [0, 1, 2]


def test_a_long_echo_is_built_like_a_short_one() -> None:
    scored = [TokenLogprob(ord("a"), -2.0)] * 499
    first, last, _ = _completion(b"h", scored, echo=EchoedPrompt("a" * 500, [b"a"] * 500), logprobs=0)
    assert first["choices"][0]["text"] == "a" * 500 + "h"
    assert len(first["choices"][0]["logprobs"]["tokens"]) == 501
    assert last["choices"][0]["text"] == ""


@pytest.mark.parametrize("options", [{}, {"has_usage": True}, {"has_logprobs": True}], ids=str)
@pytest.mark.parametrize("build", [ChatCompletionBuilder, CompletionBuilder])
def test_a_chunk_of_text_is_the_built_one(build: type[Any], options: dict[str, bool]) -> None:
    builder = build("id", 'a "text":"" of "content":""', 1, **options)
    for index in (0, 1, 0):
        for text in ("", "plain", 'a "quoted"\n\\ ü\u2028'):
            expected = msgspec.json.encode(builder.part(index, [Content(text)], []))
            assert builder.text(index, text) == expected


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["I look.", "It said so."], "I look.\n\nIt said so."),
        (["I look.\n", "It said so."], "I look.\n\nIt said so."),
        (["I look.\n\n", "It said so."], "I look.\n\nIt said so."),
        (["", "It said so."], "It said so."),
        (["I look.", "", "It said so."], "I look.\n\nIt said so."),
        (["I look.", ""], "I look."),
    ],
)
@pytest.mark.parametrize("kind", [Content, Reasoning])
def test_texts_of_rounds_are_separated_alike_in_a_stream_and_in_one_piece(
    kind: type[Content] | type[Reasoning], texts: list[str], joined: str
) -> None:
    tools = ServedTools({"s__t": ServedTool("s", ToolInfo("t", "", b"{}"))})
    build, answer, streamed = _build(served=tools), WholeAnswer(), ""
    field = "content" if kind is Content else "reasoning_content"
    for number, text in enumerate(texts):
        call: list[Part] = [ToolCallStart(number, f"c{number}", "s__t"), ToolCallEnd(number, is_complete=True)]
        parts: list[Part] = [*(kind(letter) for letter in text), *call, ToolResult(number, "r", is_error=False)]
        if number == len(texts) - 1:
            parts = parts[: len(text)]
        for part in parts:
            answer.add(part)
            if isinstance(part, Content):
                (choice,) = msgspec.json.decode(build.text(0, part.text))["choices"]
            else:
                (choice,) = build.part(0, [part], [])["choices"]
            streamed += choice["delta"].get(field, "")
    assert streamed == joined
    assert _complete(answer, served=tools)["choices"][0]["message"].get(field, "") == joined
