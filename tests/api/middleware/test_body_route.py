"""Bodies are checked in a thread, and what is wrong with them is said as FastAPI's own checks would have it said."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import field_validator

from genai_server.api.error_handlers import install_error_handlers
from genai_server.api.middleware.all_bodies import AllBodies
from genai_server.api.middleware.body import BodyLimits, BodyRoute
from genai_server.api.middleware.request_id import RequestId
from genai_server.openai_api.schemas.base import Wire


class Body(Wire):
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

    app.add_middleware(BodyLimits, limit=1_000_000, seconds=5, bodies=AllBodies(1_000_000))
    app.add_middleware(RequestId)
    install_error_handlers(app)
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        response = await client.post("/", content=content, headers={"content-type": kind})
        return response.status_code, response.json()


def test_a_long_body_is_checked_in_a_thread_and_a_short_one_at_once() -> None:
    _, short = asyncio.run(_ask(b'{"number": 0}'))
    assert short[0] == short[1]
    _, long = asyncio.run(_ask(b'{"number": 0, "text": "' + b"x" * 100_000 + b'"}'))
    assert long[0] != long[1]


@pytest.mark.parametrize("padding", [0, 100_000], ids=["short", "long"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"number": "x"}', 'number must be a whole number; given "x"'),
        (b'{"number": 1, "numbre": 1}', "numbre is not a field that this endpoint knows"),
        (b"[1]", "the body must be an object; given [1]"),
        (b"null", "a JSON body is required"),
        (b'{"number": }', "the body is not JSON: Expecting value at character 11"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(content: bytes, message: str, padding: int) -> None:
    status, told = asyncio.run(_ask(content + b" " * padding))
    assert (status, told["error"]["message"]) == (400, message)


def test_no_body_and_one_that_is_not_declared_as_json_are_said_to_be_so() -> None:
    assert asyncio.run(_ask(b""))[1]["error"]["message"] == "a JSON body is required"
    status, told = asyncio.run(_ask(b'{"number": 1}', "text/plain"))
    assert (status, told["error"]["code"]) == (400, "invalid_json")
    assert "is not declared as JSON" in told["error"]["message"]
