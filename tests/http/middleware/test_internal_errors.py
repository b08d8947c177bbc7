"""Unexpected exceptions: the response over a real socket, and the log."""

import logging
from collections.abc import Iterator

import pytest

from genai_server.apis.models import routes as models
from genai_server.http.error_responses import FOR_BROWSERS
from tests.raw_http import answers, connect, read_to_end
from tests.running_server import RunningServer
from tests.server_here import run_here

NEXT = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_here(tmp_path_factory.mktemp("here"), "--device", "scripted") as server:
        yield server


@pytest.fixture
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("swordfish")

    monkeypatch.setattr(models, "model_entry", broken)


@pytest.mark.usefixtures("_broken")
def test_internal_error_is_a_500_and_the_connection_continues(server: RunningServer) -> None:
    with connect(server) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n\r\n" + NEXT)
        error, health = answers(read_to_end(sock))
    assert (error.status, health.status) == (500, 200)
    assert b"swordfish" not in error.body
    assert {"x-request-id": ["mine"], **{name: [value] for name, value in FOR_BROWSERS.items()}}.items() <= (
        error.headers.items()
    )


@pytest.mark.usefixtures("_broken")
def test_an_internal_error_is_logged_once_with_its_place(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    response = server.client.get("/v1/models")
    assert response.json()["error"]["code"] == "server_error"
    logged = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert [entry.getMessage() for entry in logged] == [
        f"request {response.headers['x-request-id']} met an internal error"
    ]
    assert logged[0].exc_info is not None
