"""Streams of JSON objects, one in each line (https://github.com/ndjson/ndjson-spec)."""

from typing import Any

import msgspec

from genai_server.http.sse import Event, EventStream

# OpenAPI description of the status 200 of endpoints that may stream lines.
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}


def line_bytes(value: Event) -> bytes:
    """The object as a line of JSON."""
    return msgspec.json.encode(value) + b"\n"


class LineStream(EventStream):
    """Sends each event as a line of JSON. The format has no comments, so no keep-alive is sent."""

    COMMENT_INTERVAL = 0
    MEDIA_TYPE = "application/x-ndjson"

    def _event(self, value: Event) -> bytes:
        return line_bytes(value)
