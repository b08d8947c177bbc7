"""Bodies are checked and validated in a thread, with the errors of FastAPI's own validation."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import field_validator

from genai_server.errors import TooManyValues
from genai_server.generation.parameters.base import StrictModel
from genai_server.http.body_budget import BodyBudget
from genai_server.http.body_route import BodyRoute
from genai_server.http.error_handlers import install_error_handlers
from genai_server.http.middleware.body import MAX_CONTAINERS, BodyLimits, brackets_of, check_json, is_nested
from genai_server.http.middleware.request_lifetime import RequestLifetime


class Body(StrictModel):
    text: str = ""
    number: int

    @field_validator("number")
    @classmethod
    def _where(cls, number: int) -> int:
        return threading.get_ident() if number == 0 else number


async def _ask(content: bytes, kind: str = "application/json") -> tuple[int, Any]:
    app, router = FastAPI(), APIRouter(route_class=BodyRoute)

    @router.post("/")
    async def where(body: Body) -> list[int]:
        return [body.number, threading.get_ident()]

    app.add_middleware(BodyLimits, limit=1_000_000, seconds=5, bodies=BodyBudget(1_000_000))
    app.add_middleware(RequestLifetime)
    install_error_handlers(app)
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        response = await client.post("/", content=content, headers={"content-type": kind})
        return response.status_code, response.json()


@pytest.mark.anyio
async def test_long_body_is_validated_in_a_thread_and_a_short_one_not() -> None:
    _, short = await _ask(b'{"number": 0}')
    _, long = await _ask(b'{"number": 0, "text": "' + b"x" * 100_000 + b'"}')
    assert (short[0] == short[1], long[0] == long[1]) == (True, False)


@pytest.mark.parametrize("padding", [0, 100_000], ids=["short", "long"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"number": "x"}', 'number must be an integer; given "x"'),
        (b'{"number": 1, "numbre": 1}', "numbre is not a field of this endpoint"),
        (b"[1]", "the body must be an object; given [1]"),
        (b"null", "a JSON body is required"),
        (b'{"number": }', "the body is not JSON: Expecting value at character 11"),
    ],
)
def test_invalid_body_is_refused_with_the_reason(content: bytes, message: str, padding: int) -> None:
    status, reply = asyncio.run(_ask(content + b" " * padding))
    assert (status, reply["error"]["message"]) == (400, message)


@pytest.mark.anyio
async def test_missing_and_undeclared_bodies_are_reported() -> None:
    assert (await _ask(b""))[1]["error"]["message"] == "a JSON body is required"
    status, reply = await _ask(b'{"number": 1}', "text/plain")
    assert (status, reply["error"]["code"]) == (400, "invalid_json")
    assert "is not declared as JSON" in reply["error"]["message"]


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
    assert is_nested(brackets_of(text), by_more_than=100) is nested


def test_lists_and_objects_are_counted_but_not_those_in_texts() -> None:
    most = MAX_CONTAINERS // 2
    check_json(b'["' + b"[" * 100_000 + b'",' + b"[{}]," * (most - 1) + b"0]")
    with pytest.raises(TooManyValues, match="at most 50000 lists and objects in all, given 50001"):
        check_json(b"[" + b"[{}]," * most + b"0]")
