"""Answers to HTTP/1.0, over real sockets."""

import json

import pytest

from tests.raw_http import RawAnswer, asked
from tests.running_server import RunningServer, body


def streamed(server: RunningServer, version: bytes, more: bytes) -> RawAnswer:
    content = json.dumps(body("count 3", stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/%b\r\nhost: localhost\r\ncontent-type: application/json\r\n%b"
    return asked(server, head % (version, more) + b"content-length: %d\r\n\r\n" % len(content) + content)


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n", b"expect: 100-continue\r\n"])
def test_a_stream_is_not_chunked_and_ends_with_the_connection(scripted: RunningServer, more: bytes) -> None:
    answer = streamed(scripted, b"1.0", more)
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == ["close"]
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_http11_response_is_chunked(scripted: RunningServer) -> None:
    answer = streamed(scripted, b"1.1", b"connection: close\r\n")
    assert answer.headers["transfer-encoding"] == ["chunked"]
    assert answer.headers["connection"] == ["close"]
    assert answer.body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_an_answer_of_known_length_says_it(scripted: RunningServer) -> None:
    answer = asked(scripted, b"GET /v1/models HTTP/1.0\r\nhost: localhost\r\n\r\n")
    assert answer.headers["content-length"] == [str(len(answer.body))]
    assert json.loads(answer.body)["object"] == "list"
