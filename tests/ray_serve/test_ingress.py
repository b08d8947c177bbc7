"""The ingress with simulated deployments."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from genai_server.config.settings import Settings
from genai_server.model_files.pooling_model import Task
from genai_server.ray_serve.forwarded import REPLICA_HEADER, ReplicaAnswer
from genai_server.ray_serve.model_choice import ModelNames
from tests.ray_serve.handles import Handle

pytestmark = pytest.mark.usefixtures("ray_serve")

JSON = [(b"content-type", b"application/json")]
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
OK = [START, {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}]
END = {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}
# The tasks of models by name; others generate text.
TASKS = {"embedder": Task.EMBED, "ranker": Task.RERANK, "hearing": Task.TRANSCRIBE, "other": Task.TRANSCRIBE}


def _call(handles: Mapping[str, Handle], method: str, path: str, **fields: Any) -> httpx.Response:
    settings = Settings.model_validate(
        {"insecure": True, "models": ",".join(f"{name}=/srv/{name}" for name in handles), "max_body_bytes": 1000}
    )

    from genai_server.ray_serve.ingress import Ingress  # takes seconds

    async def call() -> httpx.Response:
        ingress = Ingress(ModelNames(settings, {name: TASKS.get(name, Task.GENERATE) for name in handles}), handles)
        app: Any = ingress.__serve_build_asgi_app__()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.request(method, path, **fields)

    return asyncio.run(call())


def _death() -> Exception:
    from ray.exceptions import RayActorError

    death: Exception = RayActorError()
    return death


CHAT = {"messages": [{"role": "user", "content": "hi"}]}
HUNG = ReplicaAnswer("hung", "m", 0, [], b"")


def _well(body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> ReplicaAnswer:
    return ReplicaAnswer("well", "m", status, [*headers], body)


def _chat(handle: Handle, **fields: Any) -> httpx.Response:
    """The answer of the only deployment."""
    return _call({"m": handle}, "POST", "/v1/chat/completions", **({"json": CHAT} | fields))


def test_serves_full_queue_is_a_503_with_the_time_to_retry_after() -> None:
    from ray.serve.exceptions import BackPressureError

    for seconds, header in ((None, "1"), (3.0, "3")):
        handle = Handle([BackPressureError(5, 5, 503, seconds)])
        answer = _chat(handle)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, header)
        assert answer.json()["error"]["code"] == "queue_full"


def test_a_request_whose_replica_dies_at_once_is_sent_again_once() -> None:
    assert _chat(Handle([_death()], [*OK, END])).text == "data: 1\n\ndata: [DONE]\n\n"
    answer = _chat(Handle([_death()], [_death()]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_died")
    # After the end of a response, a death is no second end.
    assert _chat(Handle([*OK, END, _death()])).text == "data: 1\n\ndata: [DONE]\n\n"


MESSAGE = "the replica that answered this request has died"
ERROR = {"message": MESSAGE, "type": "server_error", "param": None, "code": "engine_died"}


@pytest.mark.parametrize(
    ("path", "kind", "sent", "name", "last"),
    [
        ("/v1/chat/completions", "text/event-stream", b"data: 1\n\n", "", {"error": ERROR}),
        ("/v1/completions", "text/event-stream; charset=utf-8", b": ping\n\n", "", {"error": ERROR}),
        ("/v1/chat/stream", "text/event-stream", b"data: 1\n\n", "", {"error": ERROR}),
        (
            "/v1/messages",
            "text/event-stream",
            b"event: ping\ndata: {}\n\n",
            "error",
            {
                "type": "error",
                "error": {"type": "api_error", "message": MESSAGE, "details": {"error_code": "engine_died"}},
                "request_id": "mine",
            },
        ),
        (
            "/v1/responses",
            "text/event-stream",
            b'event: x\ndata: {"type":"x","sequence_number":6}\n\n',
            "error",
            {"type": "error", "sequence_number": 7, "code": "engine_died", "message": MESSAGE, "param": None},
        ),
        ("/api/chat", "application/x-ndjson", b'{"done":false}\n', None, {"error": MESSAGE}),
        ("/api/generate", "application/x-ndjson", b'{"done":false}\n', None, {"error": MESSAGE}),
    ],
)
def test_stream_of_a_dead_replica_ends_like_that_of_an_engine(
    path: str, kind: str, sent: bytes, name: str | None, last: dict[str, Any]
) -> None:
    start = {**START, "headers": [(b"content-type", kind.encode())]}
    event = {"type": "http.response.body", "body": sent, "more_body": True}
    ping = {"type": "http.response.body", "body": b": ping\n\n", "more_body": True}
    handle = Handle([start, event, *([] if name is None else [ping]), _death()])
    answer = _call({"m": handle}, "POST", path, json=CHAT, headers={"x-request-id": "mine"})
    end = answer.text.removeprefix(sent.decode()).removeprefix(": ping\n\n")
    if name is None:
        line, rest = end.split("\n")
    else:
        line, rest = end.removeprefix(f"event: {name}\n" if name else "").removeprefix("data: ").split("\n\n")
        assert end.startswith(f"event: {name}\n" if name else "data: ")
    assert (json.loads(line), rest) == (last, "")


def test_unexpected_error_before_the_response_is_a_500() -> None:
    answer = _call({"m": Handle([ValueError("secret")])}, "POST", "/v1/messages", json=CHAT)
    assert (answer.status_code, answer.json()["type"]) == (500, "error")
    assert "secret" not in answer.text


def test_the_body_names_the_deployment() -> None:
    small, big = Handle(), Handle([*OK, END])
    _call({"small": small, "big": big}, "POST", "/v1/chat/completions", json=CHAT | {"model": "big"})
    assert (len(small.asked), big.asked[0].prompt) == (0, "hi")
    answer = _call({"small": small, "big": big}, "POST", "/v1/chat/completions", json=CHAT | {"model": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("field", [b'"user": "\\ud83d"', b'"temperature": NaN'])
def test_model_is_read_from_every_body_a_replica_accepts(field: bytes) -> None:
    small, big = Handle(), Handle([*OK, END])
    _call({"small": small, "big": big}, "POST", "/v1/chat/completions", content=b'{"model": "big", %b}' % field)
    assert (len(small.asked), len(big.asked)) == (0, 1)


@pytest.mark.parametrize(("fields", "chosen"), [({}, "hearing"), ({"model": "other"}, "other")])
def test_a_recording_goes_to_a_model_that_transcribes(fields: dict[str, str], chosen: str) -> None:
    """It may be larger than other bodies, and is no JSON."""
    handles = {name: Handle([*OK, END]) for name in ("chat", "hearing", "other")}
    recording = b"\xff" * 5000
    answer = _call(handles, "POST", "/v1/audio/transcriptions", files={"file": recording}, data=fields)
    assert answer.status_code == 200
    assert [name for name, handle in handles.items() if handle.asked] == [chosen]
    (asked,) = handles[chosen].asked
    assert recording in asked.body
    assert answer.request.headers["content-type"].encode() in dict(asked.parts["headers"]).values()


def test_a_model_that_does_not_transcribe_is_refused() -> None:
    handles = {name: Handle() for name in ("chat", "hearing")}
    fields = {"model": "chat"}
    answer = _call(handles, "POST", "/v1/audio/translations", files={"file": b"x"}, data=fields)
    assert answer.json()["error"]["message"] == 'model "chat" does not transcribe recordings; "hearing" can'


def test_models_are_listed_by_the_first_replica_to_answer() -> None:
    models = {
        id: Handle(
            answers=[
                ReplicaAnswer("hung", id, 0, [], b""),
                ReplicaAnswer("well", id, 200, JSON, b'{"data":[{"id":"%b"}]}' % id.encode()),
            ]
        )
        for id in "ab"
    }
    answer = _call(models, "GET", "/v1/models")
    assert [entry["id"] for entry in answer.json()["data"]] == ["a", "b"]
    assert _call(models, "GET", "/v1/models/b").json()["data"] == [{"id": "b"}]
    assert _call({"m": Handle()}, "GET", "/v1/models").status_code == 503


def test_silent_replica_has_a_503_next_to_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.ray_serve.ingress._ADMIN_TIMEOUT", 0.05)
    answers = [HUNG, _well(b'{"devices":{}}', *JSON)]
    answer = _call({"m": Handle(answers=answers)}, "GET", "/v1/admin/runtime_options")
    replicas = answer.json()["replicas"]
    assert answer.status_code == replicas["hung"]["status"] == 503
    assert replicas["hung"]["body"]["error"]["message"].startswith("the replica has not answered for")
    assert replicas["well"] == {"model": "m", "status": 200, "body": {"devices": {}}}


def test_a_replica_that_a_request_names_has_longer_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def ask(deployments: object, request: object, seconds: float, **options: object) -> list[ReplicaAnswer]:
        waited.append(seconds)
        return [_well(b'{"devices":{}}', *JSON)]

    monkeypatch.setattr("genai_server.ray_serve.ingress.ask_replicas", ask)
    for headers in ({}, {REPLICA_HEADER: "well"}):
        assert _call({"m": Handle()}, "GET", "/v1/admin/runtime_options", headers=headers).status_code == 200
    of_all, of_one = waited
    assert of_all < of_one


def test_metrics_are_those_of_the_replicas_that_answer_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.ray_serve.ingress._STATE_TIMEOUT", 0.05)
    answers, accept = [HUNG, _well(b"# TYPE a_total counter\na_total 1.0\n")], "application/openmetrics-text"
    answer = _call({"m": Handle(answers=answers)}, "GET", "/metrics", headers={"accept": accept})
    assert answer.text == '# HELP a_total \n# TYPE a_total counter\na_total{replica="well"} 1.0\n'
    assert _call({"m": Handle(answers=[HUNG])}, "GET", "/metrics").status_code == 503


def test_liveness_is_that_of_the_ingress_and_asks_no_replica() -> None:
    handle = Handle(answers=[HUNG])
    answer = _call({"m": handle}, "GET", "/livez", headers={"authorization": "Bearer unknown"})
    assert (answer.status_code, answer.json(), handle.asked) == (200, {"status": "ok"}, [])


def test_the_id_of_a_request_is_that_of_its_replica() -> None:
    handle = Handle([*OK, END], [*OK, END])
    for given in ("mine", "not a plain name"):
        _chat(handle, headers={"x-request-id": given})
    ids = [[value for name, value in asked.parts["headers"] if name == b"x-request-id"] for asked in handle.asked]
    assert ids[0] == [b"mine"]
    assert len(ids[1]) == 1 and ids[1][0].startswith(b"req-")


def test_a_request_arrives_before_its_body() -> None:
    uploads: list[float] = []

    async def upload() -> AsyncIterator[bytes]:
        uploads.append(time.time())
        await asyncio.sleep(0.1)
        yield json.dumps(CHAT).encode()

    handle = Handle([*OK, END])
    began = time.time()
    _chat(handle, json=None, content=upload(), headers=dict(JSON))
    (asked,) = handle.asked
    assert asked.arrived_at is not None
    assert began - 0.01 <= asked.arrived_at <= uploads[0] + 0.01  # between two clocks


def test_head_has_the_headers_of_get() -> None:
    handle = Handle(answers=[_well(b"{}", *JSON, (b"content-length", b"2"))])
    found, head = (_call({"m": handle}, method, "/healthz") for method in ("GET", "HEAD"))
    assert {asked.parts["method"] for asked in handle.asked} == {"GET"}
    assert (head.headers["content-length"], head.content) == (found.headers["content-length"], b"")


def test_a_body_over_the_limit_goes_to_no_replica() -> None:
    handle = Handle()
    assert (_chat(handle, json=None, content=b"x" * 2000).status_code, handle.asked) == (400, [])


def test_health_is_that_of_a_replica_that_takes_work() -> None:
    full, takes_work = _well(b"{}", *JSON, status=503), ReplicaAnswer("b", "m", 200, JSON, b"{}")
    handle = Handle(answers=[full, takes_work, HUNG])
    assert _call({"m": handle}, "GET", "/health", headers={"authorization": "Bearer x"}).status_code == 200
    assert handle.asked[0].parts["headers"] == []
    for answers in ([full], []):
        assert _call({"m": Handle(answers=answers)}, "GET", "/health").status_code == 503


def test_models_of_a_deployment_cannot_be_changed_by_calls() -> None:
    answer = _call({"m": Handle()}, "POST", "/v1/admin/models/load", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_endpoint")
