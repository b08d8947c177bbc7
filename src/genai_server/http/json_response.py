"""JSON responses. Large ones are built and encoded in a thread."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

# An object of a body.
JsonObject = dict[str, Any]


def json_response(body: Any) -> Response:
    """A response with `body` encoded as JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")


async def built_response(build: Callable[[], JsonObject], *, is_long: bool) -> Response:
    """A response with the body that `build` returns, encoded as JSON. If `is_long`, both happen in a thread."""
    return await asyncio.to_thread(lambda: json_response(_in_pieces(build()))) if is_long else json_response(build())


def _in_pieces(body: JsonObject) -> JsonObject:
    """The body with each element of its lists already encoded as JSON. Encoding it is then several short calls, because
    msgspec holds the GIL during one call.
    """
    return {
        name: [msgspec.Raw(msgspec.json.encode(part)) for part in value] if isinstance(value, list) else value
        for name, value in body.items()
    }
