"""Applications that people chat in, started by the lines of their guides and used through their own HTTP API."""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from _load.server import DEMO, HOST, DoesNotStart, free_port, run_server, running

from .client import Check, Client, Place
from .recipe import recipe
from .samples import IMAGES_MODEL, RECORDING, SPEECH_DIRECTORY, SPEECH_MODEL, TOKENS, png, transcript

_NAME = "Open WebUI"
_HEADING = "2. Start Open WebUI"
# It migrates a new database first.
_SECONDS_TO_START = 300.0
_SECONDS_TO_READ_A_FILE = 60.0

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
    port, data = free_port(), place.folder / "data"
    # Its database keeps the server's URL from the first start.
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    lines = f"{recipe(_HEADING, place.url).rstrip()} --host {HOST} --port {port}"
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
                    *_checks(client, "demo"),
                    *_checks_over_ollama(client, place.url),
                    *_checks_of_an_image(client, place),
                    *_checks_of_a_file(client, place),
                    *_checks_of_a_recording(client, place),
                ]
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
    response = client.post("/ollama/config/update", json=wanted)
    if response.is_error:
        return [Check("its connection to Ollama", f"{response.status_code}: {response.text[:200]}")]
    return _checks(client, "demo:latest", " over Ollama's API")


def _checks_of_an_image(client: httpx.Client, place: Place) -> list[Check]:
    """An image as its page sends it, over both connections, to the model that reads images."""
    urls = [place.url, place.images_url]
    settings = {
        "/openai/config/update": _openai_connections(*(f"{url}/v1" for url in urls)),
        "/ollama/config/update": {"ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": urls, "OLLAMA_API_CONFIGS": {}},
    }
    if why := _set(client, settings):
        return [Check("its settings for images", why)]
    return [
        _check("an image", lambda: _image(client, IMAGES_MODEL)),
        _check("an image over Ollama's API", lambda: _image(client, f"{IMAGES_MODEL}:latest")),
    ]


def _openai_connections(*urls: str) -> dict[str, object]:
    return {
        "ENABLE_OPENAI_API": True,
        "OPENAI_API_BASE_URLS": list(urls),
        "OPENAI_API_KEYS": ["none"] * len(urls),
        "OPENAI_API_CONFIGS": {},
    }


def _set(client: httpx.Client, settings: Mapping[str, object]) -> str:
    """Change settings, given by their paths; returns why one was refused."""
    for path, wanted in settings.items():
        if (response := client.post(path, json=wanted)).is_error:
            return f"{response.status_code}: {response.text[:200]}"
    # It asks the new connections for their models.
    client.get("/api/models", params={"refresh": "true"})
    return ""


def _checks_of_a_file(client: httpx.Client, place: Place) -> list[Check]:
    """Questions about a file, to the demo model and to the scripted one; the demo model for embeddings finds the words.

    Raises DoesNotStart.
    """
    folder = place.folder / "server-demo"
    folder.mkdir(exist_ok=True)
    with run_server(folder, {"GENAI_MODELS": f"chat={DEMO},vectors={DEMO}-embeddings"}) as server:
        url = f"http://{HOST}:{server.port}/v1"
        settings = {
            "/openai/config/update": _openai_connections(f"{place.url}/v1", url),
            "/api/v1/retrieval/embedding/update": {
                "RAG_EMBEDDING_ENGINE": "openai",
                "RAG_EMBEDDING_MODEL": "vectors",
                "openai_config": {"url": url, "key": "none"},
            },
        }
        if why := _set(client, settings):
            return [Check("its settings for files", why)]
        return [
            _check("the right part of a file", lambda: _source(client)),
            _check("that part in the prompt", lambda: _read(client)),
        ]


def _checks_of_a_recording(client: httpx.Client, place: Place) -> list[Check]:
    """A recording as its page sends it, to the model for speech. Raises DoesNotStart and ValueError."""
    folder = place.folder / "server-speech"
    folder.mkdir(exist_ok=True)
    with run_server(folder, {"GENAI_MODELS": f"{SPEECH_MODEL}={SPEECH_DIRECTORY}"}) as server:
        url = f"http://{HOST}:{server.port}"
        settings = client.get("/api/v1/audio/config").json()
        settings["stt"] |= {
            "ENGINE": "openai",
            "MODEL": SPEECH_MODEL,
            "OPENAI_API_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
        }
        if why := _set(client, {"/api/v1/audio/config/update": settings}):
            return [Check("its settings for recordings", why)]
        wanted = transcript(url)
        return [
            _check("a recording", lambda: _recording(client, wanted)),
            # It sends a request without the language, if the first is refused.
            _check("a recording in a language that the model lacks", lambda: _recording(client, wanted, "tlh")),
        ]


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


def _image(client: httpx.Client, model: str) -> str:
    def tokens(content: object) -> int:
        wanted = {"model": model, "messages": [{"role": "user", "content": content}], "stream": False, "max_tokens": 4}
        usage = client.post("/api/chat/completions", json=wanted).json()["usage"]
        return int(usage.get("prompt_tokens") or usage["prompt_eval_count"])

    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    parts = [{"type": "text", "text": _QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
    found = tokens(parts) - tokens(_QUESTION)
    return "" if found == TOKENS else f"the image has {found} tokens instead of {TOKENS}"


def _recording(client: httpx.Client, wanted: str, language: str = "en") -> str:
    file = (RECORDING.name, RECORDING.read_bytes(), "audio/wav")
    answer = client.post("/api/v1/audio/transcriptions", files={"file": file}, data={"language": language})
    said = answer.json().get("text", answer.text)
    return "" if said == wanted else f"it said: {said}"


def _source(client: httpx.Client) -> str:
    answer = _about_a_file(client, "chat")
    found = [text for source in answer["sources"] for text in source["document"]]
    return "" if found == [_MEANT] and answer["choices"] else f"it found: {found}"


def _read(client: httpx.Client) -> str:
    said = _about_a_file(client, "demo")["choices"][0]["message"]["content"]
    return "" if said == _ANSWER else f"it said: {said}"


def _about_a_file(client: httpx.Client, model: str) -> dict[str, Any]:
    """The answer to the question about a new file. Raises ValueError if the file is not read."""
    file = ("facts.txt", "\n\n".join(_PARAGRAPHS).encode(), "text/plain")
    path = f"/api/v1/files/{client.post('/api/v1/files/', files={'file': file}).json()['id']}"
    end = time.monotonic() + _SECONDS_TO_READ_A_FILE
    while (status := client.get(f"{path}/process/status").json()["status"]) != "completed":
        if status == "failed" or time.monotonic() > end:
            raise ValueError(f"the file is {status}: {client.get(path).json()['data']}")
        time.sleep(0.1)
    wanted = {**_asked(model, _QUESTION), "files": [{"type": "file", "id": path.rpartition("/")[2]}]}
    answer: dict[str, Any] = client.post("/api/chat/completions", json=wanted).json()
    return answer


APPLICATIONS = (Client(_NAME, ("open-webui",), _check_open_webui, images=True, recipe=_HEADING),)
