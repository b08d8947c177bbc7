"""The relay that records requests of programs changes nothing that it passes on."""

import httpx
from _clients.relay import relay

from tests.running_server import RunningServer


def test_requests_are_recorded_and_answered_as_without_it(scripted: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "say hi"}], "stream": True}
    path = "/v1/chat/completions"
    with relay(scripted.url) as through, httpx.Client(base_url=through.url, timeout=90) as client:
        pieces = [line for line in client.post(path, json=body).text.splitlines() if line.startswith("data: ")]
        chunked = client.post(
            path, content=iter([b'{"messages": ', b"5}"]), headers={"content-type": "application/json"}
        )
        head = client.head("/healthz")
    assert pieces[-1] == "data: [DONE]"
    assert (chunked.status_code, chunked.json()["error"]["param"]) == (400, "messages")
    assert [(one.method, one.path, one.status) for one in through.requests] == [
        ("POST", path, 200),
        ("POST", path, 400),
        ("HEAD", "/healthz", head.status_code),
    ]
    assert through.asked("say hi") == [(path, body)]
    assert "messages must be a list" in through.refused()
