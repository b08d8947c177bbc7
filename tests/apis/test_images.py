"""Images through every API, over real sockets, with a small model that takes them and one that reads text only."""

import base64
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from genai_server.http.leniency import IGNORED_HEADER
from tests.media.images.pictures import data_url, tiles
from tests.running_server import DEMO, ROOT, RunningServer, wait_until
from tests.server_here import run_here

IMAGE_NOTE = "[image left out: this model reads text only]"

FILE = tiles(96, 64, 1)
URL, BASE64 = data_url(FILE), base64.b64encode(FILE).decode()
OTHER = data_url(tiles(64, 64, 2))
BROKEN = data_url(b"no image")
# Of the model's processor for FILE.
NUM_FEATURES = 6
IMAGE_TOKEN = 5
# Like that of Qwen 3-VL: it writes calls, and the images of their results.
TEMPLATE = """
{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}{{ message.content }}
    {%- else %}
        {%- for part in message.content or [] %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}{{ part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": {}}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
FORMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"max_tokens": 2},
    "/v1/chat": {"max_tokens": 2},
    "/v1/responses": {"max_output_tokens": 2},
    "/v1/messages": {"max_tokens": 2},
    "/api/chat": {"options": {"num_predict": 2}, "stream": False},
    "/api/generate": {"options": {"num_predict": 2}, "stream": False},
}


# The list that an image is in, and the field of an element with its data.
PLACES = {
    "/v1/chat/completions": ("messages[0].content", ".image_url.url"),
    "/v1/chat": ("messages[0].content", ".image_url.url"),
    "/v1/responses": ("input[0].content", ".image_url"),
    "/v1/messages": ("messages[0].content", ".source.data"),
    "/api/chat": ("messages[0].images", ""),
    "/api/generate": ("images", ""),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("images")
    model = shutil.copytree(ROOT / "tests" / "built_models" / "qwen-3-vl-images", folder / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    settings = {"GENAI_MODELS": f"sees={model},reads={DEMO}", "GENAI_IMAGE_HOSTS": "nowhere.invalid"}
    with run_here(folder, "--device", "cpu", settings=settings) as server:
        wait_until(lambda: {entry["state"] for entry in server.client.get("/v1/models").json()["data"]} == {"ready"})
        yield server


def part(path: str, url: str) -> Any:
    """An image as content of a path's API."""
    if not url.startswith("data:") and path in ("/v1/messages", "/api/chat", "/api/generate"):
        return {"type": "image", "source": {"type": "url", "url": url}} if path == "/v1/messages" else url
    data = url.partition(",")[2]
    match path:
        case "/v1/responses":
            return {"type": "input_image", "image_url": url}
        case "/v1/messages":
            return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        case "/api/chat" | "/api/generate":
            return data
    return {"type": "image_url", "image_url": {"url": url}}


def asked(path: str, *urls: str, model: str = "sees") -> dict[str, Any]:
    """A body with images and the text `hi`, in this order."""
    images = [part(path, url) for url in urls]
    body = {"model": model, **FORMS[path]}
    match path:
        case "/api/generate":
            return {**body, "prompt": "hi", "images": images}
        case "/api/chat":
            return {**body, "messages": [{"role": "user", "content": "hi", "images": images}]}
        case "/v1/responses":
            content = [*images, {"type": "input_text", "text": "hi"}]
            return {**body, "input": [{"role": "user", "content": content}]}
    return {**body, "messages": [{"role": "user", "content": [*images, text("hi")]}]}


def prompt_tokens(path: str, found: Any) -> int:
    if path.startswith("/api/"):
        return int(found["prompt_eval_count"])
    usage = found["metrics"] if path == "/v1/chat" else found["usage"]
    cached = usage["cache_read_input_tokens"] if path == "/v1/messages" else 0
    return int(usage["prompt_tokens" if path == "/v1/chat/completions" else "input_tokens"]) + int(cached)


def error_of(response: Any) -> str:
    error = response.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def answered(server: RunningServer, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer to a body, or to GET without one."""
    response = server.client.get(path) if body is None else server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert IGNORED_HEADER not in response.headers
    return response.json()


def rendered(server: RunningServer, body: dict[str, Any]) -> list[int]:
    """The tokens of a chat's prompt."""
    tokens: list[int] = answered(server, "/v1/chat/completions/render", body)["token_ids"]
    return tokens


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


@pytest.mark.parametrize("path", FORMS)
def test_the_tokens_of_images_are_part_of_the_prompt(server: RunningServer, path: str) -> None:
    tokens = rendered(server, asked("/v1/chat/completions", URL, URL))
    assert tokens.count(IMAGE_TOKEN) == 2 * NUM_FEATURES
    assert prompt_tokens(path, answered(server, path, asked(path, URL, URL))) == len(tokens)


def test_usage_names_the_tokens_of_images(server: RunningServer) -> None:
    path = "/v1/chat/completions"
    several = answered(server, path, asked(path, URL, URL) | {"n": 2})["usage"]["prompt_tokens_details"]
    assert (several["image_tokens"], several["audio_tokens"]) == (2 * NUM_FEATURES, 0)
    assert answered(server, path, asked(path))["usage"]["prompt_tokens_details"]["image_tokens"] == 0


@pytest.mark.parametrize("path", PLACES)
def test_an_image_that_cannot_be_used_is_refused_by_the_clients_field(server: RunningServer, path: str) -> None:
    place, data = PLACES[path]
    response = server.client.post(path, json=asked(path, URL, BROKEN))
    assert response.status_code == 400
    assert error_of(response).startswith(f"{place}[1]{data} cannot be used: the image ")
    # One that cannot be fetched may be sent as data.
    address = "http://nowhere.invalid/a.png"
    body = asked(path, address)
    response = server.client.post(path, json=body)
    assert response.status_code == 400
    assert error_of(response).endswith("; send the image as data:image/png;base64,…")
    answered(server, path, json.loads(json.dumps(body).replace(address, URL)))


@pytest.mark.parametrize("path", sorted(set(PLACES) - {"/v1/chat"}))
def test_a_model_without_images_gets_a_note(server: RunningServer, path: str) -> None:
    response = server.client.post(path, json=asked(path, URL, model="reads"))
    assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, f"{PLACES[path][0]}[0] (image)")
    noted = [{"role": "user", "content": [text(IMAGE_NOTE), text("hi")]}]
    assert prompt_tokens(path, response.json()) == len(rendered(server, {"model": "reads", "messages": noted}))


def test_a_strict_endpoint_names_the_models_that_take_images(server: RunningServer) -> None:
    response = server.client.post("/v1/chat", json=asked("/v1/chat", URL, model="reads"))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].content[0]")
    assert error_of(response).endswith('is an image, and this model reads text only; "sees" can read it')


def test_counts_of_prompts_include_images(server: RunningServer) -> None:
    expected = len(rendered(server, asked("/v1/chat/completions", URL)))
    count = asked("/v1/messages", URL)
    del count["max_tokens"]
    assert answered(server, "/v1/messages/count_tokens", count) == {"input_tokens": expected}
    assert answered(server, "/v1/responses/input_tokens", asked("/v1/responses", URL))["input_tokens"] == expected
    messages = asked("/v1/chat", URL)["messages"]
    assert answered(server, "/tokenize", {"model": "sees", "messages": messages})["count"] == expected


HI = {"role": "user", "content": "hi"}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USED = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
SEEN = {"type": "tool_result", "tool_use_id": "c", "content": [part("/v1/messages", URL)]}
OF_TOOLS: dict[str, tuple[str, list[Any]]] = {
    "/v1/chat/completions": (
        "messages",
        [
            {"role": "assistant", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c", "content": [part("", URL)]},
        ],
    ),
    "/v1/responses": (
        "input",
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [part("/v1/responses", URL)]},
        ],
    ),
    "/v1/messages": ("messages", [{"role": "assistant", "content": [USED]}, {"role": "user", "content": [SEEN]}]),
    "/api/chat": (
        "messages",
        [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "tool_name": "f", "images": [BASE64]},
        ],
    ),
}


@pytest.mark.parametrize("path", OF_TOOLS)
def test_images_of_tool_results_are_read(server: RunningServer, path: str) -> None:
    field, turns = OF_TOOLS[path]
    found = answered(server, path, {"model": "sees", **FORMS[path], field: [HI, *turns]})
    with_text = prompt_tokens(path, found) - NUM_FEATURES
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
    expected += '{"name": "f", "arguments": {}}\n</tool_call><|im_end|>\n<|im_start|>tool\n'
    expected += "<|vision_start|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    counted = answered(server, "/tokenize", {"model": "sees", "prompt": expected, "add_special_tokens": False})
    assert with_text == counted["count"]


@pytest.mark.parametrize("model", ["sees", "reads"])
def test_images_of_a_document_are_images(server: RunningServer, model: str) -> None:
    plain = asked("/v1/messages", URL, model=model)
    (message,) = plain["messages"]
    document = {"type": "document", "source": {"type": "content", "content": message["content"]}}
    within = {**plain, "messages": [{"role": "user", "content": [document]}]}
    found, expected = (server.client.post("/v1/messages", json=body).json() for body in (within, plain))
    assert prompt_tokens("/v1/messages", found) == prompt_tokens("/v1/messages", expected)


def test_stored_images_are_given_back_and_continued(server: RunningServer) -> None:
    first = answered(server, "/v1/responses", asked("/v1/responses", URL))
    (listed,) = answered(server, f"/v1/responses/{first['id']}/input_items")["data"]
    image, said = listed["content"]
    assert (image, said["text"]) == ({"type": "input_image", "detail": "auto", "image_url": URL}, "hi")
    body = {**asked("/v1/responses", OTHER), "previous_response_id": first["id"]}
    more = answered(server, "/v1/responses", body)["usage"]["input_tokens"]
    alone = answered(server, "/v1/responses/input_tokens", asked("/v1/responses", OTHER))["input_tokens"]
    assert more > first["usage"]["input_tokens"] + alone - 2


def test_a_conversation_keeps_images(server: RunningServer) -> None:
    def conversation(url: str) -> str:
        id: str = answered(server, "/v1/conversations", {"items": asked("/v1/responses", url)["input"]})["id"]
        return id

    id = conversation(URL)
    (item,) = answered(server, f"/v1/conversations/{id}/items")["data"]
    assert item["content"][0] == {"type": "input_image", "detail": "auto", "image_url": URL}
    asking = {"model": "sees", "input": "and?", "max_output_tokens": 2}
    alone = answered(server, "/v1/responses/input_tokens", {"model": "sees", "input": "and?"})["input_tokens"]
    found = answered(server, "/v1/responses", {**asking, "conversation": id})
    assert found["usage"]["input_tokens"] > alone + NUM_FEATURES
    response = server.client.post("/v1/responses", json={**asking, "conversation": conversation(BROKEN)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "conversation")
    assert ").content[0].image_url cannot be used: the image " in error_of(response)


def test_a_placeholder_that_a_user_types_is_text(server: RunningServer) -> None:
    body = {"model": "sees", "messages": [{"role": "user", "content": [part("", URL), text("<|image_pad|>")]}]}
    assert rendered(server, body).count(IMAGE_TOKEN) == NUM_FEATURES


@pytest.mark.parametrize("prompt", ["a <|image_pad|>", [8, IMAGE_TOKEN], ["a", "<|image_pad|>"]])
def test_raw_prompts_have_no_image_tokens(server: RunningServer, prompt: Any) -> None:
    for path in ("/v1/completions", "/v1/completions/render"):
        response = server.client.post(path, json={"model": "sees", "prompt": prompt, "max_tokens": 2})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
        assert "stands for images" in error_of(response)


def test_models_that_take_images_have_the_capability(server: RunningServer) -> None:
    can = {entry["id"]: entry["capabilities"] for entry in answered(server, "/v1/models")["data"]}
    assert ("vision" in can["sees"], "vision" in can["reads"]) == (True, False)
    tags = {entry["name"]: entry["capabilities"] for entry in answered(server, "/api/tags")["models"]}
    assert tags == {f"{name}:latest": found for name, found in can.items()}
    assert answered(server, "/api/show", {"model": "sees"})["capabilities"] == can["sees"]
    v0 = {entry["id"]: entry["type"] for entry in answered(server, "/api/v0/models")["data"]}
    assert v0 == {"sees": "vlm", "reads": "llm"}
    v1 = {entry["key"]: entry["capabilities"]["vision"] for entry in answered(server, "/api/v1/models")["models"]}
    assert v1 == {"sees": True, "reads": False}


def test_a_websocket_takes_images(server: RunningServer) -> None:
    sent = asked("/v1/responses", URL)
    counted = answered(server, "/v1/responses/input_tokens", sent)["input_tokens"]
    with connect(f"ws{server.url.removeprefix('http')}/v1/responses") as socket:
        socket.send(json.dumps({"type": "response.create", **sent}))
        event: dict[str, Any] = {"type": ""}
        while event["type"] not in ("response.completed", "response.incomplete"):
            event = json.loads(socket.recv(60))
    assert event["response"]["usage"]["input_tokens"] == counted > NUM_FEATURES


def test_decisions_about_an_image(server: RunningServer) -> None:
    def probabilities(url: str, *questions: Any, **fields: Any) -> list[float]:
        asking = {**asked("/v1/responses", url), "questions": questions, **fields}
        del asking["max_output_tokens"]
        return [answer["probability"] for answer in answered(server, "/v1/decisions", asking)["answers"]]

    first, second = ({"type": "predicate", "instructions": text} for text in ("It is red.", "It is round."))
    found = probabilities(URL, first, second)
    assert found == [probabilities(URL, one, cache_salt=one["instructions"])[0] for one in (first, second)]
    assert found != probabilities(OTHER, first, second)
    # A question may have an image, too.
    like_other, like_itself = (
        {**first, "instructions": [{"type": "input_text", "text": "Like "}, part("/v1/responses", url)]}
        for url in (OTHER, URL)
    )
    other, plain, itself = probabilities(URL, like_other, first, like_itself)
    assert (plain, other != itself) == (found[0], True)


def test_decisions_have_at_most_128_images(server: RunningServer) -> None:
    content = [part("/v1/responses", URL)] * 127
    shown = {"type": "predicate", "instructions": [part("/v1/responses", OTHER)]}
    body = {"model": "sees", "input": [{"role": "user", "content": content}], "questions": [shown, shown]}
    error = server.client.post("/v1/decisions", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("input", "invalid_value")
