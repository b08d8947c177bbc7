"""How answers are started: the model is selected once, and the checks of one request delay no other."""

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Scope

from genai_server.engine_client.in_flight import InFlight, TokenStream
from genai_server.generation.catalog import Catalog, ChosenModel
from genai_server.http.request_state import HttpRequestState, request_state
from genai_server.messages.generation_request import GenerationRequest
from genai_server.model_files.pooling_model import Task
from genai_server.workers.process import WorkerProcess
from tests.running_server import ROOT, RunningServer, body
from tests.server_here import run_here


@pytest.fixture
def here(own_scripted: RunningServer) -> httpx.Client:
    return own_scripted.client


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/chat/completions", body("say yes")), ("/v1/completions", {"prompt": "say yes\n\x04"})],
    ids=["chat", "completion"],
)
def test_others_go_on_while_a_grammar_is_compiled(
    here: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    compiling, go_on = threading.Event(), threading.Event()

    def held(*_: Any, **__: Any) -> dict[str, Any]:
        compiling.set()
        assert go_on.wait(60)
        return {"error": None}

    monkeypatch.setattr(WorkerProcess, "ask", held)
    with ThreadPoolExecutor() as threads:
        outputs = {"choice": ["yes", uuid.uuid4().hex]}  # a grammar that the server has not compiled before
        guided = threads.submit(here.post, path, json={**fields, "structured_outputs": outputs})
        try:
            assert compiling.wait(90)
            assert here.get("/healthz").status_code == 200
            stream = here.post("/v1/chat/stream", json=body("say hello")).text
            assert not guided.done()
        finally:
            go_on.set()
        assert '"done":true' in stream
        assert guided.result().status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat", body("say yes")),
        ("/v1/chat/completions", body("say yes")),
        ("/v1/completions", {"prompt": "say yes\n\x04"}),
        ("/v1/responses", {"input": "say yes"}),
        ("/v1/messages", body("say yes", max_tokens=9)),
    ],
)
def test_every_endpoint_chooses_its_model_once(
    here: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    chosen = []
    choose = Catalog.choose_for

    def counted(self: Catalog, id: str | None, task: Task) -> ChosenModel:
        chosen.append(id)
        return choose(self, id, task)

    monkeypatch.setattr(Catalog, "choose_for", counted)
    assert here.post(path, json=fields).status_code == 200
    assert len(chosen) == 1


# the background


@pytest.mark.parametrize(
    ("options", "path", "fields"),
    [
        ((), "/v1/chat/completions", body("say yes")),
        ((), "/v1/completions", {"prompt": "say yes\n\x04"}),
        (("--model-dir", str(ROOT / "models" / "demo-embeddings")), "/v1/embeddings", {"input": "yes"}),
    ],
    ids=["chat", "completion", "embeddings"],
)
def test_engine_is_told_which_requests_are_of_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], path: str, fields: dict[str, Any]
) -> None:
    passed_on: list[bool] = []
    submit = InFlight.submit

    async def submit_and_note(
        self: InFlight, *requests: GenerationRequest, files: Sequence[object] = ()
    ) -> list[TokenStream]:
        passed_on.extend(request.low_priority for request in requests)
        return await submit(self, *requests, files=files)

    def in_background(scope: Scope) -> HttpRequestState:
        state = copy(request_state(scope))
        state.low_priority = True
        return state

    monkeypatch.setattr(InFlight, "submit", submit_and_note)
    with run_here(tmp_path, "--device", "scripted", *options) as server:
        assert server.client.post(path, json=fields).status_code == 200
        monkeypatch.setattr("genai_server.generation.dependencies.request_state", in_background)
        assert server.client.post(path, json=fields).status_code == 200
    assert passed_on == [False, True]
