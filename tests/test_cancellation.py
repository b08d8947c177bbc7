"""Who leaves frees the place, in whatever phase the request is, streamed or not, over real sockets.

How fast it is with a model that computes, scripts/measure_cancellation.py tells.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.api.admin.test_requests import ENDLESS, listed
from tests.running_server import RunningServer, body, wait_until
from tests.server_here import run_here


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two requests run at once; a long prompt beside a slow answer is read for a minute."""
    options = ("--device", "scripted", "--max-batch-size", "2", "--prefill-chunk", "2", "--max-length", "4000")
    with run_here(tmp_path_factory.mktemp("cancellation"), *options) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("phase", "beside"), [("queued", 2), ("prefill", 1), ("decode", 0)])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_client_that_leaves_frees_its_place(
    server: RunningServer, path: str, phase: str, beside: int, stream: bool
) -> None:
    padding = " " * 3000 if phase == "prefill" else ""
    fields = {"stream": stream} | ({"max_tokens": 900} if path == "/v1/messages" else {})
    request = {"model": "onnx-genai", **body(padding + ENDLESS, **fields)}
    if path == "/v1/responses":
        request["input"] = request.pop("messages")
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    with closing(connection), ExitStack() as stack:
        others = [stack.enter_context(server.stream("delay 0.05; count 1000")) for _ in range(beside)]
        for events in others:
            next(iter(events))
        headers = {"content-type": "application/json", "x-request-id": "leaver"}
        connection.request("POST", path, json.dumps(request), headers)
        wait_until(lambda: listed(server).get("leaver", {}).get("phase") == phase)
        connection.close()
        wait_until(lambda: "leaver" not in listed(server))
        assert len(listed(server)) == beside
        state = server.device("scripted")
        assert (state["running"], state["waiting"]) == (min(2, beside), 0)
    wait_until(lambda: server.idle("scripted"))


def test_a_client_that_leaves_before_its_request_is_taken_frees_its_place(server: RunningServer) -> None:
    # While the engine is in one long pass it takes nothing, and the API process waits for its word.
    with server.stream("delay 0.01; hold 2 at 3; count 9") as events:
        for _ in zip(range(2), events, strict=False):
            pass
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        headers = {"content-type": "application/json", "x-request-id": "leaver"}
        connection.request("POST", "/v1/chat", json.dumps(body(ENDLESS)), headers)
        connection.close()
        assert json.loads(list(events)[-1])["done"] is True
    wait_until(lambda: server.idle("scripted"))
    assert listed(server) == {}
