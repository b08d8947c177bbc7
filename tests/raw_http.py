"""HTTP as bytes on a socket, for what client libraries neither send nor report."""

import socket
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.running_server import RunningServer


@dataclass
class RawAnswer:
    """One answer: its status, its headers by lower-case names, and its raw body."""

    status: int
    headers: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = b""


def connect(server: RunningServer, *, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    # Below the 60 s of asyncio for a TLS handshake.
    sock.settimeout(40)
    sock.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    return sock


def post(server: RunningServer, path: str, **fields: Any) -> bytes:
    """The bytes of a request with httpx's fields, such as `json` and `files`."""
    asked = httpx.Request("POST", f"{server.url}{path}", **fields)
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.headers.items()), "", ""]
    return "\r\n".join(lines).encode() + asked.read()


def read_to_end(sock: socket.socket) -> bytes:
    """Everything until the server closes the connection; fails if it does not within 40 s."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionError:
        pass
    return data


def answers(data: bytes) -> list[RawAnswer]:
    """All answers, if each gives its length; the body of one without a length is everything that follows."""
    found = []
    while data:
        lines, _, data = data.partition(b"\r\n\r\n")
        first, *fields = lines.decode("latin-1").split("\r\n")
        answer = RawAnswer(int(first.split()[1]))
        for line in fields:
            name, _, value = line.partition(": ")
            answer.headers.setdefault(name.lower(), []).append(value)
        length = int(answer.headers.get("content-length", [str(len(data))])[0])
        answer.body, data = data[:length], data[length:]
        found.append(answer)
    return found


def chunks(body: bytes) -> list[bytes]:
    """The chunks of a body in chunked coding, without the empty one at its end."""
    found = []
    while body:
        size, _, body = body.partition(b"\r\n")
        found.append(body[: int(size, 16)])
        body = body[int(size, 16) + len(b"\r\n") :]
    assert found.pop() == b""
    return found


def asked(server: RunningServer, sent: bytes) -> RawAnswer:
    """The single answer to these bytes, after which the server closes the connection."""
    with connect(server) as sock:
        sock.sendall(sent)
        (answer,) = answers(read_to_end(sock))
    return answer
