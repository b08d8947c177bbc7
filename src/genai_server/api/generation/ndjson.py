"""Answers as lines of JSON (https://github.com/ndjson/ndjson-spec)."""

from typing import Any

import msgspec

from genai_server.api.generation.sse import Event, EventStream

# How an endpoint that may stream lines documents its 200.
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}


def line_bytes(value: Event) -> bytes:
    """One object as it goes over the wire."""
    return msgspec.json.encode(value) + b"\n"


class LineStream(EventStream):
    """Sends objects, each as a line, as EventStream sends events. No line is a comment, so none keeps it open."""

    DEFAULT_PING_INTERVAL = 0
    MEDIA_TYPE = "application/x-ndjson"

    def _event(self, value: Event) -> bytes:
        return line_bytes(value)
