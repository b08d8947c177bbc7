"""Sounds in chats, over real sockets, with small models that take sounds, images, and text only."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from genai_server.http.leniency import IGNORED_HEADER
from tests.media.audio.sounds import encoded, sentence, tone
from tests.media.images.pictures import data_url, tiles
from tests.running_server import DEMO, ROOT, RunningServer, refusal, wait_until
from tests.server_here import run_here

BUILT = ROOT / "tests" / "built_models"
PATHS = ("/v1/chat/completions", "/v1/responses")
NOTE = "[sound left out: this model reads text only]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = f"hears={BUILT / 'lfm2-audio'},sees={BUILT / 'qwen-3-vl-images'},reads={DEMO}"
    settings = {"GENAI_MODELS": models, "GENAI_MAX_AUDIO_SECONDS": "30"}
    with run_here(tmp_path_factory.mktemp("sounds"), "--device", "cpu", settings=settings) as server:
        wait_until(lambda: {entry["state"] for entry in server.client.get("/v1/models").json()["data"]} == {"ready"})
        yield server


def sound(data: bytes) -> dict[str, Any]:
    """A part with a file."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


SOUND = sound(encoded(sentence()))
IMAGE = {"type": "image_url", "image_url": {"url": data_url(tiles(64, 64, 1))}}


def ask(server: RunningServer, path: str, *parts: dict[str, Any], model: str = "hears") -> httpx.Response:
    """Send parts and the text `hi` behind them."""
    if path == "/v1/responses":
        content = [*parts, {"type": "input_text", "text": "hi"}]
        body: dict[str, Any] = {"input": [{"role": "user", "content": content}], "max_output_tokens": 16}
    else:
        content = [*parts, {"type": "text", "text": "hi"}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16}
    return server.client.post(path, json={"model": model, "temperature": 0, **body})


def answer(response: httpx.Response) -> tuple[str, int]:
    """Text and tokens of the prompt."""
    assert response.status_code == 200, response.text
    body = response.json()
    if "choices" in body:
        return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens"]
    texts = [part["text"] for item in body["output"] for part in item.get("content", ())]
    return "".join(texts), body["usage"]["input_tokens"]


@pytest.mark.parametrize("path", PATHS)
def test_sounds_are_part_of_the_prompt(server: RunningServer, path: str) -> None:
    spoken, other = sound(encoded(sentence())), sound(encoded(tone(1.0)))
    plain, tokens = answer(ask(server, path))
    heard, tokens_heard = answer(ask(server, path, spoken))
    # A token for each 80 ms, and a line break.
    assert tokens_heard - tokens in (len(sentence()) // 1280 + extra for extra in range(3))
    assert heard != plain
    assert answer(ask(server, path, spoken)) == (heard, tokens_heard)
    assert answer(ask(server, path, spoken, other))[1] > tokens_heard + 12


def test_formats_are_decoded_as_those_of_transcriptions(server: RunningServer) -> None:
    _, tokens = answer(ask(server, PATHS[0], sound(encoded(sentence()))))
    for file in (encoded(sentence(), "flac", "flac"), encoded(sentence(), "wav", rate=16_000, layout="stereo")):
        assert answer(ask(server, PATHS[0], sound(file)))[1] == tokens


def test_usage_names_the_tokens_of_sounds(server: RunningServer) -> None:
    details = ask(server, PATHS[0], sound(encoded(sentence()))).json()["usage"]["prompt_tokens_details"]
    # A token for each 80 ms.
    assert details["audio_tokens"] in (len(sentence()) // 1280 + extra for extra in range(2))
    assert details["image_tokens"] == 0


def test_responses_keep_sounds_of_earlier_turns(server: RunningServer) -> None:
    first = ask(server, "/v1/responses", sound(encoded(sentence()))).json()
    body = {"model": "hears", "input": "and?", "previous_response_id": first["id"], "max_output_tokens": 16}
    second = server.client.post("/v1/responses", json=body)
    assert second.status_code == 200, second.text
    assert second.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    items = server.client.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert items[0]["content"][0]["input_audio"]["format"] == "wav"


@pytest.mark.parametrize(
    ("path", "place"),
    [(PATHS[0], "messages[0].content[0].input_audio.data"), (PATHS[1], "input[0].content[0].input_audio.data")],
)
def test_unusable_sounds_are_refused_by_the_clients_field(server: RunningServer, path: str, place: str) -> None:
    too_long = "the sound may be at most 30 s long (GENAI_MAX_AUDIO_SECONDS)"
    for part, rule in (
        (sound(b"no sound"), "cannot be used: the sound is not a flac, mp3"),
        (sound(encoded(tone(31.0))), f"cannot be used: {too_long}"),
        ({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}, "is not valid base64"),
    ):
        response = ask(server, path, part)
        assert refusal(response)[::2] == (400, place)
        assert rule in response.json()["error"]["message"]


@pytest.mark.parametrize(("path", "place"), [(PATHS[0], "messages[0].content[0]"), (PATHS[1], "input[0].content[0]")])
def test_models_without_sounds_get_a_note(server: RunningServer, path: str, place: str) -> None:
    response = ask(server, path, sound(encoded(sentence())), model="reads")
    assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, f"{place} (sound)")
    text_type = "input_text" if path == "/v1/responses" else "text"
    noted = answer(ask(server, path, {"type": text_type, "text": NOTE}, model="reads"))[1]
    assert abs(answer(response)[1] - noted) <= 2


@pytest.mark.parametrize(
    ("model", "part", "rule"),
    [
        ("reads", SOUND, 'is a sound, and this model reads text only; "hears" can read it'),
        ("sees", SOUND, 'is a sound, and this model reads text and images; "hears" can read it'),
        ("hears", IMAGE, 'is an image, and this model reads text and sounds; "sees" can read it'),
    ],
)
def test_strict_endpoint_names_the_models_that_take_a_part(
    server: RunningServer, model: str, part: dict[str, Any], rule: str
) -> None:
    asked = {"model": model, "messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
    response = server.client.post("/v1/chat", json=asked)
    assert refusal(response)[::2] == (400, "messages[0].content[0]")
    assert response.json()["error"]["message"].endswith(rule)


def test_model_lists_say_what_it_takes(server: RunningServer) -> None:
    entries = server.client.get("/v1/models").json()["data"]
    takes = {entry["id"]: {"audio", "vision"} & set(entry["capabilities"]) for entry in entries}
    assert takes == {"hears": {"audio"}, "sees": {"vision"}, "reads": set()}
