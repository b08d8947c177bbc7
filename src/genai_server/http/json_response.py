"""Makes JSON responses: small ones at once (`json_response`), large ones in a thread, so that they do not delay other
requests (`built_response`).
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

# An object of a body.
JsonObject = dict[str, Any]


def json_response(body: Any) -> Response:
    """Return a response with status 200 whose body is `body`, encoded as JSON at once."""
    return Response(msgspec.json.encode(body), media_type="application/json")


async def built_response(build: Callable[[], JsonObject], *, is_long: bool) -> Response:
    """Return a response with status 200 whose body is what `build` returns, encoded as JSON. If `is_long` is True, both
    happen in a thread.
    """
    return await asyncio.to_thread(lambda: json_response(_in_pieces(build()))) if is_long else json_response(build())


def _in_pieces(body: JsonObject) -> JsonObject:
    """Return a copy of a body in which each element of its lists is already encoded as JSON. Encoding the copy is then
    several short calls, because msgspec holds the GIL during one call.
    """
    return {
        name: [msgspec.Raw(msgspec.json.encode(part)) for part in value] if isinstance(value, list) else value
        for name, value in body.items()
    }
