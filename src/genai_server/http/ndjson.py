"""Responses as lines of JSON (https://github.com/ndjson/ndjson-spec)."""

from typing import Any

import msgspec

from genai_server.http.sse import Event, EventStream

# OpenAPI description of the status 200 of endpoints that may stream lines.
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}


def line_bytes(value: Event) -> bytes:
    """Encode an object as a line."""
    return msgspec.json.encode(value) + b"\n"


class LineStream(EventStream):
    """Sends each object as a line. The format has no comments, so no keep-alive is sent."""

    COMMENT_INTERVAL = 0
    MEDIA_TYPE = "application/x-ndjson"

    def _event(self, value: Event) -> bytes:
        return line_bytes(value)
