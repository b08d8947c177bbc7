"""Ambiguous request heads, over real sockets."""

import json

import pytest

from tests.raw_http import asked
from tests.running_server import RunningServer

GET = b"GET %b HTTP/1.1\r\nconnection: close\r\n%b\r\n"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("path", [b"/v1/models", b"/healthz", b"/nowhere"])
def test_two_hosts_are_refused_on_every_path(scripted: RunningServer, path: bytes, version: bytes) -> None:
    head = (GET % (path, b"host: localhost\r\nHost: evil.example\r\n")).replace(b"HTTP/1.1", b"HTTP/" + version)
    answer = asked(scripted, head)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "invalid_http", "Host")
    assert error["message"] == "a request has one Host header, given 2: 'localhost', 'evil.example'"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        *((b"/v1/models", host, 200) for host in (b"host: localhost\r\n", b"")),
        *((b"/v1/models/" + name, b"", 404) for name in (b"%C3%A9", b"%zz", b"%", b"%F0%9F%98%80")),
    ],
)
def test_one_host_or_none_valid_utf8_and_incomplete_escapes_are_taken(
    scripted: RunningServer, target: bytes, host: bytes, status: int
) -> None:
    assert asked(scripted, GET % (target, host)).status == status


@pytest.mark.parametrize(
    ("target", "where", "byte"),
    [
        (b"/v1/models/%ff", "path", "FF"),
        (b"/v1/models/%ed%a0%80", "path", "ED"),
        (b"/v1/requests/a%C3/cancel", "path", "C3"),
        (b"/v1/models?x=%ff", "query", "FF"),
        (b"/v1/models?%c0%af=1", "query", "C0"),
    ],
)
def test_wrong_utf8_in_the_head_is_refused_by_byte(
    scripted: RunningServer, target: bytes, where: str, byte: str
) -> None:
    answer = asked(scripted, GET % (target, b"host: localhost\r\n"))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (400, "invalid_http")
    assert error["message"].startswith(f"the {where} must be UTF-8 once its %-escapes are bytes, given byte {byte} in ")


def test_huge_numbers_in_queries_and_headers_are_refused_by_name(scripted: RunningServer) -> None:
    digits = b"9" * 4400
    target = b"/v1/responses/x/input_items?limit=" + digits
    answer = asked(scripted, GET % (target, b"host: localhost\r\n"))
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "limit")
    head = b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-timeout: %b\r\n"
    content = b'{"messages": [{"role": "user", "content": "say x"}]}'
    more = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
    answer = asked(scripted, head % digits + more + content)
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "X-Request-Timeout")
