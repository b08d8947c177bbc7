"""Ollama's /api/chat and /api/generate over real sockets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from genai_server.http.leniency import IGNORED_HEADER
from tests import raw_http
from tests.model_edits import code_model
from tests.running_server import RunningServer, wait_until
from tests.scraped import scrape
from tests.server_here import run_here

END = "\x04"  # ends a raw prompt for the scripted runner
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call> {"name": "add", "arguments": {"a": 1}} </tool_call>'
FIGURES = {"prompt_eval_count", "eval_count", "total_duration"}
FIGURES |= {"load_duration", "prompt_eval_duration", "eval_duration"}
USER_KEY, ADMIN_KEY = "user-key-0123456789", "admin-key-0123456789"


def chat(server: RunningServer, content: str = "say hi", **fields: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": content}], "stream": False, **fields}
    return server.client.post("/api/chat", json=body)


def generate(server: RunningServer, prompt: str = "say hi", **fields: Any) -> httpx.Response:
    return server.client.post("/api/generate", json={"model": "demo", "prompt": prompt, "stream": False, **fields})


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def text_of(line: dict[str, Any]) -> str:
    """The text of an answer, or of a line of it, of either path."""
    return str(line["message"]["content"] if "message" in line else line["response"])


def test_an_answer_has_ollamas_form(scripted: RunningServer) -> None:
    found = chat(scripted).json()
    assert found["message"] == {"role": "assistant", "content": "hi"}
    assert (found["model"], found["done"], found["done_reason"], found["eval_count"]) == ("demo", True, "stop", 2)
    assert found["total_duration"] >= found["prompt_eval_duration"] + found["eval_duration"]
    generated = generate(scripted, system="Be brief.").json()
    assert (generated["response"], generated["done"], generated["done_reason"]) == ("hi", True, "stop")
    assert generated["prompt_eval_count"] > len("Be brief.say hi")
    assert found.keys() & generated.keys() >= FIGURES


@pytest.mark.parametrize("ask", [chat, generate])
def test_a_stream_has_a_line_for_each_token_and_one_end(scripted: RunningServer, ask: Any) -> None:
    found = lines(ask(scripted, "say abc", stream=True))
    assert [(text_of(line), line["done"]) for line in found] == [("a", False), ("b", False), ("c", False), ("", True)]
    assert found[-1].keys() >= FIGURES
    assert lines(ask(scripted, "say abc", stream=None))[-1]["done"]


def test_thoughts_and_calls_accompany_the_text(scripted: RunningServer) -> None:
    content = f"say <think>so</think>Sum: {CALL}"
    whole = chat(scripted, content, tools=[TOOL]).json()["message"]
    assert (whole["thinking"], whole["content"].strip()) == ("so", "Sum:")
    function = {"index": 0, "name": "add", "arguments": {"a": 1}}
    assert [call["function"] for call in whole["tool_calls"]] == [function]
    streamed = [line["message"] for line in lines(chat(scripted, content, tools=[TOOL], stream=True))]
    assert "".join(message.get("thinking", "") for message in streamed) == "so"
    assert [call["function"] for message in streamed for call in message.get("tool_calls", [])] == [function]


@pytest.mark.parametrize("ask", [chat, generate])
def test_an_answer_fits_its_format(demo: RunningServer, ask: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    assert text_of(ask(demo, "Give me a number.", format="json", options={"num_predict": 40}).json()).startswith("{")
    assert json.loads(text_of(ask(demo, format=schema).json()))["n"] in (1, 2)


def test_a_raw_prompt_has_no_template(scripted: RunningServer) -> None:
    found = generate(scripted, f"say hi{END}", raw=True).json()
    assert (found["response"], found["prompt_eval_count"]) == ("hi", len("say hi") + 1)
    assert generate(scripted, f"count 30{END}", raw=True).json()["response"].endswith("30")


def test_a_suffix_fills_in_the_middle(tmp_path: Path) -> None:
    code_model(tmp_path / "model")
    with run_here(tmp_path, "--model-dir", str(tmp_path / "model"), "--model-name", "demo") as server:
        assert generate(server, "a", suffix="b", options={"num_predict": 2}).json()["eval_count"] <= 2


def test_scores_come_with_the_text(scripted: RunningServer, demo: RunningServer) -> None:
    found = chat(demo, "Hello!", logprobs=True, top_logprobs=2, options={"num_predict": 3}).json()
    assert [len(token["top_logprobs"]) for token in found["logprobs"]] == [2] * found["eval_count"]
    streamed = lines(generate(demo, "Hello!", logprobs=True, stream=True, options={"num_predict": 3}))
    scored = [token for line in streamed for token in line.get("logprobs", [])]
    assert len(scored) == streamed[-1]["eval_count"]


def test_limit_above_the_context_is_capped(scripted: RunningServer) -> None:
    for response in (
        chat(scripted, options={"num_predict": 100_000}),
        generate(scripted, f"say hi{END}", raw=True, options={"num_predict": 100_000}),
    ):
        assert response.status_code == 200
        assert response.headers[IGNORED_HEADER].startswith("options.num_predict (capped to 19")


def test_options_and_tool_choice_at_the_top_level_are_honoured(scripted: RunningServer, demo: RunningServer) -> None:
    """ollama-ai-provider-v2 sends them there."""
    assert chat(scripted, "count 9", stop=["5"], options={"seed": 1}).json()["message"]["content"] == "1, 2, 3, 4, "
    assert chat(scripted, "count 9", max_output_tokens=4).json()["done_reason"] == "length"
    response = chat(scripted, "count 9", stop=["5"], options={"stop": ["4"]})
    assert response.json()["message"]["content"] == "1, 2, 3, "
    assert response.headers[IGNORED_HEADER] == "stop"
    for choice, calls in (("required", 1), ("none", 0)):
        found = chat(demo, "hi", tools=[TOOL], tool_choice=choice, max_output_tokens=80).json()["message"]
        assert len(found.get("tool_calls", [])) == calls


def test_each_line_is_one_chunk_of_the_body(scripted: RunningServer) -> None:
    """Some clients parse what a read returns, so no line is split over writes, and no write has two."""
    body = {"messages": [{"role": "user", "content": f"say x {CALL}"}], "tools": [TOOL]}
    sent = raw_http.post(scripted, "/api/chat", json=body, headers={"connection": "close"})
    chunks = raw_http.chunks(raw_http.asked(scripted, sent).body)
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    found = [json.loads(chunk) for chunk in chunks]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert any(line["message"].get("tool_calls") for line in found)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/api/chat", {"model": "gpt-9", "messages": []}, 404, 'model "gpt-9" not found, try pulling it first'),
        ("POST", "/api/generate", {"prompt": "x", "context": [1]}, 400, "context is not supported"),
        ("POST", "/api/generate", {"prompt": "x", "suffix": "end"}, 400, "suffix"),
        ("POST", "/api/embed", {"model": "demo", "input": "x"}, 400, 'model "demo" makes no embeddings'),
        ("POST", "/api/embed", {"model": "gpt-9", "input": "x"}, 404, "gpt-9"),
        ("POST", "/api/create", {"model": "x", "from": "y"}, 400, "/api/create is not supported"),
        ("POST", "/api/copy", {}, 400, "not supported"),
        ("POST", "/api/push", {}, 400, "not supported"),
        ("POST", "/api/blobs/sha256:00", {}, 400, "not supported"),
        ("DELETE", "/api/delete", {"model": "demo"}, 400, "not supported"),
        ("POST", "/api/nowhere", {}, 404, "Not Found"),
        ("POST", "/api/tags", {}, 405, "Method Not Allowed"),
    ],
)
def test_every_error_has_ollamas_form(
    scripted: RunningServer, method: str, path: str, body: Any, status: int, says: str
) -> None:
    response = scripted.client.request(method, path, json=body)
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert says in response.json()["error"]


def test_a_blob_is_not_there(scripted: RunningServer) -> None:
    assert scripted.client.head("/api/blobs/sha256:00").status_code == 400


def test_an_error_after_the_headers_is_the_last_line(scripted: RunningServer) -> None:
    found = lines(chat(scripted, "fail at 2; say abc", stream=True))
    assert [list(line) for line in found[2:]] == [["error"]]
    assert chat(scripted, "fail at 2; say abc").status_code == 500


def test_json_content_type_is_optional_except_for_web_pages(scripted: RunningServer) -> None:
    text = json.dumps({"messages": [{"role": "user", "content": "say hi"}], "stream": False})

    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return scripted.client.post("/api/chat", content=text, headers=named).status_code

    for kind in ({"content_type": "application/x-www-form-urlencoded"}, {}):
        assert status(**kind) == 200
        assert status(**kind, origin="http://localhost:3000") == status(**kind, sec_fetch_site="cross-site") == 400
    assert status(content_type="text/plain") == 400


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/chat"])
def test_a_body_of_bytes_counts_as_json(scripted: RunningServer, path: str) -> None:
    text = json.dumps({"messages": [{"role": "user", "content": "say hi"}]})
    for kind in ("application/octet-stream", "Application/Octet-Stream; charset=utf-8"):
        answer = scripted.client.post(path, content=text, headers={"content-type": kind})
        assert answer.status_code == 200, answer.text


def test_disconnected_clients_answer_ends(scripted: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "delay 0.05; count 1000"}]}
    with httpx.stream("POST", f"{scripted.url}/api/chat", json=body, timeout=90) as response:
        next(response.iter_lines())
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


@pytest.mark.parametrize(("path", "more"), [("/api/chat", {}), ("/api/chat", {"messages": []}), ("/api/generate", {})])
def test_empty_request_loads_the_model(scripted: RunningServer, path: str, more: Any) -> None:
    found = scripted.client.post(path, json={"model": "demo:latest", **more}).json()
    assert (found["done"], found["done_reason"], found["model"]) == (True, "load", "demo:latest")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"GENAI_API_KEYS": f"user:{USER_KEY}", "GENAI_ADMIN_API_KEY": ADMIN_KEY, "GENAI_RATE_PER_KEY": "60"}
    more = {"GENAI_CORS_ORIGINS": "https://app.example", "GENAI_MAX_BODY_BYTES": "2000"}
    with run_here(tmp_path_factory.mktemp("keyed"), "--device", "scripted", settings=settings | more) as server:
        yield server


def _state(server: RunningServer, key: str) -> str:
    (entry,) = server.client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).json()["data"]
    return str(entry["state"])


def test_a_model_is_kept_as_long_as_an_operator_says(keyed: RunningServer) -> None:
    admin, user = ({"authorization": f"Bearer {key}"} for key in (ADMIN_KEY, USER_KEY))
    body = {"model": "demo", "prompt": "say hi", "stream": False}

    def ask(headers: dict[str, str], **fields: Any) -> httpx.Response:
        return keyed.client.post("/api/generate", json=body | fields, headers=headers)

    response = ask(user, keep_alive=0)
    assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, "keep_alive")
    refused = ask(user, prompt="", keep_alive=0)
    assert (refused.status_code, refused.json()["error"].startswith("keep_alive: ")) == (403, True)
    assert _state(keyed, USER_KEY) == "ready"
    assert IGNORED_HEADER not in ask(admin, keep_alive="10m").headers
    expires = keyed.client.get("/api/ps", headers=user).json()["models"][0]["expires_at"]
    assert ask(admin, keep_alive=-1).status_code == 200
    wait_until(lambda: keyed.client.get("/api/ps", headers=user).json()["models"][0]["expires_at"][:4] > expires[:4])
    found = ask(admin, prompt="", keep_alive=0).json()
    assert (found["done"], found["done_reason"]) == (True, "unload")
    wait_until(lambda: _state(keyed, USER_KEY) == "unloaded")
    assert keyed.client.get("/api/ps", headers=user).json() == {"models": []}
    assert ask(user).json()["response"] == "hi"  # it is reloaded and stays loaded
    assert ask(admin, keep_alive="0s").json()["response"] == "hi"
    wait_until(lambda: _state(keyed, USER_KEY) == "unloaded")


def test_keys_bodies_and_web_pages_are_treated_as_on_other_paths(keyed: RunningServer) -> None:
    for method, path in (("GET", "/api/tags"), ("GET", "/api/version"), ("POST", "/api/chat"), ("POST", "/api/pull")):
        response = keyed.client.request(method, path, json={} if method == "POST" else None)
        assert (response.status_code, list(response.json())) == (401, ["error"])
    user = {"authorization": f"Bearer {USER_KEY}"}
    assert keyed.client.post("/api/pull", json={"model": "org/name"}, headers=user).status_code == 403
    too_large = keyed.client.post("/api/chat", json={"messages": ["x" * 3000]}, headers=user)
    assert (too_large.status_code, "GENAI_MAX_BODY_BYTES" in too_large.json()["error"]) == (400, True)
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    allowed = keyed.client.options("/api/chat", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"


def test_requests_count_in_the_metrics_and_have_an_id(own_scripted: RunningServer) -> None:
    def ended() -> float:
        return scrape(own_scripted).value("request_success_total")

    before = ended()
    assert chat(own_scripted, stream=True).headers["x-request-id"]
    wait_until(lambda: ended() == before + 1)
