"""JSON responses; large ones are encoded in a thread."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

# An object of a body.
JsonObject = dict[str, Any]


def json_response(body: Any) -> Response:
    """A JSON response with this body."""
    return Response(msgspec.json.encode(body), media_type="application/json")


async def built_response(build: Callable[[], JsonObject], *, is_long: bool) -> Response:
    """A JSON response with the body that `build` returns. Both are built in a thread if `is_long`."""
    return await asyncio.to_thread(lambda: json_response(_in_pieces(build()))) if is_long else json_response(build())


def _in_pieces(body: JsonObject) -> JsonObject:
    """The body with list elements encoded one by one, because the encoder holds the GIL."""
    return {
        name: [msgspec.Raw(msgspec.json.encode(part)) for part in value] if isinstance(value, list) else value
        for name, value in body.items()
    }
