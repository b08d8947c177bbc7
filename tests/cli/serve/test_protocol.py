"""Slow, idle and endless connections, over real sockets."""

import asyncio
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect as connect_websocket
from websockets.sync.connection import Connection

from genai_server.cli.serve.protocol import GuardedProtocol, StallGuard
from tests.raw_http import answers, connect, read_to_end
from tests.running_server import RunningServer, body, run_server, wait_until


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose timeouts are one second and whose heads have at most 4 KiB."""
    seconds = dict.fromkeys(("GENAI_IDLE_TIMEOUT", "GENAI_BODY_TIMEOUT", "GENAI_STALL_TIMEOUT"), "1")
    settings = {"GENAI_DEVICE": "scripted", "GENAI_MAX_LENGTH": "100000", "GENAI_MAX_HEADER_BYTES": "4096"}
    with run_server(tmp_path_factory.mktemp("hasty"), settings=settings | seconds) as server:
        yield server


def exchange(server: RunningServer, sent: bytes) -> bytes:
    """All that a server sends on a connection with these bytes until it closes this."""
    with connect(server) as sock:
        sock.sendall(sent)
        return read_to_end(sock)


@pytest.mark.parametrize(
    ("sent", "num_answers"),
    [
        *((each, 0) for each in (b"", b"\r\n", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: x\r\n")),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 2, 2),
    ],
)
def test_an_idle_connection_without_a_whole_head_is_closed(hasty: RunningServer, sent: bytes, num_answers: int) -> None:
    answer = exchange(hasty, sent)
    assert (answer.count(b"HTTP/1.1 200 OK"), answer == b"") == (num_answers, num_answers == 0)


def test_an_answer_may_take_longer_than_a_connection_may_be_idle(hasty: RunningServer) -> None:
    with httpx.Client(base_url=hasty.url, timeout=90) as client:
        assert client.post("/v1/chat", json=body("count 3; delay 0.25")).json()["content"] == "1, 2, 3"
        assert client.post("/v1/chat", json=body("say x")).json()["content"] == "x"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 4096 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 1000 + b"\r\n", 431),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 5000, 431),
        (b"\r\n" * 3000, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\0 HTTP/1.1\r\n\r\n", 400),
    ],
    ids=["one long header", "many headers", "long path", "without end", "line ends", "nonsense", "null byte"],
)
def test_a_wrong_head_gets_an_error_with_browser_headers(hasty: RunningServer, head: bytes, status: int) -> None:
    lines, _, content = exchange(hasty, head).partition(b"\r\n\r\n")
    assert int(lines.split()[1]) == status
    error = json.loads(content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert ("at most 4096 bytes (GENAI_MAX_HEADER_BYTES), given " in error["message"]) is (status == 431)
    assert b"\r\nx-content-type-options: nosniff" in lines
    assert b"\r\ncache-control: no-store" in lines
    assert b"\r\ncontent-security-policy: frame-ancestors 'none'" in lines


def test_a_head_within_the_limit_is_taken(hasty: RunningServer) -> None:
    assert hasty.client.get("/healthz", headers={"x": "x" * 3500}).status_code == 200


POST = b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
_CONTENT = json.dumps(body("delay 0.05; count 3")).encode()
WHOLE = POST + b"content-length: %d\r\n\r\n" % len(_CONTENT) + _CONTENT


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", "Invalid character in chunk size"),
        (CHUNKED + b"2\r\n{}xx0\r\n\r\n", "after chunk data"),
        (CHUNKED + b"f" * 40 + b"\r\n{}", "Chunk size overflow"),
        (POST + b"transfer-encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "invalid `Transfer-Encoding`"),
        (POST + b"content-length: 1x\r\n\r\n{}", "Invalid character in Content-Length"),
        (POST + b"content-length: " + b"9" * 3000 + b"\r\n\r\n{}", "Content-Length overflow"),
        (POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", "Content-Length"),
        (b"GET /v1/models/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", "Invalid char in url path"),
        (b"nonsense\r\n\r\n", "Invalid method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_body_is_refused_with_the_reason(hasty: RunningServer, sent: bytes, reason: str) -> None:
    (answer,) = answers(exchange(hasty, sent))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (400, "invalid_http")
    assert reason in error["message"]
    wait_until(lambda: hasty.idle("scripted"))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (CHUNKED + b"zz\r\n", b"Invalid character in chunk size"),
        (b"nonsense\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"Invalid method"),
    ],
)
def test_request_before_malformed_bytes_is_answered_alone(hasty: RunningServer, broken: bytes, reason: bytes) -> None:
    first, second, last = answers(exchange(hasty, WHOLE + WHOLE + broken))
    assert [json.loads(answer.body)["content"] for answer in (first, second)] == ["1, 2, 3"] * 2
    assert (last.status, reason in last.body) == (400, True)


def test_refused_body_gets_no_second_answer_for_its_framing(hasty: RunningServer) -> None:
    with connect(hasty) as sock:
        sock.sendall(CHUNKED.replace(b"localhost", b"elsewhere") + b"1\r\n{\r\n")
        answer = b""
        while not answer.endswith(b"}}"):  # it may arrive in pieces
            answer += sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401 ")
        sock.sendall(b"zz\r\n")
        assert read_to_end(sock) == b""


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b"x" * 65_536),
        (b"GET /healthz HTTP/1.1\r\nx: ", b"x" * 65_536),
        (b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 10_000),
        (b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x" * 65_536),
    ],
    ids=["method", "header", "trailers", "a chunk's extension"],
)
def test_endless_request_is_cut_off_by_its_size(scripted: RunningServer, begin: bytes, more: bytes) -> None:
    """No timeout expires here: 32 MiB take a second, and the timeouts are 30 s and more."""
    with connect(scripted) as sock, pytest.raises(ConnectionError):
        sock.sendall(begin)
        for _ in range(512):
            sock.sendall(more)


@pytest.mark.parametrize("sent", [b"", b'{"messages": [', b"5\r\n"])
def test_a_body_that_does_not_come_in_time_is_a_408(hasty: RunningServer, sent: bytes) -> None:
    answer = exchange(hasty, POST + b"content-length: 99\r\n\r\n" + sent)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"must come within 1 seconds (GENAI_BODY_TIMEOUT)" in answer
    assert f"{len(sent)} bytes had come".encode() in answer


def test_client_that_reads_nothing_is_cut_off_and_cancelled(hasty: RunningServer) -> None:
    content = json.dumps(body("count 9999", stream=True, logprobs=True, top_logprobs=20)).encode()
    head = POST.replace(b"/v1/chat", b"/v1/chat/completions") + b"content-length: %d\r\n\r\n" % len(content)
    with connect(hasty, receive_buffer=4096) as sock:
        sock.sendall(head + content)
        assert sock.recv(12) == b"HTTP/1.1 200"  # it reads nothing more
        assert hasty.chat("say x").json()["content"] == "x"
        wait_until(lambda: "disconnected a client that read nothing for 1 s" in hasty.log(), 40)
        wait_until(lambda: hasty.idle("scripted"))
        assert b"[DONE]" not in read_to_end(sock)


def test_a_websocket_that_reads_nothing_is_cut_off_too(hasty: RunningServer) -> None:
    said = "disconnected a client that read nothing for 1 s"
    before = hasty.log().count(said)
    wanted = {"input": "count 9999", "include": ["message.output_text.logprobs"], "top_logprobs": 20}
    url = f"ws{hasty.url.removeprefix('http')}/v1/responses"
    with (
        connect(hasty, receive_buffer=4096) as sock,
        connect_websocket(url, sock=sock, max_queue=1, close_timeout=0.1) as connection,
    ):
        connection.send(json.dumps({"type": "response.create", "model": "demo", **wanted}))
        wait_until(lambda: hasty.log().count(said) > before, 40)
        wait_until(lambda: "path=/v1/responses" in hasty.log() and hasty.idle("scripted"))


@contextmanager
def websocket(server: RunningServer) -> Iterator[Connection]:
    with connect_websocket(f"ws{server.url.removeprefix('http')}/v1/responses") as connection:
        yield connection


def _frames(*frames: Frame) -> bytes:
    return b"".join(frame.serialize(mask=True, extensions=[]) for frame in frames)


BEGUN = _frames(Frame(Opcode.TEXT, b"x", fin=False))


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        *((begun, 1008, "within 1 seconds (GENAI_BODY_TIMEOUT)") for begun in (BEGUN, BEGUN[:5], BEGUN[:1])),
        (_frames(Frame(Opcode.TEXT, b"\xff")), 1007, "message must be UTF-8"),
        (_frames(Frame(Opcode.TEXT, b"\xc3", fin=False), Frame(Opcode.CONT, b"x")), 1007, "message must be UTF-8"),
    ],
)
def test_websocket_closes_on_slow_and_invalid_messages(
    hasty: RunningServer, sent: bytes, code: int, reason: str
) -> None:
    with websocket(hasty) as connection:
        connection.socket.sendall(sent)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=90)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, reason in closed.value.rcvd.reason) == (code, True)
    assert "Traceback" not in hasty.log()


def test_websocket_may_be_idle_between_messages(hasty: RunningServer) -> None:
    with websocket(hasty) as connection:
        for pause in (0.0, 1.3):
            time.sleep(pause)
            connection.send(["", "{", "}"])  # fragmented
            assert '"param":"type"' in connection.recv(timeout=90)


MIB = 1024 * 1024


async def much(scope: Scope, receive: Receive, send: Send) -> None:
    """256 MiB, in small pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(256 * 1024):
        await send({"type": "http.response.body", "body": b"x" * 1024, "more_body": True})
    await send({"type": "http.response.body"})


class Watched(GuardedProtocol):
    """A connection that a test inspects."""

    def __init__(self, *args: Any, opened: list["Watched"], **options: Any) -> None:
        super().__init__(*args, **options)
        self._opened = opened

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened.append(self)


@contextmanager
def served(opened: list[Watched]) -> Iterator[int]:
    """Serve `much` by uvicorn in a thread of this process; yields the port."""
    protocol = cast(type[asyncio.Protocol], partial(Watched, opened=opened, stall_timeout=2))
    server = uvicorn.Server(uvicorn.Config(much, http=protocol, ws="none", lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(90)
        assert not thread.is_alive()


def test_unread_response_buffers_at_most_64_kib() -> None:
    opened: list[Watched] = []
    with served(opened) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: bool(opened) and opened[0].flow.write_paused)
        (connection,) = opened
        waiting = connection.transport.get_write_buffer_size()
        assert 64 * 1024 < waiting < 64 * 1024 + 2048
        wait_until(connection.transport.is_closing)
        assert len(read_to_end(sock)) < 64 * MIB  # the system's buffers


class Timers:
    """In place of an event loop: runs what is due only when the test says so."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> "Timers":
        self._waiting.append((callback, arguments))
        return self

    def cancel(self) -> None:
        self._waiting.pop()

    def run_due(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback, arguments in waiting:
            callback(*arguments)


class FullBuffer:
    """In place of a transport whose buffer has as many bytes whenever one looks."""

    is_aborted = False

    def get_write_buffer_size(self) -> int:
        return 70_000

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_has_read_since_its_buffer_was_full_stays_connected(reads: bool) -> None:
    loop, buffer = Timers(), FullBuffer()
    guard = StallGuard(stall_timeout=2)
    guard.loop, guard.transport = cast(asyncio.AbstractEventLoop, loop), cast(asyncio.Transport, buffer)
    guard.pause_writing()
    if reads:
        guard.resume_writing()
    loop.run_due()
    assert buffer.is_aborted is not reads


def _with_certificate(folder: Path, **settings: str) -> dict[str, str]:
    """Settings of a scripted server with a new certificate, which is cert.pem in the folder."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return {"GENAI_DEVICE": "scripted", "GENAI_TLS_CERT": str(cert), "GENAI_TLS_KEY": str(key), **settings}


def test_https_is_served_with_a_certificate(tmp_path: Path) -> None:
    settings, cert = _with_certificate(tmp_path), tmp_path / "cert.pem"
    with run_server(tmp_path, settings=settings, ready=False) as server:
        wait_until(lambda: "listening on https://" in server.log())
        url = server.url.replace("http:", "https:")
        with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(cert)), timeout=90) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            assert client.post("/v1/chat", json=body("say x")).json()["content"] == "x"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/healthz", timeout=90)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_unfinished_tls_handshakes_and_heads_are_closed(tmp_path: Path, workers: str) -> None:
    """asyncio's own limit of a handshake, 60 s, is longer than this test reads."""
    settings = _with_certificate(tmp_path, GENAI_IDLE_TIMEOUT="4", WORKERS=workers)
    with run_server(tmp_path, settings=settings, ready=False) as server:
        wait_until(lambda: server.log().count("Application startup complete") == int(workers))
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with (
            connect(server) as silent,
            connect(server) as greeting,
            connect(server) as sock,
            trusting.wrap_socket(sock, server_hostname="127.0.0.1") as encrypted,
        ):
            greeting.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of a ClientHello
            encrypted.sendall(b"GET /healthz HT")
            assert [read_to_end(each) for each in (silent, greeting, encrypted)] == [b""] * 3


def test_client_of_a_trusted_proxy_is_logged(tmp_path: Path) -> None:
    settings = {"GENAI_DEVICE": "scripted", "GENAI_LOG_LEVEL": "debug", "GENAI_FORWARDED_ALLOW_IPS": "127.0.0.1"}
    with run_server(tmp_path, settings=settings) as server:
        forwarded = {"x-forwarded-for": "203.0.113.9"}
        for number, (proxy, client) in enumerate((("127.0.0.1", "203.0.113.9"), ("127.0.0.2", "127.0.0.2"))):
            transport = httpx.HTTPTransport(local_address=proxy)
            with httpx.Client(base_url=server.url, transport=transport, headers=forwarded, timeout=90) as asking:
                assert asking.get("/v1/models").status_code == 200
                wait_until(lambda: server.log().count("path=/v1/models status=200") > number)  # noqa: B023
                line = [line for line in server.log().splitlines() if "path=/v1/models" in line][-1]
                assert f" client={client}" in line
                # Whichever host it names, it does not come from a local program.
                assert asking.get("/v1/admin/runtime_options").status_code == 403


BOTH_KEYS = {"GENAI_API_KEYS": f"bob:{'b' * 16}", "GENAI_ADMIN_API_KEY": "b" * 16}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"GENAI_TLS_CERT": "nowhere.pem"}, "GENAI_TLS_CERT=nowhere.pem: cannot be used: no such file"),
        ({"GENAI_TLS_KEY": "nowhere.pem"}, "GENAI_TLS_KEY=nowhere.pem: GENAI_TLS_CERT must name its certificate"),
        ({"GENAI_TLS_CERT": "README.md"}, "GENAI_TLS_CERT=README.md: cannot be used"),
        ({"HOST": "0.0.0.0"}, "HOST=0.0.0.0: others can reach the server, and there are no API keys"),
        ({"GENAI_API_KEYS": "short"}, "GENAI_API_KEYS: key key-1 must have at least 16 characters"),
        ({"GENAI_ADMIN_API_KEY": "k"}, "GENAI_ADMIN_API_KEY must have at least 16 characters, all of them visible"),
        (BOTH_KEYS, "it must differ from all API keys, but is the key of bob"),
        ({"GENAI_CORS_ORIGINS": "app.example"}, '"app.example" is not an origin'),
        ({"GENAI_FORWARDED_ALLOW_IPS": "proxy"}, '"proxy" is not an address or a network, such as 10.0.0.0/8'),
    ],
)
def test_invalid_network_settings_end_the_start(
    refused_start: Callable[..., str], settings: dict[str, str], says: str
) -> None:
    assert says in refused_start(GENAI_DEVICE="scripted", **settings)
