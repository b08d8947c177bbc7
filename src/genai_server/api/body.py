"""The body of a request: read before a route sees it, within limits of size, time and depth. Plain ASGI."""

import asyncio
import json
import re
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.errors import error_response
from genai_server.errors import BodyTooLarge, BodyTooSlow, GenaiServerError, MalformedBody, NestedTooDeep

# A body over the limit is read on, and dropped, up to so many times the limit: a client that is still sending when the
# connection is closed may never see the answer.
_DRAINED = 8
# Lists and objects within each other. A JSON schema takes two for each of its own levels; what walks through a body,
# a template among it, calls itself for each.
MOST_NESTED = 100
# One that does not end goes on to the end of the body: each character is looked at once.
_JSON_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_ALL_ELSE = bytes(set(range(256)) - set(b"[]{}"))


@dataclass
class _Reading:
    """A body while it comes: what is kept of it, how long it is up to now, and whether there is more."""

    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    more: bool = True


class BodyLimits:
    """Reads the body first, at most `limit` bytes and for at most `seconds`; refuses all else before any work is done.

    No text in it is nested by more than MOST_NESTED.
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self.app = app
        self.limit = limit
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reading = _Reading()
        try:
            async with asyncio.timeout(self.seconds):
                is_whole = await self._read(reading, receive)
        except TimeoutError:
            message = (
                f"the body must come within {self.seconds} seconds (GENAI_BODY_TIMEOUT); "
                f"{reading.size} bytes had come by then"
            )
            await _refuse(BodyTooSlow(message), reading, scope, receive, send)
            return
        if not is_whole:
            return
        try:
            self._check(reading)
        except GenaiServerError as error:
            await _refuse(error, reading, scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(reading.body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)

    async def _read(self, reading: _Reading, receive: Receive) -> bool:
        """Read until the end, or far beyond the limit; returns whether the client is still there."""
        while reading.more and reading.size <= self.limit * _DRAINED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part: bytes = message.get("body", b"")
            reading.size += len(part)
            reading.more = message.get("more_body", False)
            if reading.size <= self.limit:
                reading.body += part
        return True

    def _check(self, reading: _Reading) -> None:
        if reading.size > self.limit:
            given = f"more than {reading.size}" if reading.more else str(reading.size)
            raise BodyTooLarge(f"the body may have at most {self.limit} bytes (GENAI_MAX_BODY_BYTES), given {given}")
        if not json.detect_encoding(reading.body).startswith("utf-8"):
            raise MalformedBody("the body is not JSON in UTF-8")
        if is_nested(reading.body, by_more_than=MOST_NESTED):
            raise NestedTooDeep(
                f"the lists and objects of the body may be nested {MOST_NESTED} deep, given more than {MOST_NESTED}"
            )


def is_nested(text: bytes | bytearray, *, by_more_than: int) -> bool:
    """Whether lists and objects of a JSON text lie within each other by more than so many; the text may be wrong."""
    if text.count(b"[") + text.count(b"{") <= by_more_than:
        return False
    brackets = _JSON_TEXT.sub(b"", text).translate(_BRACKETS, _ALL_ELSE)
    for _ in range(by_more_than):
        inner = brackets
        brackets = inner.replace(b"[]", b"")
        if brackets == inner:
            break
    return b"[]" in brackets or brackets.count(b"[") > by_more_than


async def _refuse(error: GenaiServerError, reading: _Reading, scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(error, scope)
    if reading.more:
        response.headers["connection"] = "close"
    await response(scope, receive, send)
