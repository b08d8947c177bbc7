"""The load tools distinguish a complete answer from one that is cut off, doubled or lacks a reason."""

import json

import pytest
from _load.answers import Answer, WrongAnswer, read_answer

TOKEN = {"token": "Hi", "logprobs": {"content": [{"token": "Hi", "logprob": -0.5}]}}
END = {"done": True, "token": "[DONE]", "finish_reason": "stop"}
ERROR = {"error": {"message": "it died", "type": "server_error", "code": "engine_died"}}
CHUNK = {"choices": [{"delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}]}
LAST_CHUNK: dict[str, object] = {"choices": [{"delta": {}, "logprobs": None, "finish_reason": "length"}]}
USAGE: dict[str, object] = {"choices": [], "usage": {}}


def events(*payloads: object) -> bytes:
    return "".join(f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in payloads).encode()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (events(TOKEN, END), Answer("finished", "stop", "Hi", (("Hi", -0.5),))),
        (events(TOKEN, ERROR), Answer("error", "engine_died", "Hi", (("Hi", -0.5),))),
        (events(CHUNK, LAST_CHUNK, USAGE, "[DONE]"), Answer("finished", "length", "Hi")),
        (events({"type": "content_block_delta", "delta": {"text": "Hi"}}, {"type": "message_stop"}),
         Answer("finished", "message_stop", "Hi")),
        (events({"type": "response.output_text.delta", "delta": "Hi"}, {"type": "response.completed"}),
         Answer("finished", "completed", "Hi")),
    ],
)  # fmt: skip
def test_a_stream_has_one_end(body: bytes, answer: Answer) -> None:
    assert read_answer(200, body, streamed=True) == answer


@pytest.mark.parametrize(
    "body",
    [
        *[b"", events(TOKEN), events(TOKEN, END, END), events(TOKEN, END, TOKEN), events(TOKEN, ERROR, END)],
        *[events(CHUNK, "[DONE]"), events(CHUNK, LAST_CHUNK, "[DONE]", "[DONE]"), events(TOKEN, END)[:-1]],
        events(TOKEN, {"error": {"code": "engine_died"}}),
    ],
)
def test_a_stream_without_one_end_is_wrong(body: bytes) -> None:
    with pytest.raises(WrongAnswer):
        read_answer(200, body, streamed=True)


@pytest.mark.parametrize(
    "body",
    [
        {"id": "r", "content": "Hi", "finish_reason": "stop"},
        {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop", "logprobs": None}]},
        {"choices": [{"text": "Hi", "finish_reason": "stop"}]},
        {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "stop"},
        {"output": [{"content": [{"text": "Hi"}]}], "status": "stop", "error": None},
    ],
)
def test_answers_of_all_endpoints_are_read_alike(body: dict[str, object]) -> None:
    assert read_answer(200, json.dumps(body).encode(), streamed=False) == Answer("finished", "stop", "Hi")


def test_a_refusal_has_a_reason() -> None:
    assert read_answer(503, json.dumps(ERROR).encode(), streamed=True) == Answer("refused", "engine_died")
    for body in (b"", b"no", b"[]", b'{"error": {"code": "x"}}', b'{"detail": "x"}'):
        with pytest.raises(WrongAnswer):
            read_answer(503, body, streamed=False)
