"""The end of a stream whose replica has died: what a single server sends when its engine dies, in each API's
format.
"""

import json

from starlette.datastructures import Headers
from starlette.types import Message, Scope

from genai_server.apis.messages.errors import speaks_anthropic
from genai_server.apis.responses import routes as responses
from genai_server.apis.responses.response import stream_error
from genai_server.errors import GenaiServerError
from genai_server.http.error_responses import error_body
from genai_server.http.streams import EventStream, LineStream, event_bytes, line_bytes
from genai_server.ray_serve.model_choice import matches

_NAMED = b"event: "
_DATA = b"\ndata: "


def is_event(message: Message) -> bool:
    """Whether a message of a response contains a named server-sent event, which `stream_end` can read."""
    return bool(message.get("body", b"").startswith(_NAMED))


def stream_end(start: Message, last_event: bytes, error: GenaiServerError, scope: Scope) -> Message:
    """Return the last message of a response that has begun with `start`: an event or line with the error.

    If the response is no stream of events or lines, the message is empty. `last_event` is the last named event that was
    sent, because the events of /v1/responses are numbered.
    """
    kind = Headers(raw=start["headers"]).get("content-type", "")
    body = b""
    if kind.startswith(LineStream.MEDIA_TYPE):
        body = line_bytes(error_body(error, scope))
    elif kind.startswith(EventStream.MEDIA_TYPE):
        if matches(responses.router.routes, scope):
            number = json.loads(last_event.partition(_DATA)[2])["sequence_number"] + 1 if last_event else 0
            body = event_bytes(stream_error(error, number), named=True)
        else:
            body = event_bytes(error_body(error, scope), named=speaks_anthropic(scope))
    return {"type": "http.response.body", "body": body, "more_body": False}
