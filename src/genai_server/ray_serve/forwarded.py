"""What the ingress of the Ray Serve application and the replicas send to each other: a request (`ForwardedRequest`) and
a replica's complete answer (`ReplicaAnswer`). Also reads the fields of a request's body.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Scope

from genai_server.errors import RequestError
from genai_server.http.request_state import Receipt, with_receipt
from genai_server.http.upload import FormParser
from genai_server.timing import request_clock

# Names the replica that has answered, and in admin calls the one that is meant.
REPLICA_HEADER = "x-genai-replica"
# The client is that which Serve's proxy sees.
FORWARDED = ("method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server")
# Maximum number of characters of a prompt that the request router compares.
_MAX_COMPARED = 16_384
# Bytes of a form that are read at once.
_FORM_CHUNK_BYTES = 256 * 1024
# The fields of all APIs that have a prompt's texts.
_PROMPT_FIELDS = ("system", "instructions", "messages", "prompt", "input")


@dataclass(frozen=True)
class ForwardedRequest:
    """An HTTP request with its whole body, which the ingress sends to a replica. `scope` turns it into an ASGI request
    again.
    """

    # What its ASGI scope has of FORWARDED.
    parts: Mapping[str, Any]
    body: bytes = b""
    # The beginning of the prompt's text, by which Serve's request router finds a replica; "" without one.
    prompt: str = ""
    # Seconds since 1970 at its arrival in the ingress; None for a request of the server's own.
    arrived_at: float | None = None

    def scope(self) -> Scope:
        """Return the ASGI scope of this request for the replica's app. The time of arrival is computed from the wall
        clocks of the two machines, which may differ.
        """
        age = 0.0 if self.arrived_at is None else max(0.0, time.time() - self.arrived_at)
        state = with_receipt(Receipt(request_clock() - age, is_counted=True))
        version = {"asgi": {"version": "3.0"}, "http_version": "1.1"}
        return {"type": "http", **version, "root_path": "", **self.parts, "state": state}


# Asks whether a replica takes work. It has no client and no key.
READINESS = ForwardedRequest(
    {"method": "GET", "path": "/readyz", "raw_path": b"/readyz", "query_string": b"", "headers": []}
)


@dataclass(frozen=True)
class ReplicaAnswer:
    """The complete HTTP response of one replica, with the names of the replica and of its model, as the ingress
    receives it for requests that go to several replicas.
    """

    replica: str
    # The replica's deployment.
    model: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def content_type(self) -> str:
        """The media type of the response's body, in lower case and without parameters; "" without one."""
        header = next((value for name, value in self.headers if name.lower() == b"content-type"), b"")
        return header.partition(b";")[0].strip().lower().decode("latin-1")


def body_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a request's JSON body; empty if the body is not a JSON object. The replica checks the body
    later.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def form_fields(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the fields of a multipart form without its file; empty if the body is not a form. The replica then refuses
    the request. `headers` are those of the request.
    """
    try:
        form = FormParser(headers)
        for start in range(0, len(body), _FORM_CHUNK_BYTES):
            form.feed(body[start : start + _FORM_CHUNK_BYTES])
            form.pending.clear()  # the file would be in memory twice
    except RequestError:
        return {}
    return dict(form.fields)


def prompt_text(fields: Mapping[str, Any]) -> str:
    """Return the beginning of the texts of a request's prompt, joined in order, by which the request router compares
    prompts. `fields` are the fields of the request's body; the result is "" if they have no prompt.
    """
    length, texts = 0, []
    for text in _texts([fields.get(name) for name in _PROMPT_FIELDS]):
        texts.append(text)
        length += len(text)
        if length >= _MAX_COMPARED:
            break
    # Half of a surrogate pair, which JSON may have, cannot be sent to the router's tree.
    return "\n".join(texts)[:_MAX_COMPARED].encode(errors="replace").decode()


def with_header(message: Message, name: str, value: str) -> Message:
    """Return a copy of `message`, the ASGI message that starts a response, with the header `name` (in lower case)
    replaced. An empty value removes the header.
    """
    encoded = name.encode("latin-1")
    remaining = [header for header in message["headers"] if header[0].lower() != encoded]
    added = [(encoded, value.encode("latin-1"))] if value else []
    return {**message, "headers": [*remaining, *added]}


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case {"content": content}:
            yield from _texts(content)
        case {"text": str(text)}:
            yield text
