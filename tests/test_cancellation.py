"""A disconnected client's request is cancelled in every phase, streamed or not, over real sockets."""

import http.client
import json
from contextlib import ExitStack, closing

import pytest

from tests.apis.admin.test_requests import ENDLESS, listed
from tests.running_server import RunningServer, body, wait_until
from tests.server_here import module_server

# Two requests run at once; a long prompt next to a slow answer takes a minute.
_SLOW = ("--max-batch-size", "2", "--prefill-chunk", "2", "--max-length", "4000")
server = module_server("--device", "scripted", *_SLOW)
HEADERS = {"content-type": "application/json", "x-request-id": "leaver"}


@pytest.mark.parametrize(
    ("path", "phase", "num_others", "stream"),
    [
        ("/v1/chat/completions", "queued", 2, True),
        ("/v1/chat/completions", "prefill", 1, False),
        ("/v1/chat/completions", "decode", 0, True),
        ("/v1/responses", "queued", 2, False),
        ("/v1/responses", "decode", 0, True),
        ("/v1/messages", "prefill", 1, True),
        ("/v1/messages", "decode", 0, False),
    ],
)
def test_disconnected_client_frees_its_place(
    server: RunningServer, path: str, phase: str, num_others: int, stream: bool
) -> None:
    padding = " " * 3000 if phase == "prefill" else ""
    fields = {"stream": stream} | ({"max_tokens": 900} if path == "/v1/messages" else {})
    request = {"model": "demo", **body(padding + ENDLESS, **fields)}
    if path == "/v1/responses":
        request["input"] = request.pop("messages")
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection, ExitStack() as stack:
        for _ in range(num_others):
            stack.enter_context(server.begun("delay 0.05; count 1000"))
        connection.request("POST", path, json.dumps(request), HEADERS)
        wait_until(lambda: listed(server).get("leaver", {}).get("phase") == phase)
        connection.close()
        wait_until(lambda: "leaver" not in listed(server))
        assert len(listed(server)) == num_others
        state = server.device("scripted")
        assert (state["running"], state["waiting"]) == (min(2, num_others), 0)
    wait_until(lambda: server.idle("scripted"))


def test_client_gone_before_acceptance_frees_its_place(server: RunningServer) -> None:
    # During a long pass the engine accepts nothing, and the API process waits for its reply.
    with server.stream("delay 0.01; hold 2 at 3; count 9") as events:
        for _ in zip(range(2), events, strict=False):
            pass
        with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
            connection.request("POST", "/v1/chat", json.dumps(body(ENDLESS)), HEADERS)
        assert json.loads(list(events)[-1])["done"] is True
    wait_until(lambda: server.idle("scripted"))
    assert listed(server) == {}
