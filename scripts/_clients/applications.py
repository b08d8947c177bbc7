"""Applications that people chat in, started by the lines of docs/clients.md and used through their own HTTP API."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
from _load.server import HOST, DoesNotStart, free_port, running

from .client import Check, Client, Place
from .recipe import recipe

_NAME = "Open WebUI"
# It migrates a new database first.
_SECONDS_TO_START = 300.0
_ASKED = {"model": "onnx-genai", "messages": [{"role": "user", "content": "say hello"}]}


def _environment(place: Place, data: Path) -> dict[str, str]:
    return {
        "PATH": f"{place.commands}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place.folder),
        "DATA_DIR": str(data),
        "WEBUI_AUTH": "false",
        "WEBUI_SECRET_KEY": "none",
        # It would fetch models of its own for searching in documents.
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "ANONYMIZED_TELEMETRY": "false",
    }


def _check_open_webui(place: Place) -> list[Check]:
    port, data = free_port(), place.folder / "data"
    # Its database keeps the server's URL from the first start.
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    lines = f"{recipe(_NAME, place.url).rstrip()} --host {HOST} --port {port}"
    with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=60) as client:

        def is_up() -> bool:
            try:
                return client.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        log = place.folder / "open-webui.log"
        try:
            with running(
                ["sh", "-c", lines], _environment(place, data), log, is_up, _SECONDS_TO_START, cwd=place.folder
            ):
                signed_in = client.post("/api/v1/auths/signin", json={"email": "", "password": ""})
                client.headers["authorization"] = f"Bearer {signed_in.json()['token']}"
                return [
                    _check("its list of models", lambda: _models(client)),
                    _check("chat", lambda: _chat(client)),
                    _check("stream", lambda: _stream(client)),
                    _check("a title for a chat", lambda: _title(client)),
                ]
        except DoesNotStart as error:
            raise ValueError(str(error).strip().rpartition("\n")[2]) from None


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, look())
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return Check(name, f"{type(error).__name__}: {error}")


def _models(client: httpx.Client) -> str:
    found = [model["id"] for model in client.get("/api/models").json()["data"]]
    return "" if "onnx-genai" in found else f"it has {found}"


def _chat(client: httpx.Client) -> str:
    answer = client.post("/api/chat/completions", json=_ASKED).json()
    said = answer["choices"][0]["message"]["content"]
    return "" if said == "hello" else f"it said: {said}"


def _stream(client: httpx.Client) -> str:
    text = client.post("/api/chat/completions", json={**_ASKED, "stream": True}).text
    return "" if text.count("data: ") > 2 and text.rstrip().endswith("data: [DONE]") else f"it sent: {text[:200]}"


def _title(client: httpx.Client) -> str:
    messages = [{"role": "user", "content": 'Hello.\nscript: say {"title": "Hello"}'}]
    answer = client.post("/api/v1/tasks/title/completions", json={**_ASKED, "messages": messages}).json()
    said = answer["choices"][0]["message"]["content"]
    return "" if said == '{"title": "Hello"}' else f"it said: {said}"


APPLICATIONS = (Client(_NAME, ("open-webui",), _check_open_webui, recipe=_NAME),)
