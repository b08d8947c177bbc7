"""The ingress before deployments that only pretend to be."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from genai_server.cli.deploy.forwarded import ForwardedRequest, ReplicaAnswer
from genai_server.config import Settings, load_settings
from genai_server.errors import ModelNotFound

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray Serve is not installed (extra ray)")

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
OK = [START, {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}]
END = {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}


class _Response:
    def __init__(self, steps: list[Any]) -> None:
        self._steps = steps

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            yield [step]

    def cancel(self) -> None:
        raise AssertionError("nobody has left")


class _Handle:
    """A deployment's handle. Each call gets the next of the scripts: messages, and errors to raise."""

    def __init__(self, *scripts: list[Any], answers: list[ReplicaAnswer] | None = None) -> None:
        self.scripts = list(scripts)
        self.answers = answers or []
        self.asked: list[ForwardedRequest] = []

    def options(self, **_: Any) -> "_Handle":
        return self

    def remote(self, *positional: ForwardedRequest, request: ForwardedRequest | None = None) -> _Response:
        (asked,) = [*positional, *([request] if request else [])]
        assert bool(positional) == bool(asked.prompt)
        self.asked.append(asked)
        return _Response(self.scripts.pop(0))

    def broadcast(self, method: str, request: ForwardedRequest, named: str | None) -> "_Handle":
        assert method == "answer"
        self.asked.append(request)
        return self

    async def results_async(self, **_: Any) -> list[ReplicaAnswer]:
        return self.answers


def _call(handles: Mapping[str, _Handle], method: str, path: str, **fields: Any) -> httpx.Response:
    settings = Settings.model_validate(
        {"insecure": True, "models": ",".join(f"{name}=/srv/{name}" for name in handles), "max_body_bytes": 1000}
    )

    from genai_server.cli.deploy.ingress import Ingress  # takes seconds

    async def call() -> httpx.Response:
        ingress = Ingress(settings, handles)
        app: Any = ingress.__serve_build_asgi_app__()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.request(method, path, **fields)

    return asyncio.run(call())


def _death() -> Exception:
    from ray.exceptions import RayActorError

    death: Exception = RayActorError()
    return death


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_serves_full_queue_is_a_503_with_the_time_to_retry_after() -> None:
    from ray.serve.exceptions import BackPressureError

    for seconds, told in ((None, "1"), (3.0, "3")):
        handle = _Handle([BackPressureError(5, 5, 503, seconds)])
        answer = _call({"m": handle}, "POST", "/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, told)
        assert answer.json()["error"]["code"] == "queue_full"


def test_a_request_whose_replica_dies_at_once_is_sent_again_once() -> None:
    answer = _call({"m": _Handle([_death()], [*OK, END])}, "POST", "/v1/chat/completions", json=CHAT)
    assert answer.text == "data: 1\n\ndata: [DONE]\n\n"
    answer = _call({"m": _Handle([_death()], [_death()])}, "POST", "/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_died")


@pytest.mark.parametrize(
    ("path", "begins"),
    [("/v1/chat/completions", 'data: {"error"'), ("/v1/messages", 'event: error\ndata: {"type": "error"')],
)
def test_a_stream_whose_replica_dies_ends_with_an_event_of_its_api(path: str, begins: str) -> None:
    answer = _call({"m": _Handle([*OK, _death()])}, "POST", path, json=CHAT)
    first, last = answer.text.rstrip("\n").split("\n\n")
    assert first == "data: 1"
    assert last.startswith(begins)


def test_an_unexpected_error_before_the_response_is_a_500_in_the_apis_form() -> None:
    answer = _call({"m": _Handle([ValueError("secret")])}, "POST", "/v1/messages", json=CHAT)
    assert (answer.status_code, answer.json()["type"]) == (500, "error")
    assert "secret" not in answer.text


def test_the_body_names_the_deployment() -> None:
    small, big = _Handle(), _Handle([*OK, END])
    _call({"small": small, "big": big}, "POST", "/v1/chat/completions", json=CHAT | {"model": "big"})
    assert (len(small.asked), big.asked[0].prompt) == (0, "hi")
    answer = _call({"small": small, "big": big}, "POST", "/v1/chat/completions", json=CHAT | {"model": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_body_over_the_limit_goes_to_no_replica() -> None:
    handle = _Handle()
    assert _call({"m": handle}, "POST", "/v1/chat/completions", content=b"x" * 2000).status_code == 400
    assert handle.asked == []


def test_health_is_that_of_a_replica_that_takes_work() -> None:
    json = [(b"content-type", b"application/json")]
    answers = [ReplicaAnswer("a", "m", 503, json, b"{}"), ReplicaAnswer("b", "m", 200, json, b"{}")]
    handle = _Handle(answers=answers)
    assert _call({"m": handle}, "GET", "/health", headers={"authorization": "Bearer x"}).status_code == 200
    assert handle.asked[0].headers == []
    assert _call({"m": _Handle(answers=answers[:1])}, "GET", "/health").status_code == 503
    assert _call({"m": _Handle()}, "GET", "/health").status_code == 503


def test_what_a_deployment_serves_is_not_changed_by_a_call() -> None:
    answer = _call({"m": _Handle()}, "POST", "/v1/admin/models/load", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_endpoint")


def test_a_request_chooses_a_deployment_by_all_names_of_a_model() -> None:
    from genai_server.cli.deploy.ingress import ModelNames

    settings = load_settings({"models": "small=/s,big=/b", "model_aliases": "gpt=big,s=small"}, environ={}, dotenv=None)
    names = ModelNames(settings)
    chosen = {id: names.choose(id) for id in (None, "small", "big", "gpt", "big:tax", "gpt:tax", "s", 7)}
    assert chosen == {
        None: "small",
        "small": "small",
        "big": "big",
        "gpt": "big",
        "big:tax": "big",
        "gpt:tax": "big",
        "s": "small",
        7: "small",
    }
    with pytest.raises(ModelNotFound, match='"x" is not served; "small", "big" are'):
        names.choose("x")
    every = settings.model_copy(update={"model_aliases": "*=big"})
    assert ModelNames(every).choose("x") == "big"
