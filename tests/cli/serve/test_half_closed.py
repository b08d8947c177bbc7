"""Clients that shut down their sending side and wait for the answer, and clients that disconnect, over real sockets."""

import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.apis.admin.test_requests import ENDLESS, listed
from tests.raw_http import RawAnswer, answers, connect, read_to_end
from tests.running_server import RunningServer, body, run_server, wait_until
from tests.server_here import module_server

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


server = module_server("--device", "scripted", "--max-length", "4000")


def request(path: str, content: str, *, name: str = "half", version: str = "1.1", stream: bool = False) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body(content, **({"stream": True} if stream else {}))).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\nx-request-id: {name}\r\ncontent-length: {len(data)}\r\n"
    return f"{head}content-type: application/json\r\n\r\n".encode() + data


def half_closed(server: RunningServer, sent: bytes) -> socket.socket:
    sock = connect(server)
    sock.sendall(sent)
    sock.shutdown(socket.SHUT_WR)
    return sock


def final(data: bytes) -> list[RawAnswer]:
    """The final answers, without interim ones."""
    return answers(data.replace(INTERIM, b""))


def contents(data: bytes) -> list[str]:
    """The contents of the final answers."""
    return [json.loads(answer.body)["content"] for answer in final(data)]


def test_half_closed_requests_get_their_answers(server: RunningServer) -> None:
    with half_closed(server, request("/v1/chat", "delay 0.05; count 5")) as sock:
        data = read_to_end(sock)
    assert (data.startswith(INTERIM), contents(data)) == (True, ["1, 2, 3, 4, 5"])
    assert final(data)[0].headers["connection"] == ["close"]
    sent = b"".join(request("/v1/chat", f"delay 0.05; count {number}") for number in (2, 3, 4))
    with half_closed(server, sent) as sock:
        assert contents(read_to_end(sock)) == ["1, 2", "1, 2, 3", "1, 2, 3, 4"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_half_closed_stream_is_complete(server: RunningServer, is_begun: bool) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=90)
    with closing(connection):
        sent = json.dumps(body("delay 0.05; count 9", stream=True))
        connection.request("POST", "/v1/chat/completions", sent, {"content-type": "application/json"})
        if not is_begun:
            connection.sock.shutdown(socket.SHUT_WR)
        response = connection.getresponse()
        data = response.readline()
        if is_begun:
            connection.sock.shutdown(socket.SHUT_WR)
        data += response.read()
    chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert data.rstrip().endswith(b"data: [DONE]")


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/ch", request("/v1/chat", "say x")[:-5], b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"]
)
def test_an_incomplete_request_ends_with_its_half_close(server: RunningServer, sent: bytes) -> None:
    with half_closed(server, sent) as sock:
        assert read_to_end(sock) == b""


def test_a_refusal_reaches_a_half_closed_client(server: RunningServer) -> None:
    with half_closed(server, b"nonsense\r\n\r\n") as sock:
        assert [answer.status for answer in final(read_to_end(sock))] == [400]
    with half_closed(server, request("/v1/chat", "delay 0.05; count 3") + b"nonsense\r\n\r\n") as sock:
        assert [answer.status for answer in final(read_to_end(sock))] == [200, 400]


def test_an_idle_connection_ends_with_its_half_close(server: RunningServer) -> None:
    with connect(server) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while not sock.recv(65536).endswith(b"}"):
            pass
        sock.shutdown(socket.SHUT_WR)
        assert read_to_end(sock) == b""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", [ENDLESS, " " * 3000 + "delay 0.2; count 1000"], ids=["decode", "prefill"])
def test_half_closed_client_that_disconnects_frees_its_slot(server: RunningServer, stream: bool, content: str) -> None:
    sock = half_closed(server, request("/v1/chat/completions", content, name="leaver", stream=stream))
    wait_until(lambda: "leaver" in listed(server))
    # Unread bytes: the system answers the close with a reset, and all later bytes, too.
    sock.close()
    wait_until(lambda: "leaver" not in listed(server))


def test_an_http_1_0_client_that_half_closes_has_left(server: RunningServer) -> None:
    with half_closed(server, request("/v1/chat", ENDLESS, version="1.0")) as sock:
        assert read_to_end(sock) == b""
    wait_until(lambda: server.idle("scripted"))


def test_half_closed_and_disconnected_clients_are_distinguished(server: RunningServer) -> None:
    leavers, waiters = range(6), range(6)
    for number in leavers:
        sock = connect(server)
        sock.sendall(request("/v1/chat/completions", ENDLESS, name=f"leaver-{number}", stream=number % 2 == 0))
        wait_until(lambda name=f"leaver-{number}": name in listed(server))  # type: ignore[misc]
        sock.close()

    def waits(number: int) -> str:
        with half_closed(server, request("/v1/chat", f"delay 0.02; count {number + 1}")) as sock:
            return contents(read_to_end(sock))[0]

    with ThreadPoolExecutor(3) as pool:
        for number, text in enumerate(pool.map(waits, waiters)):
            assert text.rpartition(" ")[2] == str(number + 1)
    wait_until(lambda: server.idle("scripted"))
    assert listed(server) == {}


@pytest.mark.slow
def test_half_close_without_uvloop_is_no_disconnect(tmp_path: Path) -> None:
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['uvloop'] = None\n", encoding="utf-8")
    with run_server(tmp_path, "--device", "scripted", settings={"PYTHONPATH": str(folder)}) as server:
        with half_closed(server, request("/v1/chat", "delay 0.05; count 5")) as sock:
            assert contents(read_to_end(sock)) == ["1, 2, 3, 4, 5"]
        with connect(server) as sock:
            sock.sendall(request("/v1/chat", ENDLESS))
            wait_until(lambda: not server.idle("scripted"))
        wait_until(lambda: server.idle("scripted"))
