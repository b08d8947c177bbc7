"""Constrained answers fit their constraint, whatever the model prefers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.running_server import DEMO, RunningServer, body, command_line, has_ended, refusal, run_server, wait_until
from tests.server_here import run_here

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Paris", "Rome"]}, "big": {"type": "boolean"}},
    "required": ["name", "big"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
SCHEMA_FORMAT = {"type": "json_schema", "schema": SCHEMA}
FLAT_FORMAT = {**SCHEMA_FORMAT, "name": "n", "strict": True}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
OF_FORMAT = "response_format.json_schema.schema"


def _asked(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/chat/completions", json=body("Hello!", **fields))


def _choice(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}}, "[a-f]{3}-[0-9]{2}"),
        ({"structured_outputs": {"choice": ["yes", "no way", "ünsure"]}}, "yes|no way|ünsure"),
        ({"structured_outputs": {"grammar": 'start: "a" (" b" | " c")'}}, "a (b|c)"),
        ({"structured_outputs": {"grammar": 'root ::= "a" rest\nrest ::= " b" | " c"'}}, "a (b|c)"),
        ({"structured_outputs": {"json": {"enum": [1, 2]}}}, "[12]"),
        ({"structured_outputs": {"json": '{"const": "x"}'}}, '"x"'),
        ({"response_format": {"type": "text"}}, "(?s).+"),
        ({"response_format": {"type": "json_object", "schema": {"enum": [1, 2]}}}, "[12]"),
    ],
    ids=lambda value: json.dumps(value),
)
def test_an_answer_fits_what_it_is_asked_to_fit(demo: RunningServer, fields: dict[str, Any], pattern: str) -> None:
    choice = _choice(_asked(demo, max_tokens=100, **fields))
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["message"]["content"])


OTHER_NAMES = [
    ({"guided_json": {"enum": [1, 2]}}, "[12]"),
    ({"guided_json": '{"const": "x"}'}, '"x"'),
    ({"guided_regex": "[a-f]{3}"}, "[a-f]{3}"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_grammar": 'start: "a" (" b" | " c")'}, "a (b|c)"),
    ({"regex": "[a-f]{3}"}, "[a-f]{3}"),
    ({"ebnf": 'start: "a" (" b" | " c")'}, "a (b|c)"),
    ({"ebnf": "root ::= [a-c]{2} # as SGLang has it"}, "[a-c]{2}"),
    # The form in which guidance sends them.
    ({"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}}, "a"),
]


@pytest.mark.parametrize(("fields", "pattern"), OTHER_NAMES, ids=str)
def test_other_servers_names_constrain_answers_too(demo: RunningServer, fields: dict[str, Any], pattern: str) -> None:
    choice = _choice(_asked(demo, max_tokens=100, **fields))
    text = _choice(demo.client.post("/v1/completions", json={"prompt": "Hello!", "max_tokens": 100, **fields}))
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["message"]["content"])
    assert re.fullmatch(pattern, text["text"])


def test_format_binds_answers_that_are_not_calls(demo: RunningServer) -> None:
    form = {"type": "json_object"}
    message = _choice(_asked(demo, max_tokens=100, tools=[TOOL], response_format=form, temperature=0))["message"]
    assert message.get("tool_calls") or message["content"].startswith("{")


def _format(schema: Any, *, strict: bool = False) -> dict[str, Any]:
    given = {"name": "x", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": given}}


def _forced(*, strict: bool, **schema: Any) -> dict[str, Any]:
    tools = [TOOL, {"type": "function", "function": {"name": "wrong", "parameters": schema, "strict": strict}}]
    return {"tools": tools, "tool_choice": "required"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        # errors that only the engine finds, because it knows the model's tokens
        ({"structured_outputs": {"grammar": "start: <[999999]>"}}, "structured_outputs.grammar", "999999"),
        ({"structured_outputs": {"regex": "(?=x)"}}, "structured_outputs.regex", "look-around"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json", "an object"),
        ({"structured_outputs": {"choice": ["a" * 300_000]}}, "structured_outputs.choice", "at most 262144"),
        ({"structured_outputs": {"regex": "a" * 300_000}}, "structured_outputs.regex", "at most 262144"),
        (_format({"uniqueItems": True}, strict=True), OF_FORMAT, "uniqueItems"),
        ({**_format({"type": "strin"}), "tools": [TOOL]}, OF_FORMAT, "strin"),
        (_forced(strict=True, properties={"a": {"type": "text"}}), "tools", 'given "text"'),
        (_forced(strict=True, type="string"), "tools", "must have objects as their parameters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_grammar_is_refused_by_field_with_the_reason(
    demo: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    response = _asked(demo, **fields)
    message = response.json()["error"]["message"]
    assert refusal(response)[::2] == (400, param)
    assert "must" in message or "at most" in message
    assert words in message


def test_ignored_schema_keywords_are_named(demo: RunningServer) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}
    response = _asked(demo, max_tokens=20, **_format(schema))
    assert response.headers["x-genai-ignored"] == f"{OF_FORMAT}: uniqueItems"
    assert set(json.loads(_choice(response)["message"]["content"])) <= {1, 2}


def test_grammar_that_becomes_too_ambiguous_is_a_client_error(scripted: RunningServer) -> None:
    ambiguous = {"grammar": 'start: a\na: a a | "x" | "x" a "x" a'}
    asked = body("say " + "x" * 1000, max_tokens=400, structured_outputs=ambiguous)
    assert refusal(scripted.client.post("/v1/chat/completions", json=asked))[:2] == (400, "grammar_failed")


_CHAIN = "start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(3000)) + '\na3000: "x"'
_TIED = [{"type": "integer", "multipleOf": int("1" * 4000)}, {"multipleOf": int("3" * 4000)}]


_INT64 = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (_format(_INT64, strict=True), OF_FORMAT),
        (_format({"type": "integer", "minimum": -(2**70), "maximum": -(2**65)}, strict=True), OF_FORMAT),
        (_forced(strict=True, properties={"a": _INT64}), "tools"),
        ({"structured_outputs": {"grammar": _CHAIN}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"allOf": _TIED}}}, "structured_outputs.json"),
    ],
    ids=["int64", "beyond int64", "in a tool", "a chain of rules", "thousands of digits"],
)
def test_grammar_that_crashes_the_compiler_leaves_engines_alone(
    demo: RunningServer, fields: dict[str, Any], param: str
) -> None:
    before = demo.device("cpu")
    assert refusal(_asked(demo, max_tokens=2, **fields))[::2] == (400, param)
    assert demo.process.poll() is None
    after = demo.device("cpu")
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


def test_killed_grammar_checker_is_replaced(own_folder: Path) -> None:
    asked = body("say 7", structured_outputs={"regex": "[0-9]"}, max_tokens=2)
    with run_server(own_folder, "--device", "scripted") as server:
        for number in range(2):
            asked["structured_outputs"] = {"regex": f"[0-9{number}]"}
            assert server.client.post("/v1/chat/completions", json=asked).status_code == 200
            _kill_the_checker(server)
        assert server.client.get("/metrics").text.count('genai:grammar_checks_total{result="passed"} 2.0') == 1


def _kill_the_checker(server: RunningServer) -> None:
    family = psutil.Process(server.process.pid).children(recursive=True)
    (checker,) = (process for process in family if "genai_server.grammar_checker.compiler" in command_line(process))
    checker.kill()
    wait_until(lambda: has_ended(checker))


@pytest.mark.parametrize("grammar", ['start: /x*/ "x"', "start: A A\nA: /x+/", 'start: "say "? B "y"\nB: /[a-z ]*/'])
def test_grammar_without_an_end_stops_at_the_limit(scripted: RunningServer, grammar: str) -> None:
    engine = scripted.device("scripted:0")["pid"]
    asked = body("say " + "x" * 40, max_tokens=30, device="scripted:0", structured_outputs={"grammar": grammar})
    choice = scripted.client.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "x" * 30)
    assert scripted.device("scripted:0")["pid"] == engine


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The demo model with a template whose prompts close the reasoning where thinking is off."""
    folder = tmp_path_factory.mktemp("thinking")
    template = (DEMO / "chat_template.jinja").read_text(encoding="utf-8")
    template += "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    (folder / "template.jinja").write_text(template, encoding="utf-8")
    with run_here(folder, "--model-dir", str(DEMO), "--chat-template", str(folder / "template.jinja")) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "off", "fields"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "none"}, {"response_format": FORMAT, "max_tokens": 40}),
        ("/v1/chat", {"chat_template_kwargs": {"enable_thinking": False}}, {"response_format": FORMAT}),
        ("/v1/responses", {"reasoning": {"effort": "none"}}, {"text": {"format": FLAT_FORMAT}}),
        ("/v1/messages", {"thinking": {"type": "disabled"}}, {"output_config": {"format": SCHEMA_FORMAT}}),
    ],
)
def test_a_format_cannot_be_escaped_by_reasoning_that_the_prompt_has_closed(
    thinking: RunningServer, path: str, off: dict[str, Any], fields: dict[str, Any]
) -> None:
    """The model prefers the marker that opens reasoning to everything else."""
    (opening,) = thinking.client.post("/tokenize", json={"prompt": "<", "add_special_tokens": False}).json()["tokens"]
    asked = {"input": "Hello!", "max_output_tokens": 40} if path == "/v1/responses" else body("Hello!", max_tokens=40)
    sent = {**asked, **fields, "logit_bias": {str(opening): 60}}
    escaped, held = (thinking.client.post(path, json={**sent, **more}) for more in ({}, off))
    assert (escaped.status_code, held.status_code) == (200, 200), held.text
    answer = re.compile(r'\\"name\\": \\"(Paris|Rome)\\"')
    assert not answer.search(escaped.text)
    assert "<" in escaped.text
    assert answer.search(held.text), held.text
    assert "<" not in held.text
