"""The engine's end of the connections, over a real socket."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest

from genai_server.engine.api_connections import (
    MAX_BACKLOG_BYTES,
    Connected,
    Connections,
    Disconnected,
    Inbox,
    Listener,
    listen,
)
from genai_server.messages.admin import CancelRequest
from genai_server.messages.engine_protocol import (
    Cancel,
    Hello,
    Stop,
    Submit,
    ToApi,
    ToEngine,
    Tokens,
    Welcome,
    api_decoder,
)
from genai_server.messages.frames import encode_frame
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling
from tests.running_server import wait_until

MODEL = ModelInfo(context_length=8, vocab_size=4, eos_token_ids=[3], defaults=Sampling())


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Listener:
    return listen(str(tmp_path / "engine.sock") if request.param == "unix" else "")


@pytest.fixture
def inbox() -> Inbox:
    return SimpleQueue()


@pytest.fixture
def connections(listener: Listener, inbox: Inbox) -> Connections:
    connections = Connections(listener, "secret", MODEL)
    connections.start(inbox)
    return connections


@pytest.fixture
def api(connections: Connections, listener: Listener) -> Iterator[socket.socket]:
    with connect(listener.address) as sock:
        yield sock


@pytest.fixture
def number(api: socket.socket, inbox: Inbox) -> int:
    """The number of the connection of an API process that was welcomed."""
    api.sendall(encode_frame([Hello("secret")]))
    receive(api, 1)
    return inbox.get(timeout=90)[0]


def connect(address: str) -> socket.socket:
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
    else:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.settimeout(90)
    return sock


def receive(sock: socket.socket, number: int) -> list[ToApi]:
    decoder = api_decoder()
    found: list[ToApi] = []
    while len(found) < number:
        data = sock.recv(1 << 16)
        assert data, "the engine hung up"
        found += decoder.feed(data)
    return found


def test_peer_with_the_secret_is_welcomed_and_heard(connections: Connections, api: socket.socket, inbox: Inbox) -> None:
    api.sendall(encode_frame([Hello("secret"), Cancel(5)]))
    (welcome,) = receive(api, 1)
    assert isinstance(welcome, Welcome)
    assert welcome.model == MODEL
    number, connected = inbox.get(timeout=90)
    assert connected == Connected()
    assert inbox.get(timeout=90) == (number, Cancel(5))
    connections.send(number, [Tokens(1, [2, 3])])
    assert receive(api, 1) == [Tokens(1, [2, 3])]


def test_urgent_messages_are_handled_before_the_inbox(listener: Listener, inbox: Inbox) -> None:
    handled: list[tuple[int, ToEngine]] = []
    connections = Connections(listener, "secret", MODEL)
    connections.start(inbox, lambda number, message: handled.append((number, message)))
    urgent = [Submit(1, GenerationRequest("r", [1], 1, 2)), Cancel(1), CancelRequest(2, "r")]
    with connect(listener.address) as api:
        api.sendall(encode_frame([Hello("secret"), *urgent, Stop(3)]))
        received = [inbox.get(timeout=90) for _ in range(5)]
    number = received[0][0]
    assert [message for _, message in received] == [Connected(), *urgent, Stop(3)]
    assert handled == [(number, message) for message in urgent]


STRANGERS = [
    encode_frame([Hello("guess")]),
    encode_frame([Hello("é")]),
    encode_frame([Cancel(1)]),
    b"GET / HTTP/1.1\r\n\r\n",
    (200).to_bytes(4, "big") + b"\x91" * 200,
    (2000).to_bytes(4, "big"),
]


@pytest.mark.parametrize("first", STRANGERS)
def test_peer_without_the_secret_is_disconnected(
    connections: Connections, listener: Listener, api: socket.socket, first: bytes, inbox: Inbox
) -> None:
    api.sendall(first)
    with contextlib.suppress(ConnectionResetError):
        assert api.recv(100) == b""
    # The thread that closed the connection then serves a valid peer.
    with connect(listener.address) as other:
        other.sendall(encode_frame([Hello("secret")]))
        receive(other, 1)
    messages = [inbox.get(timeout=90)[1] for _ in range(2)]
    assert messages == [Connected(), Disconnected()]


def test_disconnected_api_process_is_reported_to_the_loop(
    connections: Connections, api: socket.socket, inbox: Inbox, number: int
) -> None:
    api.close()
    assert inbox.get(timeout=90) == (number, Disconnected())
    connections.send(number, [Tokens(1, [2])])  # dropped without an error


def test_a_slow_reader_gets_everything_in_order(connections: Connections, api: socket.socket, number: int) -> None:
    sent: list[ToApi] = [Tokens(key, [key] * 2000) for key in range(1000)]
    for message in sent:
        connections.send(number, [message])
    assert receive(api, len(sent)) == sent


def test_peer_that_reads_nothing_is_disconnected(connections: Connections, inbox: Inbox, number: int) -> None:
    frame: list[ToApi] = [Tokens(0, [2**31] * 200_000)]
    for _ in range(2 + 2 * MAX_BACKLOG_BYTES // len(encode_frame(frame))):
        connections.send(number, frame)
    assert inbox.get(timeout=90) == (number, Disconnected())


def test_a_broken_frame_ends_only_its_connection(
    connections: Connections, listener: Listener, api: socket.socket, inbox: Inbox
) -> None:
    api.sendall(encode_frame([Hello("secret")]))
    receive(api, 1)
    with connect(listener.address) as other:
        other.sendall(encode_frame([Hello("secret")]) + msgspec.msgpack.encode({"type": "nonsense"}))
        receive(other, 1)
        wait_until(lambda: inbox.qsize() >= 2)
    api.sendall(encode_frame([Cancel(9)]))
    wait_until(lambda: inbox.qsize() >= 4)
    messages = [inbox.get()[1] for _ in range(4)]
    assert Cancel(9) in messages
