"""A request on its way from the ingress to a replica, and a replica's whole answer: all that crosses a Serve handle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Message, Scope

# Names the replica that has answered, and in admin calls the one that is meant.
REPLICA_HEADER = "x-genai-replica"
# Most characters that the request router compares: longer prefixes are equal to it.
_MOST_COMPARED = 16_384


@dataclass(frozen=True)
class ForwardedRequest:
    """A whole HTTP request."""

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    # Address and port of the client as Serve's proxy sees it.
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    scheme: str
    # The beginning of the prompt's text, by which Serve's request router finds a replica; "" if there is none.
    prompt: str = ""

    def scope(self) -> Scope:
        """The ASGI scope of this request."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": self.scheme,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query_string,
            "root_path": "",
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
            "state": {},
        }


# The question whether a replica takes work; nobody's, so that the answer is for everybody.
READINESS = ForwardedRequest("GET", "/readyz", b"/readyz", b"", [], b"", None, None, "http")


@dataclass(frozen=True)
class ReplicaAnswer:
    """The whole answer of one replica."""

    replica: str
    # The replica's deployment.
    model: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def content_type(self) -> str:
        """Without parameters."""
        found = next((value for name, value in self.headers if name.lower() == b"content-type"), b"")
        return found.partition(b";")[0].strip().lower().decode("latin-1")


class BodyHead(msgspec.Struct):
    """What the ingress reads of a body. Anything may be in it: the replica checks it."""

    model: Any = None
    # Ollama's older name of it.
    name: Any = None
    system: Any = None
    instructions: Any = None
    messages: Any = None
    prompt: Any = None
    input: Any = None


def body_head(body: bytes) -> BodyHead:
    """What the ingress reads of a body; nothing of one that is not a JSON object."""
    try:
        return msgspec.json.decode(body, type=BodyHead)
    except (msgspec.DecodeError, RecursionError):
        return BodyHead()


def prompt_text(head: BodyHead) -> str:
    """The texts of a prompt in their order, as the request router compares them."""
    length, found = 0, []
    for text in _texts([head.system, head.instructions, head.messages, head.prompt, head.input]):
        found.append(text)
        length += len(text)
        if length >= _MOST_COMPARED:
            break
    return "\n".join(found)[:_MOST_COMPARED]


def with_header(message: Message, name: str, value: str) -> Message:
    """The start of a response with one header, in place of any by this name; an empty value only removes it."""
    encoded = name.encode("latin-1")
    kept = [header for header in message["headers"] if header[0].lower() != encoded]
    added = [(encoded, value.encode("latin-1"))] if value else []
    return {**message, "headers": [*kept, *added]}


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
