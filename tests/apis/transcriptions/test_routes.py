"""OpenAI's transcriptions and translations over HTTP, with a model of random weights on a real engine.

What such a model writes has no meaning, but all of its forms agree.
"""

import asyncio
import io
import json
import shutil
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionVerbose

from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import EngineDied, QueueFull
from genai_server.generation.dependencies import Deadline
from genai_server.generation.engine_requests import EngineAnswer, EngineRequests
from genai_server.media.audio.recordings import Recording, Recordings, Window
from genai_server.messages.generation_request import GenerationRequest
from tests import raw_http
from tests.apis.transcriptions.doubles import DIRECTORY, MODEL, answer, at, load_codec
from tests.media.audio.sounds import encoded, sentence, silence
from tests.running_server import DEMO, RunningServer, body, environment_without, refusal, run_server, wait_until
from tests.server_here import run_here

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
SPEECH = encoded(sentence())
# Seconds in which a busy machine loads several models, one after another.
_PATIENCE = 150.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"GENAI_MODELS": f"chat={DEMO},speech={DIRECTORY}"}
    with run_here(tmp_path_factory.mktemp("speech"), "--device", "cpu", settings=settings) as running:
        wait_until(lambda: all(m["state"] == "ready" for m in running.client.get("/v1/models").json()["data"]))
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Spoken:
    """Replaces the engine: each window has one of the given texts, and ends after its first segment."""

    def __init__(self, *texts: str, seconds: float = 2.0) -> None:
        self.asked: list[GenerationRequest] = []
        self._texts = list(texts)
        self._seconds = seconds
        self._codec = load_codec()

    async def run(self, request: GenerationRequest) -> EngineAnswer:
        self.asked.append(request)
        end = at(self._seconds)
        tokens = [at(0), *self._codec.tokenizer.encode(f" {self._texts.pop(0)}"), end]
        return answer([*tokens, end] if self._texts else tokens)


Run = Callable[[GenerationRequest], Coroutine[Any, Any, EngineAnswer]]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Replaces the engine by a function."""

    def replace(run: Run) -> None:
        monkeypatch.setattr(EngineRequests, "run", lambda _, request: run(request))

    return replace


@pytest.fixture
def spoken(answering: Callable[[Run], None]) -> Spoken:
    """The recording has two segments, in a window each."""
    found = Spoken("The quick", "brown fox")
    answering(found.run)
    return found


def post(server: RunningServer, path: str = PATHS[0], **fields: Any) -> httpx.Response:
    return server.client.post(path, files={"file": ("a.wav", SPEECH)}, data=fields)


@pytest.mark.slow
def test_recording_without_the_extra_is_an_error_that_names_it(tmp_path: Path) -> None:
    settings = environment_without("av", tmp_path) | {"GENAI_MODELS": f"speech={DIRECTORY}"}
    with run_server(tmp_path, "--device", "cpu", settings=settings) as bare:
        refused = post(bare)
        assert refusal(refused) == (400, "unsupported_task", "file")
        assert "installed without the extra audio" in refused.text
        assert "model speech takes recordings, which cannot be decoded" in bare.log()
        assert "audio" in bare.log().partition("install what that needs: ")[2].splitlines()[0]


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("json", '{"text":"The quick brown fox","usage":{"type":"duration","seconds":4},"languages":[{"code":"en"}]}'),
        ("text", "The quick brown fox\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:02,000\nThe quick\n\n2\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nThe quick\n\n"),
    ],
)
@pytest.mark.usefixtures("spoken")
def test_every_format_has_the_same_text(server: RunningServer, form: str, wanted: str) -> None:
    response = post(server, language="en", response_format=form)
    assert (response.status_code, response.text[: len(wanted)]) == (200, wanted)
    kind = "application/json" if form == "json" else "text/plain; charset=utf-8"
    assert response.headers["content-type"] == kind


def test_verbose_json_has_segments_with_their_figures(server: RunningServer) -> None:
    response = post(server, response_format="verbose_json", **{"timestamp_granularities[]": "segment"})
    found = TranscriptionVerbose.model_validate(response.json(), strict=True)
    segments = found.segments or []
    assert found.text == "".join(segment.text for segment in segments).strip()
    assert 3 < found.duration < 4
    assert found.language in ("english", "german", "spanish")
    assert [segment.id for segment in segments] == list(range(len(segments)))
    for segment in segments:
        assert 0 <= segment.start <= segment.end <= found.duration
        assert 0 <= segment.no_speech_prob < 1
        assert segment.tokens
    assert segments
    assert "server-timing" in response.headers


def test_words_have_times(client: openai.OpenAI) -> None:
    fields: Any = {"model": "speech", "file": ("a.wav", SPEECH), "response_format": "verbose_json"}
    found: Any = client.audio.transcriptions.create(timestamp_granularities=["word", "segment"], **fields)
    spoken = "".join(segment.text for segment in found.segments)
    assert all(word.word in spoken and word.word.strip() == word.word for word in found.words)
    starts = [word.start for word in found.words]
    assert (starts == sorted(starts), len(starts) > 0) == (True, True)
    assert all(0 <= word.start <= word.end <= found.duration for word in found.words)
    alone: Any = client.audio.transcriptions.create(timestamp_granularities=["word"], **fields)
    assert (bool(alone.words), alone.segments) == (True, None)


def test_openapi_describes_the_form_and_the_formats(server: RunningServer) -> None:
    document = server.client.get("/openapi.json").json()
    for path, name in zip(PATHS, ("TranscriptionForm", "TranslationForm"), strict=True):
        operation, schema = document["paths"][path]["post"], document["components"]["schemas"][name]
        form = {"schema": {"$ref": f"#/components/schemas/{name}"}}
        assert operation["requestBody"]["content"] == {"multipart/form-data": form}
        content = operation["responses"]["200"]["content"]
        assert content.keys() == {"application/json", "text/plain", "text/event-stream"}
        assert (schema["properties"]["file"]["format"], schema["required"]) == ("binary", ["file"])


def test_openais_client_transcribes(client: openai.OpenAI, spoken: Spoken) -> None:
    found: Any = client.audio.transcriptions.create(
        model="speech", file=io.BytesIO(SPEECH), language="en", include=["logprobs"], chunking_strategy="auto"
    )
    assert (found.text, [each.code for each in found.languages]) == ("The quick brown fox", ["en"])
    assert "".join(each.token or "" for each in found.logprobs) == " The quick brown fox"
    assert spoken.asked[0].prompt == [MODEL.start_of_transcript, MODEL.languages["en"], MODEL.transcribe]


def test_openais_client_chooses_values_of_the_detector(client: openai.OpenAI) -> None:
    fields: Any = {"model": "speech", "file": ("a.wav", encoded(np.concatenate([sentence(), silence(2)])))}

    def text(threshold: float) -> str:
        strategy: Any = {"type": "server_vad", "threshold": threshold, "prefix_padding_ms": 100}
        found: Any = client.audio.transcriptions.create(language="en", chunking_strategy=strategy, **fields)
        return str(found.text)

    assert (bool(text(0.2)), text(1.0)) == (True, "")


def test_openais_client_translates(client: openai.OpenAI, spoken: Spoken) -> None:
    asked = {"model": "speech", "file": ("x.wav", SPEECH), "prompt": "Names", "extra_body": {"language": "de"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # OpenAI will not have it any more
        found = client.audio.translations.create(**asked)
    assert found.text == "The quick brown fox"
    prompt = spoken.asked[0].prompt
    assert prompt[0] == MODEL.start_of_previous
    assert prompt[-2:] == [MODEL.languages["de"], MODEL.translate]


def test_openais_client_reads_the_stream(client: openai.OpenAI, spoken: Spoken) -> None:
    stream: Any = client.audio.transcriptions.create(
        model="speech", file=io.BytesIO(SPEECH), language="en", stream=True, include=["logprobs"]
    )
    *deltas, done = list(stream)
    assert [event.delta for event in deltas] == ["The quick", " brown fox"]
    assert (done.type, done.text) == ("transcript.text.done", "The quick brown fox")
    assert [each.code for each in done.languages] == ["en"]
    assert len(done.logprobs) == sum(len(event.logprobs) for event in deltas)
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens


def test_usage_of_a_stream_counts_all_tokens(server: RunningServer) -> None:
    response = post(server, stream="true", language="en")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    last, usage = events[-1], events[-1]["usage"]
    assert last["type"] == "transcript.text.done"
    assert last["text"] == "".join(event.get("delta", "") for event in events)
    assert usage["input_token_details"]["audio_tokens"] == pytest.approx(175, abs=25)
    assert usage["input_tokens"] == sum(usage["input_token_details"].values())
    assert usage["output_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, '{"text":"","usage":{"type":"duration","seconds":4},"languages":[]}'),
        ({"response_format": "text"}, "\n"),
        ({"response_format": "vtt"}, "WEBVTT\n\n"),
    ],
)
def test_silence_has_no_text(server: RunningServer, fields: dict[str, str], wanted: str) -> None:
    response = server.client.post(PATHS[0], files={"file": ("a.wav", encoded(silence(4)))}, data=fields)
    assert (response.status_code, response.text) == (200, wanted)


@pytest.mark.parametrize("tag", ["de-AT", "DE_de", " de "])
def test_a_tag_with_a_region_stands_for_its_language(server: RunningServer, spoken: Spoken, tag: str) -> None:
    assert post(server, language=tag).json()["languages"] == [{"code": "de"}]
    assert spoken.asked[0].prompt == [MODEL.start_of_transcript, MODEL.languages["de"], MODEL.transcribe]


@pytest.mark.parametrize("language", ["auto", "Auto", ""])
def test_auto_detects_the_language(server: RunningServer, language: str) -> None:
    plain = post(server, response_format="verbose_json").json()
    assert post(server, language=language, response_format="verbose_json").json()["language"] == plain["language"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "chat"}, "unsupported_task", "model"),
        ({"model": "none"}, "model_not_found", "model"),
        ({"language": "xx"}, "invalid_value", "language"),
        ({"languages[]": ["en", "xx"]}, "invalid_value", "languages"),
        ({"temperature": "3"}, "invalid_value", "temperature"),
        ({"device": "cuda"}, "invalid_value", "device"),
        ({"timeout": "700"}, "invalid_value", "timeout"),
        ({"best_of": "5"}, "unknown_parameter", "best_of"),
    ],
)
def test_wrong_fields_are_refused(server: RunningServer, fields: dict[str, Any], code: str, param: str) -> None:
    response = post(server, **fields)
    assert refusal(response) == (404 if code == "model_not_found" else 400, code, param)


def test_transcriptions_can_be_profiled(server: RunningServer) -> None:
    plain = post(server, language="en", response_format="text", model="speech").text
    start = server.client.post("/v1/admin/profiles", json={"model": "speech", "prefix": "heard", "max_tokens": 3})
    assert start.status_code == 200, start.text
    assert post(server, language="en", response_format="text", model="speech").text == plain
    (session,) = [one for one in server.client.get("/v1/admin/profiles").json()["data"] if one["prefix"] == "heard"]
    assert session["profiled"]["tokens"] == 3, session
    assert session["reason"] == "3 tokens are profiled (max_tokens)"


def test_a_file_with_sound_is_required(server: RunningServer) -> None:
    response = server.client.post(PATHS[1], files={"model": (None, "speech")})
    assert refusal(response) == (400, "missing_required_parameter", "file")
    response = server.client.post(PATHS[0], files={"file": ("a.wav", b"no sound")})
    assert refusal(response) == (400, "invalid_value", "file")


@pytest.mark.parametrize("name", ["file", "file[]", "file[path]", "file["])
def test_a_path_of_the_server_is_no_file(server: RunningServer, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.ogg"
    path.write_bytes(SPEECH)
    response = server.client.post(PATHS[0], files={name: (None, str(path))})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
    assert path.exists()


def test_model_lists_say_what_it_is_for(server: RunningServer) -> None:
    entry = server.client.get("/v1/models/speech").json()
    assert entry == entry | {"capabilities": ["transcription"], "chat": False, "max_model_len": MODEL.context_length}
    # Programs that read these lists chat with the models.
    assert [each["id"] for each in server.client.get("/api/v0/models").json()["data"]] == ["chat"]
    assert [each["key"] for each in server.client.get("/api/v1/models").json()["models"]] == ["chat"]
    assert "speech:latest" in {each["name"] for each in server.client.get("/api/tags").json()["models"]}
    assert server.client.post("/api/show", json={"model": "speech"}).json()["capabilities"] == ["transcription"]
    response = server.client.post("/v1/messages", json={**body("hi"), "max_tokens": 5, "model": "speech"})
    assert 'model "speech" generates no text; "chat" can' in response.json()["error"]["message"]


def test_a_timeout_ends_decoding(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    is_cancelled = threading.Event()

    async def endless(*_: Any, **__: Any) -> Recording:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()
        raise AssertionError

    monkeypatch.setattr(Recordings, "open", endless)
    # Decoding begins, however long the request has taken until then.
    left: Callable[[Deadline], float] = vars(Deadline)["seconds_left"].fget
    monkeypatch.setattr(Deadline, "seconds_left", property(lambda deadline: max(0.1, left(deadline))))
    assert refusal(post(server, timeout="0.1")) == (504, "timeout", None)
    assert is_cancelled.is_set()


@pytest.mark.timeout(_PATIENCE)
def test_a_model_unloaded_during_decoding_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decodes, goes_on, open_recording = threading.Event(), threading.Event(), Recordings.open

    async def held(self: Recordings, *given: Any, **named: Any) -> Recording:
        decodes.set()
        await asyncio.to_thread(goes_on.wait, _PATIENCE)
        return await open_recording(self, *given, **named)

    monkeypatch.setattr(Recordings, "open", held)
    settings = {"GENAI_MODELS": f"chat={DEMO},speech={DIRECTORY}", "GENAI_MAX_MODELS": "1"}
    with run_here(tmp_path, "--device", "cpu", settings=settings) as running, ThreadPoolExecutor(1) as thread:
        running.client.timeout = httpx.Timeout(_PATIENCE)
        transcribed = thread.submit(post, running, model="speech", language="en")
        assert decodes.wait(_PATIENCE)
        with httpx.Client(base_url=running.url, timeout=_PATIENCE) as other:
            assert other.post("/v1/chat/completions", json={**body("hi"), "model": "chat"}).status_code == 200
        goes_on.set()
        assert transcribed.result().status_code == 200


def test_a_timeout_ends_the_reading_of_a_window(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: Any, **__: Any) -> Window | int:
        await asyncio.Event().wait()
        raise AssertionError

    assert refusal(post(server, timeout="0.001")) == (504, "timeout", None)
    monkeypatch.setattr(Recordings, "read_window", endless)
    for fields in ({}, {"stream": "true"}):
        assert refusal(post(server, timeout="1", **fields)) == (504, "timeout", None)


def test_headers_of_a_stream_come_before_its_first_window(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, read = asyncio.Event(), EngineRequests._read
    loops: list[asyncio.AbstractEventLoop] = []

    async def held(self: EngineRequests, stream: TokenStream, *rest: Any) -> EngineAnswer:
        loops.append(asyncio.get_running_loop())
        await goes_on.wait()
        return await read(self, stream, *rest)

    monkeypatch.setattr(EngineRequests, "_read", held)
    fields: dict[str, Any] = {"files": {"file": ("a.wav", SPEECH)}, "data": {"stream": "true", "language": "en"}}
    with server.client.stream("POST", PATHS[0], **fields) as response:
        assert response.status_code == 200
        loops[0].call_soon_threadsafe(goes_on.set)
        assert "transcript.text.done" in response.read().decode()


class Held:
    """Answers one engine request, and holds those that follow until they are cancelled."""

    def __init__(self) -> None:
        self.spoken = Spoken("word", "word", seconds=1.5)
        self.is_held, self.is_cancelled = threading.Event(), threading.Event()

    async def run(self, request: GenerationRequest) -> EngineAnswer:
        if not self.spoken.asked:
            return await self.spoken.run(request)
        self.is_held.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled.set()
        raise AssertionError


@pytest.mark.parametrize("fields", [{}, {"stream": "true"}])
def test_a_client_that_leaves_ends_its_transcription(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    answering: Callable[[Run], None],
    fields: dict[str, str],
) -> None:
    held, closed, close = Held(), threading.Event(), Recording.close
    answering(held.run)

    def noted(recording: Recording) -> None:
        close(recording)
        closed.set()

    monkeypatch.setattr(Recording, "close", noted)
    asked: dict[str, Any] = {"files": {"file": ("a.wav", SPEECH)}, "data": {"language": "en", **fields}}
    with raw_http.connect(server) as connection:
        connection.sendall(raw_http.post(server, PATHS[0], **asked))
        assert held.is_held.wait(90)
        assert not closed.is_set()
    assert held.is_cancelled.wait(90)
    assert closed.wait(90)


def test_a_failure_in_a_stream_is_its_last_event(server: RunningServer, answering: Callable[[Run], None]) -> None:
    found = Spoken("word", "more", seconds=1.5)

    async def run(request: GenerationRequest) -> EngineAnswer:
        if found.asked:
            raise EngineDied("it died")
        return await found.run(request)

    answering(run)
    lines = [line for line in post(server, stream="true", language="en").text.splitlines() if line]
    assert lines[0] == 'data: {"type":"transcript.text.delta","delta":"word"}'
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_died"


def test_a_refusal_before_the_stream_has_its_status(server: RunningServer, answering: Callable[[Run], None]) -> None:
    async def run(request: GenerationRequest) -> EngineAnswer:
        raise QueueFull("no place", retry_after=7)

    answering(run)
    response = post(server, stream="true")
    assert (refusal(response), response.headers["retry-after"]) == ((503, "queue_full", None), "7")


def test_an_english_model_does_not_translate(tmp_path: Path) -> None:
    directory = shutil.copytree(DIRECTORY, tmp_path / "english")
    rules = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps(rules | {"is_multilingual": False}))
    with run_here(tmp_path, "--device", "cpu", settings={"GENAI_MODELS": f"english={directory}"}) as server:
        response = post(server, PATHS[1])
        assert refusal(response)[::2] == (400, "model")
        assert "only knows English" in response.json()["error"]["message"]
