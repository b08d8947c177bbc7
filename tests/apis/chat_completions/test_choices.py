"""Chunks of answers in OpenAI's two older APIs, without a server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from genai_server.answer_parts import Content
from genai_server.apis.chat_completions.choices import chunks
from genai_server.apis.chat_completions.response import ChatCompletionBuilder
from genai_server.apis.chat_completions.schemas import ChatCompletionRequest
from genai_server.apis.completions.routes import CompletionBuilder
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.engine_client.stream import TokenStream
from genai_server.generation.answers import Generation, RunningAnswer
from genai_server.generation.prompts import EchoedPrompt
from genai_server.messages.generation_request import FinishReason, Phases, Sampling, TokenLogprob
from genai_server.messages.protocol import Finished, Progress, PromptLogprobs, Tokens
from genai_server.text.answers.answer_text import AnswerText, PlainParser
from genai_server.text.tokenizer import ByteTokenizer
from genai_server.timing import Arrival, Stopwatch

ECHO = EchoedPrompt("ab", [b"a", b"b"])


def _generation(
    tokens: bytes,
    *,
    echo: EchoedPrompt | None = None,
    prompt_logprobs: Sequence[TokenLogprob] = (),
    num_drafted: int = 0,
    num_accepted: int = 0,
) -> Generation:
    """A completed answer to the prompt "ab" with these bytes as tokens."""
    stream, tokenizer = TokenStream(lambda: None), ByteTokenizer()
    stream.receive(Progress(1, 2, 0))
    stream.receive(PromptLogprobs(0, list(prompt_logprobs)))
    scored = [TokenLogprob(token, -1.0) for token in tokens] if prompt_logprobs else []
    stream.receive(Tokens(1, list(tokens), scored))
    stream.receive(Finished(0, FinishReason.STOP, Phases(), num_drafted=num_drafted, num_accepted=num_accepted))
    offset = len(echo.text) if echo else 0
    text = AnswerText(tokenizer.decoder(), [], PlainParser(), tokenizer.token_bytes, offset=offset)
    answer = RunningAnswer(stream, text, Stopwatch(Arrival(lambda: 0.0), 2), echo=echo)
    return Generation("m", [answer], 1, Sampling())


def _read(chunk: Any) -> Any:
    """A chunk as an object, whichever way it was built."""
    return msgspec.json.decode(chunk) if isinstance(chunk, bytes) else chunk


def _chat(tokens: bytes, *, num_drafted: int = 0, num_accepted: int = 0, **fields: Any) -> list[Any]:
    async def run() -> list[Any]:
        body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
        build = ChatCompletionBuilder("id", "m", 1, has_usage=body.has_last_usage or body.has_running_usage)
        generation = _generation(tokens, num_drafted=num_drafted, num_accepted=num_accepted)
        return [_read(chunk) async for chunk in chunks(generation, build, body)]

    return asyncio.run(run())


def _completion(tokens: bytes, prompt_logprobs: Sequence[TokenLogprob] = (), **fields: Any) -> list[Any]:
    async def run() -> list[Any]:
        body = CompletionRequest.model_validate({"prompt": "ab", **fields})
        build = CompletionBuilder("id", "m", 1, has_logprobs=bool(prompt_logprobs))
        generation = _generation(tokens, echo=ECHO if body.echo else None, prompt_logprobs=prompt_logprobs)
        return [_read(chunk) async for chunk in chunks(generation, build, body)]

    return asyncio.run(run())


def test_chat_stream_starts_with_role_and_ends_with_done() -> None:
    *chunks, mark = _chat(b"hi")
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "h"},
        {"content": "i"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert mark == "[DONE]"


def test_requested_usage_and_metrics_come_last() -> None:
    *chunks, last, mark = _chat(b"hi", stream=True, stream_options={"include_usage": True}, include_metrics=True)
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert (last["choices"], last["usage"]["total_tokens"], last["metrics"]["output_tokens"]) == ([], 4, 2)
    assert mark == "[DONE]"


def test_usage_counts_accepted_and_rejected_drafts() -> None:
    *_, last, _ = _chat(b"answer", num_drafted=9, num_accepted=5, stream=True, stream_options={"include_usage": True})
    details = last["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (5, 4)


def test_a_completion_has_no_chunk_before_its_text() -> None:
    *chunks, mark = _completion(b"hi")
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["h", "i", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert mark == "[DONE]"


def test_echoed_prompt_is_in_the_first_text_chunk() -> None:
    *chunks, _ = _completion(b"hi", echo=True)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abh", "i", ""]


def test_prompt_is_echoed_without_any_token() -> None:
    *chunks, _ = _completion(b"", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_echoed_prompt_tokens_precede_those_of_the_answer() -> None:
    first, *_ = _completion(b"hi", [TokenLogprob(ord("b"), -2.0)], echo=True, logprobs=0)
    scores = first["choices"][0]["logprobs"]
    assert (scores["tokens"], scores["token_logprobs"]) == (["a", "b", "h"], [None, -2.0, -1.0])
    assert scores["text_offset"] == [0, 1, 2]


def test_a_long_echo_is_built_like_a_short_one() -> None:
    echo = EchoedPrompt("a" * 500, [b"a"] * 500)

    async def run() -> list[Any]:
        body = CompletionRequest.model_validate({"prompt": "x", "echo": True, "logprobs": 0})
        build = CompletionBuilder("id", "m", 1, has_logprobs=True)
        scored = [TokenLogprob(ord("a"), -2.0)] * 499
        return [chunk async for chunk in chunks(_generation(b"h", echo=echo, prompt_logprobs=scored), build, body)]

    first, last, _ = asyncio.run(run())
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
