"""Open WebUI, started by the lines of its guide and used through its own HTTP API."""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from _load.server import HOST, DoesNotStart, free_port, is_answered, running

from .client import Check, Client, Place
from .recipe import recipe
from .samples import EMBEDDINGS_MODEL, IMAGES_MODEL, RECORDING, SPEECH_MODEL, TOKENS, png, transcript

_HEADING = "2. Start Open WebUI"
# It migrates a new database first.
_SECONDS_TO_START = 300.0
_SECONDS_TO_READ_A_FILE = 60.0
_MODEL = "demo"

# A paragraph is a chunk. The scripted model does what the second line says, if it stands in the prompt.
_QUESTION = "What is the capital of France?"
_ANSWER = "read the one about France"
_MEANT = f"The capital of France is Paris.\nscript: say {_ANSWER}\nIt lies on the river Seine."
_PARAGRAPHS = [
    "Rain falls from clouds.\nscript: say read the one about rain\nThe air in them becomes cold enough.",
    _MEANT,
    "Cats sleep for most of the day.\nscript: say read the one about cats\nThey hunt mice when it is dark.",
]


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
        # The demo model for embeddings reads 256 tokens, which 1000 characters, the default, may exceed.
        "CHUNK_SIZE": "120",
        "CHUNK_OVERLAP": "0",
        "RAG_TOP_K": "1",
        # The scripted model would be asked for what to search.
        "ENABLE_RETRIEVAL_QUERY_GENERATION": "false",
    }


def _check_open_webui(place: Place) -> list[Check]:
    """Raises ValueError if it does not start or refuses its settings."""
    port, data = free_port(), place.folder / "data"
    # Its database keeps the server's URL from the first start.
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    lines = f"{recipe(_HEADING, place.url).rstrip()} --host {HOST} --port {port}"
    url, log = f"http://{HOST}:{port}", place.folder / "open-webui.log"
    environment = _environment(place, data)

    def is_up() -> bool:
        return is_answered(f"{url}/health")

    started = running(["sh", "-c", lines], environment, log, is_up, _SECONDS_TO_START, cwd=place.folder)
    try:
        with started, httpx.Client(base_url=url, timeout=60) as client:
            signed_in = client.post("/api/v1/auths/signin", json={"email": "", "password": ""})
            client.headers["authorization"] = f"Bearer {signed_in.json()['token']}"
            webui = _OpenWebUI(client)
            checks = [
                _check("chat", lambda: webui.chat(_MODEL)),
                _check("stream", lambda: webui.stream(_MODEL)),
            ]
            webui.connect(place.url, place.models_url)
            return [
                *checks,
                _check("chat over Ollama's API", lambda: webui.chat(f"{_MODEL}:latest")),
                _check("stream over Ollama's API", lambda: webui.stream(f"{_MODEL}:latest")),
                _check("an image", webui.image),
                _check("the right part of a file in the prompt", webui.file),
                _check("a recording", lambda: webui.recording(transcript(place.models_url))),
            ]
    except (DoesNotStart, httpx.HTTPError) as error:
        raise ValueError(str(error).strip().rpartition("\n")[2]) from None


def _check(name: str, look: Callable[[], None]) -> Check:
    """Look; what it raises is why the check failed."""
    try:
        look()
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return Check(name, f"{type(error).__name__}: {error}")
    return Check(name)


def _equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise ValueError(f"{found!r} instead of {wanted!r}")


class _OpenWebUI:
    """What a person does in a running Open WebUI, whose `client` has signed in."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def connect(self, url: str, models_url: str) -> None:
        """Change the settings that an admin sets: connections to both servers, and the models for files and speech.

        Raises HTTPError.
        """
        openai = {"OPENAI_API_BASE_URLS": [f"{url}/v1", f"{models_url}/v1"], "OPENAI_API_KEYS": ["none", "none"]}
        audio = self._client.get("/api/v1/audio/config").json()
        speech = {"ENGINE": "openai", "MODEL": SPEECH_MODEL, "OPENAI_API_KEY": "none"}
        audio["stt"] |= {**speech, "OPENAI_API_BASE_URL": f"{models_url}/v1"}
        settings: dict[str, object] = {
            "/openai/config/update": {"ENABLE_OPENAI_API": True, "OPENAI_API_CONFIGS": {}, **openai},
            "/ollama/config/update": {"ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": [url], "OLLAMA_API_CONFIGS": {}},
            "/api/v1/retrieval/embedding/update": {
                "RAG_EMBEDDING_ENGINE": "openai",
                "RAG_EMBEDDING_MODEL": EMBEDDINGS_MODEL,
                "openai_config": {"url": f"{models_url}/v1", "key": "none"},
            },
            "/api/v1/audio/config/update": audio,
        }
        for path, wanted in settings.items():
            self._client.post(path, json=wanted).raise_for_status()
        # It asks the new connections for their models.
        self._client.get("/api/models", params={"refresh": "true"})

    def chat(self, model: str) -> None:
        """Ask for an answer in one piece."""
        _equal(_said(self._answer(model, "say hello")), "hello")

    def stream(self, model: str) -> None:
        """Ask for an answer in pieces."""
        text = self._post(model, "say hello", stream=True).text
        _equal((text.count("data: ") > 2, text.rstrip().rpartition("\n")[2]), (True, "data: [DONE]"))

    def image(self) -> None:
        """Ask about an image, and count its tokens."""
        url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
        parts = [{"type": "text", "text": _QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
        usages = [self._answer(IMAGES_MODEL, content, max_tokens=4)["usage"] for content in (parts, _QUESTION)]
        _equal(usages[0]["prompt_tokens"] - usages[1]["prompt_tokens"], TOKENS)

    def recording(self, wanted: str) -> None:
        """Send a recording as its page does, and compare the transcript."""
        file = (RECORDING.name, RECORDING.read_bytes(), "audio/wav")
        answer = self._client.post("/api/v1/audio/transcriptions", files={"file": file}, data={"language": "en"})
        _equal(answer.json().get("text", answer.text), wanted)

    def file(self) -> None:
        """Ask about a new file. The demo model for embeddings finds the paragraph that the scripted model reads."""
        file = ("facts.txt", "\n\n".join(_PARAGRAPHS).encode(), "text/plain")
        name = self._client.post("/api/v1/files/", files={"file": file}).json()["id"]
        end = time.monotonic() + _SECONDS_TO_READ_A_FILE
        while (status := self._client.get(f"/api/v1/files/{name}/process/status").json()["status"]) != "completed":
            if status == "failed" or time.monotonic() > end:
                raise ValueError(f"the file is {status}: {self._client.get(f'/api/v1/files/{name}').json()['data']}")
            time.sleep(0.1)
        answer = self._answer(_MODEL, _QUESTION, files=[{"type": "file", "id": name}])
        found = [text for source in answer["sources"] for text in source["document"]]
        _equal((found, _said(answer)), ([_MEANT], _ANSWER))

    def _answer(self, model: str, content: object, **more: object) -> dict[str, Any]:
        answer: dict[str, Any] = self._post(model, content, **more).json()
        return answer

    def _post(self, model: str, content: object, **more: object) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": False, **more}
        return self._client.post("/api/chat/completions", json=body)


def _said(answer: dict[str, Any]) -> object:
    return answer["choices"][0]["message"]["content"]


APPLICATIONS = (Client("Open WebUI", ("open-webui",), _check_open_webui, recipe=_HEADING),)
