"""The limits of a request's body: size, time and depth."""

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from genai_server.api.body import is_nested
from tests.running_server import RunningServer


def test_a_body_over_the_limit_is_refused_with_limit_and_size(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content=b" " * 1_100_000, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "body_too_large"
    assert "at most 1048576 bytes (GENAI_MAX_BODY_BYTES), given 1100000" in error["message"]
    assert response.headers["x-request-id"]


def test_a_body_of_unknown_length_is_refused_too(scripted: RunningServer) -> None:
    chunks = (b" " * 65536 for _ in range(64))
    response = scripted.client.post("/v1/chat", content=chunks, headers={"content-type": "application/json"})
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_body_without_end_is_not_read_for_ever(scripted: RunningServer) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4096:
            sent += 1
            yield b" " * 65536

    # The answer may be lost where the server hangs up in the middle of the body.
    with contextlib.suppress(httpx.TransportError):
        response = scripted.client.post("/v1/chat", content=chunks(), headers={"content-type": "application/json"})
        assert response.json()["error"]["code"] == "body_too_large"
    assert sent < 2048  # eight times a MiB, and what the system has in its buffers


def test_a_body_that_is_not_json_is_a_400(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content='{"messages": [', headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_json_that_is_not_declared_as_such_says_so(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content='{"messages": []}')
    assert response.status_code == 400
    assert "content-type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", ["[1, 2]", '"x"', "7", "null", "", "\x00", "[" * 100_000, '{"messages": NaN}'])
def test_a_body_that_is_no_object_is_a_400(scripted: RunningServer, content: str) -> None:
    response = scripted.client.post("/v1/chat", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        (b"[" * 101, True),
        (b"[" * 100 + b"]" * 100, False),
        (b"[" * 101 + b"]" * 101, True),
        (b'{"a":' * 60 + b"[" * 60, True),
        (b"[]" * 500_000, False),
        (b'["' + b"[" * 999 + b'"]', False),
        (b'["\\"' + b"[" * 999 + b'"]', False),
        (b'["\\\\"' + b"[" * 999, True),
        (b'"' + b"[" * 999, False),
        (b'"\\' + b"[" * 999, False),
        (b"[" * 99 + b"]" * 99 + b"[" * 99 + b"]" * 99, False),
        (b"]" * 200 + b"[" * 100, False),
        (("[" * 200 + "é" * 3).encode(), True),
    ],
    ids=range(13),
)
def test_the_depth_of_a_json_text_is_found_without_reading_it(text: bytes, nested: bool) -> None:
    assert is_nested(text, by_more_than=100) is nested


@pytest.mark.parametrize(
    "text",
    [b"[" * 1_000_000, b'{"messages":' * 80_000, b'["' + b'\\"[' * 300_000 + b'",' + b"[" * 101],
    ids=["lists", "objects", "behind a text"],
)
def test_a_body_that_is_nested_too_deep_is_a_400(scripted: RunningServer, text: bytes) -> None:
    response = scripted.client.post("/v1/chat", content=text, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "nested_too_deep"
    assert "may be nested 100 deep" in response.json()["error"]["message"]


@pytest.mark.parametrize("deep", [60, 90])
def test_what_is_nested_less_is_no_trouble_wherever_it_stands(scripted: RunningServer, deep: int) -> None:
    """In a template's variable, in a tool's schema, in a schema for the answer, in a field without effect."""
    value: object = {}
    for _ in range(deep):
        value = {"a": value}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": value}}}
    function = {"name": "f", "parameters": {"type": "object", "properties": value}}
    for fields in (
        {"chat_template_kwargs": {"tools_": value}},
        {"tools": [{"type": "function", "function": function}]},
        {"response_format": schema},
        {"metadata": value},
    ):
        assert scripted.chat("say x", max_tokens=2, **fields).status_code in (200, 400)


def test_a_body_in_another_encoding_is_refused(scripted: RunningServer) -> None:
    for encoding in ("utf-16", "utf-16-be", "utf-32"):
        content = '{"messages": []}'.encode(encoding)
        response = scripted.client.post("/v1/chat", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "invalid_json"


def test_a_number_of_a_million_digits_is_a_400(scripted: RunningServer) -> None:
    content = b'{"messages": [], "seed": ' + b"9" * 1_000_000 + b"}"
    response = scripted.client.post("/v1/chat", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
