"""A request for which a device's queue is known to be full is refused before anything is prepared for it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from genai_server.engine_client.client import EngineClient
from genai_server.messages.protocol import Capacity, Load
from genai_server.text.codec import TextCodec
from tests.running_server import body
from tests.server_here import run_here

_FULL = Load(running=1, waiting=1, present={"": 2}, retry_after=7, capacity=Capacity(1, 1))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server in this process."""
    with run_here(tmp_path_factory.mktemp("here"), "--device", "scripted") as server:
        yield server.client


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
    assert "2 requests are on device scripted already" in response.text
    assert encoded == []
