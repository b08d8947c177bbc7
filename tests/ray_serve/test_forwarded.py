"""What the ingress reads of a request."""

import asyncio
import time
import tracemalloc
from dataclasses import replace

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from genai_server.http.api_keys import ApiKey, ApiKeys, hash_key
from genai_server.http.middleware.authentication import Authentication
from genai_server.http.rate_limit import RateLimits
from genai_server.http.request_state import receipt_of, start_request
from genai_server.ray_serve.forwarded import READINESS, body_fields, form_fields, prompt_text, with_header
from genai_server.timing import request_clock


def _prompt(body: bytes) -> str:
    return prompt_text(body_fields(body))


def test_a_prompt_is_its_texts_in_order_in_each_api() -> None:
    chat = b'{"messages": [{"role": "system", "content": "a"}, {"content": [{"type": "text", "text": "b"}]}]}'
    assert _prompt(chat) == "a\nb"
    assert _prompt(b'{"system": [{"type": "text", "text": "s"}], "messages": [{"content": "b"}]}') == "s\nb"
    assert _prompt(b'{"instructions": "i", "input": "x"}') == "i\nx"
    assert _prompt(b'{"prompt": ["p", "q"]}') == "p\nq"
    assert _prompt(rb'{"prompt": "a\ud83d"}') == "a?"


def test_the_next_turn_begins_alike_and_only_the_beginning_of_a_prompt_is_compared() -> None:
    first = b'{"messages": [{"content": "a"}]}'
    second = b'{"messages": [{"content": "a"}, {"content": "b"}, {"content": "c"}]}'
    assert _prompt(second).startswith(_prompt(first))
    assert len(_prompt(b'{"prompt": "%b"}' % (b"x" * 100_000))) == 16_384


def test_fields_of_a_form_are_read_and_invalid_bodies_are_left_to_the_replica() -> None:
    part = b'--a\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--a--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=a"}
    assert form_fields(headers, part) == {"model": "m"}
    assert form_fields(headers, b"{}") == form_fields({}, part) == {}
    for body in (b"", b"{", b"[]", b'"x"', b"\xff", b'{"messages": 1, "model": []}', b"[" * 5_000):
        assert _prompt(body) == ""


def test_the_file_of_a_form_is_not_copied() -> None:
    file = b'--a\r\ncontent-disposition: form-data; name="file"\r\n\r\n%b\r\n' % bytes(8_000_000)
    body = file + b'--a\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--a--\r\n'
    tracemalloc.start()
    try:
        assert form_fields({"content-type": "multipart/form-data; boundary=a"}, body) == {"model": "m"}
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_header_is_there_once() -> None:
    start = {"type": "http.response.start", "headers": [(b"A", b"1"), (b"b", b"2")]}
    assert with_header(start, "a", "3")["headers"] == [(b"b", b"2"), (b"a", b"3")]
    assert with_header(start, "a", "")["headers"] == [(b"b", b"2")]


@pytest.mark.parametrize(("is_forwarded", "statuses"), [(True, [200, 200]), (False, [200, 429])])
def test_request_counted_by_the_ingress_is_not_counted_again(is_forwarded: bool, statuses: list[int]) -> None:
    # A limit of this key, which no setting contains.
    keys = ApiKeys((ApiKey("me", hash_key("sk-0123456789abcdef"), rate=1),))
    app = Authentication(
        _answer, keys, RateLimits(0, 0, lambda: 0.0), admin_key=None, on_loopback=False, insecure=False
    )
    parts = {"method": "POST", "path": "/v1/chat", "headers": [(b"x-api-key", b"sk-0123456789abcdef")]}
    request = replace(READINESS, parts={**READINESS.parts, **parts})
    found: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    async def ask() -> None:
        for _ in statuses:
            scope = request.scope() if is_forwarded else {**request.scope(), "state": {}}
            start_request(scope)
            await app(scope, _receive, send)

    asyncio.run(ask())
    assert found == statuses


def test_a_replica_counts_from_the_arrival_in_the_ingress() -> None:
    before = request_clock()
    arrived = _arrival(time.time() - 3.0)
    assert before - 3.1 <= arrived <= request_clock() - 2.9  # two clocks, one of which may be adjusted in between
    for unknown in (None, time.time() + 3.0):  # nothing arrives in the future, whatever another machine's clock says
        before = request_clock()
        assert before <= _arrival(unknown) <= request_clock()


def _arrival(arrived_at: float | None) -> float:
    """When a request that came to the ingress at this time came, by the replica's clock."""
    arrived = receipt_of(replace(READINESS, arrived_at=arrived_at).scope()["state"]).arrived
    assert arrived is not None
    return arrived


async def _receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await Response()(scope, receive, send)
