"""Applications that people chat in, started by the lines of their guides and used through their own HTTP API."""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from _load.server import DEMO, HOST, DoesNotStart, free_port, is_answered, run_server, running

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
    url, log = f"http://{HOST}:{port}", place.folder / "open-webui.log"
    started = running(
        ["sh", "-c", lines],
        _environment(place, data),
        log,
        lambda: is_answered(f"{url}/health"),
        _SECONDS_TO_START,
        cwd=place.folder,
    )
    with httpx.Client(base_url=url, timeout=60) as client:
        try:
            with started:
                signed_in = client.post("/api/v1/auths/signin", json={"email": "", "password": ""})
                client.headers["authorization"] = f"Bearer {signed_in.json()['token']}"
                return [
                    *_checks(client, "demo"),
                    # What OLLAMA_BASE_URL is in a first start: the connection that an admin sets.
                    _check("its connection to Ollama", lambda: _set(client, _ollama(place.url))),
                    *_checks(client, "demo:latest", " over Ollama's API"),
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
        _check(f"chat{connection}", lambda: _equal(_said(_answer(client, model, "say hello")), "hello")),
        _check(f"stream{connection}", lambda: _stream(client, model)),
        _check(f"a title for a chat{connection}", lambda: _title(client, model)),
    ]


def _checks_of_an_image(client: httpx.Client, place: Place) -> list[Check]:
    """An image as its page sends it, over both connections, to the model that reads images."""
    urls = [place.url, place.images_url]
    return [
        _check("its settings for images", lambda: _set(client, _openai(*urls) | _ollama(*urls))),
        _check("an image", lambda: _image(client, IMAGES_MODEL)),
        _check("an image over Ollama's API", lambda: _image(client, f"{IMAGES_MODEL}:latest")),
    ]


def _checks_of_a_file(client: httpx.Client, place: Place) -> list[Check]:
    """Questions about a file, to the demo model and to the scripted one; the demo model for embeddings finds the words.

    Raises DoesNotStart.
    """
    with _served(place, "server-demo", f"chat={DEMO},vectors={DEMO}-embeddings") as url:
        embeddings = {
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_EMBEDDING_MODEL": "vectors",
            "openai_config": {"url": f"{url}/v1", "key": "none"},
        }
        settings = _openai(place.url, url) | {"/api/v1/retrieval/embedding/update": embeddings}
        return [
            _check("its settings for files", lambda: _set(client, settings)),
            _check("the right part of a file", lambda: _source(client)),
            _check("that part in the prompt", lambda: _equal(_said(_about_a_file(client, "demo")), _ANSWER)),
        ]


def _checks_of_a_recording(client: httpx.Client, place: Place) -> list[Check]:
    """A recording as its page sends it, to the model for speech. Raises DoesNotStart and ValueError."""
    with _served(place, "server-speech", f"{SPEECH_MODEL}={SPEECH_DIRECTORY}") as url:
        settings = client.get("/api/v1/audio/config").json()
        own = {"MODEL": SPEECH_MODEL, "OPENAI_API_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"}
        settings["stt"] |= {"ENGINE": "openai", **own}
        wanted = transcript(url)
        return [
            _check("its settings for recordings", lambda: _set(client, {"/api/v1/audio/config/update": settings})),
            _check("a recording", lambda: _recording(client, wanted)),
            # It sends a request without the language, if the first is refused.
            _check("a recording in a language that the model lacks", lambda: _recording(client, wanted, "tlh")),
        ]


@contextmanager
def _served(place: Place, name: str, models: str) -> Iterator[str]:
    """The URL of a server with these models, whose files go to a folder of this name. Raises DoesNotStart."""
    folder = place.folder / name
    folder.mkdir(exist_ok=True)
    with run_server(folder, {"GENAI_MODELS": models}) as server:
        yield f"http://{HOST}:{server.port}"


def _openai(*urls: str) -> dict[str, object]:
    """The setting of its connections over OpenAI's API to the servers at these URLs."""
    bases, keys = [f"{url}/v1" for url in urls], ["none"] * len(urls)
    names = {"OPENAI_API_BASE_URLS": bases, "OPENAI_API_KEYS": keys, "OPENAI_API_CONFIGS": {}}
    return {"/openai/config/update": {"ENABLE_OPENAI_API": True, **names}}


def _ollama(*urls: str) -> dict[str, object]:
    """The setting of its connections over Ollama's API to the servers at these URLs."""
    names = {"OLLAMA_BASE_URLS": list(urls), "OLLAMA_API_CONFIGS": {}}
    return {"/ollama/config/update": {"ENABLE_OLLAMA_API": True, **names}}


def _set(client: httpx.Client, settings: Mapping[str, object]) -> None:
    """Change settings, given by their paths. Raises HTTPError."""
    for path, wanted in settings.items():
        client.post(path, json=wanted).raise_for_status()
    # It asks the new connections for their models.
    client.get("/api/models", params={"refresh": "true"})


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


def _answer(client: httpx.Client, model: str, content: object, **more: object) -> dict[str, Any]:
    """The answer to a chat with one message."""
    wanted = {"model": model, "messages": [{"role": "user", "content": content}], "stream": False, **more}
    answer: dict[str, Any] = client.post("/api/chat/completions", json=wanted).json()
    return answer


def _said(answer: dict[str, Any]) -> object:
    return answer["choices"][0]["message"]["content"]


def _models(client: httpx.Client, model: str) -> None:
    found = [one["id"] for one in client.get("/api/models").json()["data"]]
    _equal((model in found, found), (True, found))


def _stream(client: httpx.Client, model: str) -> None:
    wanted = {"model": model, "messages": [{"role": "user", "content": "say hello"}], "stream": True}
    text = client.post("/api/chat/completions", json=wanted).text
    _equal((text.count("data: ") > 2, text.rstrip().rpartition("\n")[2]), (True, "data: [DONE]"))


def _title(client: httpx.Client, model: str) -> None:
    prompt = 'Hello.\nscript: say {"title": "Hello"}'
    wanted = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": False}
    _equal(_said(client.post("/api/v1/tasks/title/completions", json=wanted).json()), '{"title": "Hello"}')


def _image(client: httpx.Client, model: str) -> None:
    def tokens(content: object) -> int:
        usage = _answer(client, model, content, max_tokens=4)["usage"]
        return int(usage.get("prompt_tokens") or usage["prompt_eval_count"])

    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    parts = [{"type": "text", "text": _QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
    _equal(tokens(parts) - tokens(_QUESTION), TOKENS)


def _recording(client: httpx.Client, wanted: str, language: str = "en") -> None:
    file = (RECORDING.name, RECORDING.read_bytes(), "audio/wav")
    answer = client.post("/api/v1/audio/transcriptions", files={"file": file}, data={"language": language})
    _equal(answer.json().get("text", answer.text), wanted)


def _source(client: httpx.Client) -> None:
    answer = _about_a_file(client, "chat")
    found = [text for source in answer["sources"] for text in source["document"]]
    _equal((found, bool(answer["choices"])), ([_MEANT], True))


def _about_a_file(client: httpx.Client, model: str) -> dict[str, Any]:
    """The answer to the question about a new file. Raises ValueError if the file is not read."""
    file = ("facts.txt", "\n\n".join(_PARAGRAPHS).encode(), "text/plain")
    path = f"/api/v1/files/{client.post('/api/v1/files/', files={'file': file}).json()['id']}"
    end = time.monotonic() + _SECONDS_TO_READ_A_FILE
    while (status := client.get(f"{path}/process/status").json()["status"]) != "completed":
        if status == "failed" or time.monotonic() > end:
            raise ValueError(f"the file is {status}: {client.get(path).json()['data']}")
        time.sleep(0.1)
    return _answer(client, model, _QUESTION, files=[{"type": "file", "id": path.rpartition("/")[2]}])


APPLICATIONS = (Client(_NAME, ("open-webui",), _check_open_webui, images=True, recipe=_HEADING),)
