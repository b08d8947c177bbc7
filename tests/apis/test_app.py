"""What stands before every route."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from psutil import Process
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.apis.app import Telemetry, _add_middleware
from genai_server.config.settings import Settings
from genai_server.http.api_keys import ApiKeys
from genai_server.http.body_budget import BodyBudget
from genai_server.http.middleware.request_lifetime import Drain
from tests.running_server import ROOT, wait_until
from tests.server_here import run_here


def _app() -> FastAPI:
    app = FastAPI()
    settings = Settings.model_validate({"model_dir": "/m", "device": "scripted"})
    telemetry = Telemetry(CollectorRegistry(), [])
    _add_middleware(app, settings, BodyBudget(1000), Drain(1), ApiKeys(), telemetry, on_loopback=True)
    return app


@pytest.mark.usefixtures("unforked")
def test_a_vision_model_has_an_image_reader_before_images_come(tmp_path: Path) -> None:
    model = ROOT / "tests" / "built_models" / "qwen-3-vl-images"

    def image_readers() -> list[str]:
        """The directories of their models."""
        found = [one for one in Process().children() if "genai_server.images.process" in one.cmdline()]
        return [json.loads(one.cmdline()[-1])["model_dir"] for one in found]

    before = Counter(image_readers())
    with run_here(tmp_path, "--device", "cpu", settings={"GENAI_MODEL_DIR": str(model)}):
        wait_until(lambda: Counter(image_readers()) - before == {str(model): 1})


def test_at_most_six_middlewares_are_our_own() -> None:
    assert 0 < len(_app().user_middleware) <= 6


def test_one_middleware_wraps_send() -> None:
    sends: list[Send] = []

    def noting(app: ASGIApp) -> ASGIApp:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            sends.append(send)
            await app(scope, receive, send)

        return noted

    app = noting(Response())
    for middleware in reversed(_app().user_middleware):
        app = noting(middleware.cls(app, *middleware.args, **middleware.kwargs))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "client": ("127.0.0.1", 1)}

    async def run() -> None:
        await app({**scope, "headers": []}, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 200
    assert len(sends) == len(_app().user_middleware) + 1
    assert len(set(sends)) == 2
