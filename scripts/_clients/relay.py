"""Passes a program's requests on to a server, and keeps them in memory: their bodies, and what became of them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

_HOST = "127.0.0.1"
# Headers that belong to one connection, or that the other side of the relay has of its own.
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"})
_OF_ANSWER = _HOP | {"date", "server"}
# What generates an answer.
_PATHS = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
_CHUNK = 65536
_SECONDS = 300.0


@dataclass(frozen=True)
class Recorded:
    """A request as the program sent it, and how it was answered."""

    # With the query.
    path: str
    body: bytes
    status: int
    # The response's body, if it is an error.
    error: str


@dataclass
class Relay:
    """A running relay."""

    url: str
    # In the order in which their responses ended.
    requests: list[Recorded] = field(default_factory=list)

    def refused(self) -> str:
        """The first error of a refused request; "" if there is none."""
        return next((request.error[:300] for request in self.requests if request.status == 400), "")

    def asked(self, mark: str) -> list[tuple[str, dict[str, Any]]]:
        """The path and the body of each request for an answer that has this text. Raises ValueError if one is no
        object.
        """
        requests = [(request.path.partition("?")[0], request.body) for request in self.requests]
        bodies = [(path, json.loads(body)) for path, body in requests if path in _PATHS and mark.encode() in body]
        if any(not isinstance(body, dict) for _, body in bodies):
            raise ValueError("a request has a body that is no object")
        return bodies


@contextmanager
def relay(target: str) -> Iterator[Relay]:
    """Run a relay to the server at `target` until the context ends."""
    with _Server(target) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.relay
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__((_HOST, 0), _Handler)
        self.target = urlsplit(target)
        self.relay = Relay(f"http://{_HOST}:{self.server_address[1]}")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Pass a request on, of any method."""
        body = self._body()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        target = self.server.target
        connection = http.client.HTTPConnection(str(target.hostname), target.port, timeout=_SECONDS)
        try:
            connection.request(self.command, self.path, body or None, headers | {"content-length": str(len(body))})
            answer = connection.getresponse()
            error = self._answer(answer)
        finally:
            connection.close()
        self.server.relay.requests.append(Recorded(self.path, body, answer.status, error))

    do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _answer(self, answer: http.client.HTTPResponse) -> str:
        """Send the response as it comes; returns the text of an error."""
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_ANSWER:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if self.command == "HEAD":
            return ""
        error = b""
        while piece := answer.read1(_CHUNK):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            error += piece if answer.status >= 400 else b""
        self.wfile.write(b"0\r\n\r\n")
        return error.decode(errors="replace")
