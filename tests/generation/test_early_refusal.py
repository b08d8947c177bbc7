"""A request for which a device's queue is known to be full is refused before anything is prepared for it."""

from typing import Any

import httpx
import pytest

from genai_server.engine_client.client import EngineClient
from genai_server.messages.engine_protocol import Capacity, Load
from genai_server.text.codec import TextCodec
from tests.running_server import RunningServer, body

_FULL = Load(running=1, waiting=1, present={"": 2}, retry_after=7, capacity=Capacity(1, 1))


@pytest.fixture
def client(own_scripted: RunningServer) -> httpx.Client:
    return own_scripted.client


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the methods that have encoded a prompt."""
    names: list[str] = []
    for name in ("encode_chat", "encode_text"):
        method = getattr(TextCodec, name)

        def noted(codec: TextCodec, *given: Any, _name: str = name, _method: Any = method, **named: Any) -> Any:
            names.append(_name)
            return _method(codec, *given, **named)

        monkeypatch.setattr(TextCodec, name, noted)
    return names


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", body("say hi")),
        ("/v1/chat/completions", body("say hi", stream=True)),
        ("/v1/completions", {"prompt": "say hi"}),
        ("/v1/responses", {"input": "say hi"}),
        ("/v1/messages", body("say hi", max_tokens=9)),
        ("/api/chat", body("say hi")),
    ],
)
def test_a_full_queue_refuses_before_the_prompt_is_encoded(
    client: httpx.Client, encoded: list[str], monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    assert client.post(path, json=fields).status_code == 200
    assert encoded
    encoded.clear()
    monkeypatch.setattr(EngineClient, "load", property(lambda self: _FULL, lambda self, load: None), raising=False)
    response = client.post(path, json=fields)
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    assert "2 requests are on device scripted:0 already" in response.text
    assert encoded == []
