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
                return [*_checks(client, "onnx-genai"), *_checks_over_ollama(client, place.url)]
        except DoesNotStart as error:
            raise ValueError(str(error).strip().rpartition("\n")[2]) from None


def _checks(client: httpx.Client, model: str, connection: str = "") -> list[Check]:
    """The same for each connection; `model` is the name that it gives the model."""
    return [
        _check(f"its list of models{connection}", lambda: _models(client, model)),
        _check(f"chat{connection}", lambda: _chat(client, model)),
        _check(f"stream{connection}", lambda: _stream(client, model)),
        _check(f"a title for a chat{connection}", lambda: _title(client, model)),
    ]


def _checks_over_ollama(client: httpx.Client, url: str) -> list[Check]:
    """What OLLAMA_BASE_URL is in a first start: the connection that an admin sets."""
    wanted = {"ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": [url], "OLLAMA_API_CONFIGS": {}}
    told = client.post("/ollama/config/update", json=wanted)
    if told.is_error:
        return [Check("its connection to Ollama", f"{told.status_code}: {told.text[:200]}")]
    return _checks(client, "onnx-genai:latest", " over Ollama's API")


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, look())
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return Check(name, f"{type(error).__name__}: {error}")


def _asked(model: str, prompt: str = "say hello", *, stream: bool = False) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream}


def _models(client: httpx.Client, model: str) -> str:
    found = [one["id"] for one in client.get("/api/models").json()["data"]]
    return "" if model in found else f"it has {found}"


def _chat(client: httpx.Client, model: str) -> str:
    answer = client.post("/api/chat/completions", json=_asked(model)).json()
    said = answer["choices"][0]["message"]["content"]
    return "" if said == "hello" else f"it said: {said}"


def _stream(client: httpx.Client, model: str) -> str:
    text = client.post("/api/chat/completions", json=_asked(model, stream=True)).text
    return "" if text.count("data: ") > 2 and text.rstrip().endswith("data: [DONE]") else f"it sent: {text[:200]}"


def _title(client: httpx.Client, model: str) -> str:
    prompt = 'Hello.\nscript: say {"title": "Hello"}'
    answer = client.post("/api/v1/tasks/title/completions", json=_asked(model, prompt)).json()
    said = answer["choices"][0]["message"]["content"]
    return "" if said == '{"title": "Hello"}' else f"it said: {said}"


APPLICATIONS = (Client(_NAME, ("open-webui",), _check_open_webui, recipe=_NAME),)
