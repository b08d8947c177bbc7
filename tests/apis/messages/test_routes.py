"""Anthropic's Messages API, through Anthropic's client where possible."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from pydantic import BaseModel

from genai_server.http.leniency import CONVERTED_HEADER
from tests.running_server import RunningServer
from tests.server_here import run_here

TOOLS: list[Any] = [{"name": "add", "input_schema": {"type": "object"}}]
CALL = '<tool_call> {"name": "add", "arguments": {"a": 1}} </tool_call>'
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}},
        "required": ["city"],
    },
}
UNKNOWN_MODEL = {"model": "x", "messages": [{"role": "user", "content": "x"}]}
ERRORS: dict[str, type[anthropic.APIStatusError]] = {
    "invalid_request_error": anthropic.BadRequestError,
    "not_found_error": anthropic.NotFoundError,
    "api_error": anthropic.InternalServerError,
}
SCRIPT = f"say <think>so</think>Sum: {CALL}"


class Answer(BaseModel):
    """The schema of an answer."""

    right: bool
    number: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def client(scripted: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def demo_client(demo: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        yield client


def _turn(content: str) -> Any:
    return {"role": "user", "content": content}


def _asked(*messages: Any, max_tokens: int = 200, **fields: Any) -> Any:
    turns = [_turn(message) if isinstance(message, str) else message for message in messages]
    return {"model": "demo", "max_tokens": max_tokens, "messages": turns, **fields}


def _create(client: Anthropic, *messages: Any, **fields: Any) -> Any:
    return client.messages.create(**_asked(*messages, **fields))


def _streamed(client: Anthropic, *messages: Any, **fields: Any) -> Any:
    with client.messages.stream(**_asked(*messages, **fields)) as stream:
        return stream.get_final_message()


def _text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _calls(message: Any) -> list[Any]:
    return [block for block in message.content if block.type == "tool_use"]


def test_a_message_has_anthropics_form(client: Anthropic) -> None:
    message = _create(client, "say hi", system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", "demo")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "hi"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.output_tokens, message.usage.input_tokens > len("Be brief.say hi")) == (2, True)
    assert message.id == f"msg_{message._request_id.removeprefix('req-')}"


def test_a_stream_accumulates_to_the_same_message(client: Anthropic) -> None:
    plain = _create(client, SCRIPT, tools=TOOLS)
    with client.messages.stream(**_asked(SCRIPT, tools=TOOLS)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    id = {"id": ""}
    assert [block.to_dict() | id for block in final.content] == [block.to_dict() | id for block in plain.content]
    assert (final.stop_reason, final.usage) == (plain.stop_reason, plain.usage)


def test_thinking_is_signed_and_can_be_sent_back_as_it_is(client: Anthropic) -> None:
    question = "say <think>hm</think>yes"
    for message in (_create(client, question), _streamed(client, question)):
        (thinking, _) = message.content
        assert (thinking.thinking, bool(thinking.signature)) == ("hm", True)
        back = {"role": "assistant", "content": [block.to_dict() for block in message.content]}
        assert _text(_create(client, question, back, "say z")) == "z"


def test_text_comes_token_by_token(client: Anthropic) -> None:
    with client.messages.stream(**_asked("say abc")) as stream:
        assert list(stream.text_stream) == ["a", "b", "c"]
        assert stream.request_id is not None


def test_thoughts_can_be_left_out(client: Anthropic) -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    (thought, text) = _create(client, "say <think>so</think>hi", thinking=thinking).content
    assert (thought.type, thought.thinking, text.text) == ("thinking", "", "hi")


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_counting_counts_the_tokens_of_the_prompt(scripted: RunningServer, prefix: str) -> None:
    body = {"messages": [_turn("say hi")], "system": "ä"}
    count = len("ä\nsay hi\n\x04".encode())
    counted = scripted.client.post(f"{prefix}/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": count}
    usage = scripted.client.post(f"{prefix}/messages", json={**body, "max_tokens": 9}).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


@pytest.mark.parametrize(
    ("content", "fields", "kind", "words"),
    [
        ("x", {"thinking": {"type": "on"}}, "invalid_request_error", "thinking.type must"),
        ("x", {"model": "claude"}, "not_found_error", '"claude" is not served'),
        ("fail at 1; say abc", {}, "api_error", "scripted failure"),
        ("x" * 2100, {}, "invalid_request_error", "prompt is too long: 2102 tokens > 2000 maximum"),
    ],
)
def test_an_error_is_one_of_the_clients_own(
    client: Anthropic, content: str, fields: dict[str, Any], kind: str, words: str
) -> None:
    with pytest.raises(ERRORS[kind]) as caught:
        client.messages.create(**_asked(content, max_tokens=9) | fields)
    assert (caught.value.type, words in (caught.value.api_message or "")) == (kind, True)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["request_id"] == caught.value.request_id is not None


def test_an_error_in_a_stream_is_an_event_and_the_last(client: Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        _streamed(client, "fail at 1; say abc", max_tokens=9)
    assert (caught.value.type, caught.value.api_message) == ("api_error", "scripted failure")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind"),
    [
        ("GET", "/v1/messages", "", 405, "invalid_request_error"),
        ("GET", "/v1/messages/batches", "", 404, "not_found_error"),
        ("POST", "/v1/messages", '{"messages": [', 400, "invalid_request_error"),
        ("POST", "/messages", " " * 1_100_000, 400, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens", json.dumps(UNKNOWN_MODEL), 404, "not_found_error"),
    ],
)
def test_every_error_of_these_paths_has_anthropics_form(
    scripted: RunningServer, method: str, path: str, content: str, status: int, kind: str
) -> None:
    response = scripted.client.request(method, path, content=content, headers={"content-type": "application/json"})
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_clients_own_loop_runs_a_tool_and_sends_its_result(demo_client: Anthropic) -> None:
    called = []

    @beta_tool  # type: ignore[untyped-decorator]
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        called.append(city)
        return '{"temperature": 21}'

    asked = _asked("What is the weather in Paris?", max_tokens=100, tools=[get_weather])
    last = demo_client.beta.messages.tool_runner(**asked).until_done()
    assert (called, "21" in _text(last)) == (["Paris"], True)


def test_an_answer_fits_the_class_that_it_is_parsed_to(demo_client: Anthropic) -> None:
    parsed = demo_client.messages.parse(**_asked("What is 2 + 3?", output_format=Answer)).parsed_output
    assert isinstance(parsed, Answer)
    assert parsed == _streamed(demo_client, "What is 2 + 3?", output_format=Answer).parsed_output


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_forced(demo_client: Anthropic, choice: Any) -> None:
    message = _create(demo_client, "Hello!", max_tokens=100, tools=[WEATHER], tool_choice=choice)
    (call,) = message.content
    assert (message.stop_reason, call.name, set(call.input)) == ("tool_use", "get_weather", {"city"})


def test_turn_started_by_the_client_continues(demo_client: Anthropic) -> None:
    begun = {"role": "assistant", "content": "1, 2, 3, 4, 5,"}
    assert _text(_create(demo_client, "Count from 1 to 9.", begun, max_tokens=50)) == " 6, 7, 8, 9"


CLIENT_TOOLS: list[Any] = [
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 1000},
    {"type": "memory_20250818", "name": "memory"},
]


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call> {json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)} </tool_call>"


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anthropic]:
    """A client of a server with a context for many turns."""
    settings = {"GENAI_DEVICE": "scripted", "GENAI_MAX_LENGTH": "20000"}
    with (
        run_here(tmp_path_factory.mktemp("patient"), settings=settings) as server,
        Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("ask", [_create, _streamed], ids=["plain", "streamed"])
def test_tools_known_by_their_types_are_called_by_the_client(patient: Anthropic, ask: Any) -> None:
    """Ten turns: the model calls the tools by turns, and thinks before each call."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("bash", {"command": "ls"}),
        ("str_replace_based_edit_tool", {"command": "view", "path": "/a.txt", "view_range": [1, -1]}),
        ("memory", {"command": "create", "path": "/memories/a.md", "file_text": "ä"}),
    ] * 3
    script = [f"script: say <think>first</think>{_call(calls[0][0], **calls[0][1])}"]
    for turn, (name, arguments) in enumerate(calls[1:], 1):
        script.append(f"script after result-{turn}: say <think>then {turn}</think>{_call(name, **arguments)}")
    messages: list[Any] = ["\n".join([*script, f"script after result-{len(calls)}: say That was all."])]
    called = []
    while uses := _calls(answer := ask(patient, *messages, max_tokens=300, tools=CLIENT_TOOLS)):
        called += [(use.name, use.input) for use in uses]
        result = {"type": "tool_result", "tool_use_id": uses[0].id, "content": f"result-{len(called)}"}
        messages += [answer.to_param(), {"role": "user", "content": [result]}]
    assert called == calls
    assert (_text(answer), len(messages)) == ("That was all.", 19)


def test_a_tool_that_a_search_has_found_is_called(client: Anthropic) -> None:
    search: Any = {"name": "search", "input_schema": {"type": "object"}}
    tools: Any = [search, {**WEATHER, "defer_loading": True}]
    counts = [
        client.messages.count_tokens(model="demo", messages=[_turn("x")], tools=offered).input_tokens
        for offered in (tools, [search])
    ]
    assert counts[0] == counts[1]
    found_later = f"script after <functions>: say {_call('get_weather', city='Paris')}"
    script = f"script: say {_call('search', query='weather')}\n{found_later}"
    searched = _create(client, script, tools=tools)
    (use,) = _calls(searched)
    found = [{"type": "tool_reference", "tool_name": "get_weather"}]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": found}]}
    response = client.messages.with_raw_response.create(**_asked(script, searched.to_param(), result, tools=tools))
    (call,) = _calls(response.parse())
    assert (use.name, call.name, call.input) == ("search", "get_weather", {"city": "Paris"})
    assert response.headers[CONVERTED_HEADER].startswith("messages[2].content[0].content[0] (tool_reference as text)")
    # A tool that is not found yet cannot be called.
    answer = _create(client, f"say {_call('get_weather', city='Paris')}", tools=tools)
    assert {block.name for block in _calls(answer)} <= {"search"}
