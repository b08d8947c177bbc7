"""HEAD is allowed wherever GET is, over real sockets."""

from pathlib import Path

import pytest

from tests.raw_http import RawAnswer, asked, connect, read_to_end
from tests.running_server import RunningServer, run_server, wait_until

CHANGING = ("date", "x-request-id", "content-length", "server-timing")
PATHS = ["/", "/healthz", "/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/v1/models", "/models"]
PATHS += ["/v1/models/demo", "/v1/requests", "/v1/admin/runtime_options", "/v1/admin/profiles"]
MISSING = ["/nowhere", "/v1/models/none", "/v1/responses/resp_0", "/v1/admin/profiles/none"]


def ask(server: RunningServer, method: str, path: str, version: str = "1.1") -> RawAnswer:
    return asked(server, f"{method} {path} HTTP/{version}\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())


def headers(answer: RawAnswer) -> dict[str, list[str]]:
    """The headers that do not vary between responses."""
    return {name: value for name, value in answer.headers.items() if name not in CHANGING}


def head(server: RunningServer, path: str, version: str = "1.1") -> RawAnswer:
    """The response to HEAD, after which no byte may follow."""
    with connect(server) as sock:
        sock.sendall(f"HEAD {path} HTTP/{version}\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        lines, end, rest = read_to_end(sock).partition(b"\r\n\r\n")
    assert (end, rest) == (b"\r\n\r\n", b"")
    names = (line.partition(": ") for line in lines.decode().split("\r\n")[1:])
    return RawAnswer(int(lines.split()[1]), {name.lower(): [value] for name, _, value in names})


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", [*PATHS, *MISSING])
def test_head_has_status_and_headers_of_get_and_no_body(scripted: RunningServer, path: str, version: str) -> None:
    got, found = ask(scripted, "GET", path, version), head(scripted, path, version)
    assert got.status == found.status == (404 if path in MISSING else 200)
    assert headers(found) == headers(got)
    assert int(found.headers["content-length"][0]) > 0
    if path in ("/", "/docs", "/openapi.json", "/v1/models", "/models"):
        assert found.headers["content-length"] == got.headers["content-length"]


def test_head_is_allowed_exactly_where_get_is(scripted: RunningServer) -> None:
    found = head(scripted, "/v1/chat")
    assert (found.status, found.headers["allow"]) == (405, ["POST"])
    assert ask(scripted, "PUT", "/v1/models").headers["allow"] == ["GET, HEAD"]
    paths = scripted.client.get("/openapi.json").json()["paths"]  # which do not mention it
    assert not [path for path, operations in paths.items() if "head" in operations]


def test_a_connection_serves_on_after_head(scripted: RunningServer) -> None:
    with connect(scripted) as sock:
        sock.sendall(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2)
        sock.sendall(b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        data = read_to_end(sock)
    assert data.count(b"HTTP/1.1 200 OK") == 2
    assert data.count(b'{"error"') == 1


def test_operator_pages_refuse_head_like_get(scripted: RunningServer) -> None:
    sent = b"%b /v1/requests HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 10.0.0.1\r\nconnection: close\r\n\r\n"
    with connect(scripted) as sock:
        sock.sendall(sent % b"HEAD")
        assert read_to_end(sock).startswith(b"HTTP/1.1 403 ")
    assert asked(scripted, sent % b"GET").status == 403


def test_the_log_says_head_and_the_path(own_folder: Path) -> None:
    with run_server(own_folder, settings={"GENAI_DEVICE": "scripted", "GENAI_LOG_LEVEL": "debug"}) as server:
        head(server, "/v1/models")
        wait_until(lambda: "method=HEAD path=/v1/models status=200" in server.log())
