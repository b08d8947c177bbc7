"""Anthropic's Messages API, through Anthropic's client where possible."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from anthropic.types import Message, ThinkingBlock, ToolUseBlock
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
SCRIPT = f"say <think>so</think>Sum: {CALL}"


class Answer(BaseModel):
    """The schema of an answer."""

    right: bool
    number: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def client(scripted: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as client:
        yield client


def _turn(content: str) -> Any:
    return {"role": "user", "content": content}


def _create(client: Anthropic, content: str, *, max_tokens: int = 200, **fields: Any) -> Message:
    message = client.messages.create(
        model="demo", max_tokens=max_tokens, messages=[_turn(content)], stream=False, **fields
    )
    assert isinstance(message, Message)
    return message


def _text(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_has_anthropics_form(client: Anthropic) -> None:
    message = _create(client, "say hi", system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", "demo")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "hi"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == 2
    assert message.usage.input_tokens > len("Be brief.say hi")


def test_message_id_names_the_request(client: Anthropic) -> None:
    message = _create(client, "say hi")
    assert message._request_id is not None
    assert message.id == f"msg_{message._request_id.removeprefix('req-')}"


def test_a_stream_accumulates_to_the_same_message(client: Anthropic) -> None:
    plain = _create(client, SCRIPT, tools=TOOLS)
    with client.messages.stream(model="demo", max_tokens=200, messages=[_turn(SCRIPT)], tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]

    def content_of(message: Message) -> list[dict[str, object]]:
        return [{name: value for name, value in block.to_dict().items() if name != "id"} for block in message.content]

    assert content_of(final) == content_of(plain)
    assert (final.stop_reason, final.usage) == (plain.stop_reason, plain.usage)


def test_thinking_is_signed_and_can_be_sent_back_as_it_is(client: Anthropic) -> None:
    asked: Any = {"model": "demo", "max_tokens": 200}
    question = _turn("say <think>hm</think>yes")
    whole = client.messages.create(messages=[question], **asked)
    with client.messages.stream(messages=[question], **asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        (thinking, _) = message.content
        assert isinstance(thinking, ThinkingBlock)
        assert (thinking.thinking, bool(thinking.signature)) == ("hm", True)
        back: Any = {"role": "assistant", "content": [block.to_dict() for block in message.content]}
        again = client.messages.create(messages=[question, back, _turn("say z")], **asked)
        assert _text(again) == "z"


def test_text_comes_token_by_token(client: Anthropic) -> None:
    with client.messages.stream(model="demo", max_tokens=200, messages=[_turn("say abc")]) as stream:
        assert list(stream.text_stream) == ["a", "b", "c"]
        assert stream.request_id is not None


def test_thoughts_can_be_left_out(client: Anthropic) -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    (thought, text) = _create(client, "say <think>so</think>hi", thinking=thinking).content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.thinking, text.to_dict()["text"]) == ("", "hi")


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_counting_counts_the_tokens_of_the_prompt(scripted: RunningServer, prefix: str) -> None:
    body = {"messages": [_turn("say hi")], "system": "ä"}
    counted = scripted.client.post(f"{prefix}/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": len("ä\nsay hi\n\x04".encode())}
    answered = scripted.client.post(f"{prefix}/messages", json={**body, "max_tokens": 9}).json()
    assert (
        answered["usage"]["input_tokens"] + answered["usage"]["cache_read_input_tokens"]
        == counted.json()["input_tokens"]
    )


@pytest.mark.parametrize(
    ("content", "fields", "kind", "type", "words"),
    [
        ("x", {"thinking": {"type": "on"}}, anthropic.BadRequestError, "invalid_request_error", "thinking.type must"),
        ("x", {"model": "claude"}, anthropic.NotFoundError, "not_found_error", '"claude" is not served'),
        ("fail at 1; say abc", {}, anthropic.InternalServerError, "api_error", "scripted failure"),
        (
            "x" * 2100,
            {},
            anthropic.BadRequestError,
            "invalid_request_error",
            "prompt is too long: 2102 tokens > 2000 maximum",
        ),
    ],
)
def test_an_error_is_one_of_the_clients_own(
    client: Anthropic, content: str, fields: dict[str, Any], kind: type[anthropic.APIStatusError], type: str, words: str
) -> None:
    given: Any = {"max_tokens": 9, "model": "demo", "messages": [_turn(content)], **fields}
    with pytest.raises(kind) as caught:
        client.messages.create(**given)
    assert caught.value.type == type
    assert words in (caught.value.api_message or "")
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["request_id"] == caught.value.request_id is not None


def test_an_error_in_a_stream_is_an_event_and_the_last(client: Anthropic) -> None:
    kinds = []
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="demo", max_tokens=9, messages=[_turn("fail at 1; say abc")]) as stream,
    ):
        kinds += [event.type for event in stream]
    assert (caught.value.type, caught.value.api_message) == ("api_error", "scripted failure")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind"),
    [
        ("GET", "/v1/messages", "", 405, "invalid_request_error"),
        ("GET", "/v1/messages/batches", "", 404, "not_found_error"),
        ("POST", "/v1/messages", '{"messages": [', 400, "invalid_request_error"),
        ("POST", "/messages", " " * 1_100_000, 400, "invalid_request_error"),
        (
            "POST",
            "/v1/messages/count_tokens",
            '{"model": "x", "messages": [{"role": "user", "content": "x"}]}',
            404,
            "not_found_error",
        ),
    ],
)
def test_every_error_of_these_paths_has_anthropics_form(
    scripted: RunningServer, method: str, path: str, content: str, status: int, kind: str
) -> None:
    response = scripted.client.request(method, path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_clients_own_loop_runs_a_tool_and_sends_its_result(demo: RunningServer) -> None:
    called = []

    @beta_tool  # type: ignore[untyped-decorator]
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        called.append(city)
        return '{"temperature": 21}'

    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        last = client.beta.messages.tool_runner(
            model="demo",
            max_tokens=100,
            tools=[get_weather],
            messages=[_turn("What is the weather in Paris?")],
        ).until_done()
    assert called == ["Paris"]
    assert "21" in str(last.content[0].to_dict()["text"])


def test_an_answer_fits_the_class_that_it_is_parsed_to(demo: RunningServer) -> None:
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        fields: Any = {"model": "demo", "max_tokens": 200, "messages": [_turn("What is 2 + 3?")]}
        parsed = client.messages.parse(output_format=Answer, **fields).parsed_output
        with client.messages.stream(output_format=Answer, **fields) as stream:
            streamed = stream.get_final_message().parsed_output
    assert isinstance(parsed, Answer)
    assert parsed == streamed


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_forced(demo: RunningServer, choice: Any) -> None:
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="demo", max_tokens=100, tools=[WEATHER], tool_choice=choice, messages=[_turn("Hello!")]
        )
    (call,) = message.content
    assert isinstance(call, ToolUseBlock)
    assert (message.stop_reason, call.name, set(call.input)) == ("tool_use", "get_weather", {"city"})


def test_turn_started_by_the_client_continues(demo: RunningServer) -> None:
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="demo",
            max_tokens=50,
            messages=[_turn("Count from 1 to 9."), {"role": "assistant", "content": "1, 2, 3, 4, 5,"}],
        )
    assert _text(message) == " 6, 7, 8, 9"


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


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_tools_known_by_their_types_are_called_by_the_client(patient: Anthropic, *, streams: bool) -> None:
    """Ten turns: the model calls the tools by turns, and thinks before each call."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("bash", {"command": "ls"}),
        ("str_replace_based_edit_tool", {"command": "view", "path": "/a.txt", "view_range": [1, -1]}),
        ("memory", {"command": "create", "path": "/memories/a.md", "file_text": "ä"}),
    ] * 3
    script = [f"script: say <think>first</think>{_call(calls[0][0], **calls[0][1])}"]
    script += [
        f"script after result-{turn}: say <think>then {turn}</think>{_call(name, **arguments)}"
        for turn, (name, arguments) in enumerate(calls[1:], 1)
    ]
    script.append(f"script after result-{len(calls)}: say That was all.")
    messages: list[Any] = [{"role": "user", "content": "\n".join(script)}]
    called = []
    while True:
        asked: Any = {"model": "demo", "max_tokens": 300, "tools": CLIENT_TOOLS, "messages": messages}
        if streams:
            with patient.messages.stream(**asked) as stream:
                answer: Message = stream.get_final_message()
        else:
            answer = patient.messages.create(**asked)
        messages.append(answer.to_param())
        uses = [block for block in answer.content if isinstance(block, ToolUseBlock)]
        if not uses:
            break
        called += [(use.name, use.input) for use in uses]
        result = {"type": "tool_result", "tool_use_id": uses[0].id, "content": f"result-{len(called)}"}
        messages.append({"role": "user", "content": [result]})
    assert called == calls
    assert (_text(answer), len(messages)) == ("That was all.", 20)


def test_a_tool_that_a_search_has_found_is_called(client: Anthropic, scripted: RunningServer) -> None:
    search: Any = {"name": "search", "input_schema": {"type": "object"}}
    tools: Any = [search, {**WEATHER, "defer_loading": True}]
    script = (
        f"script: say {_call('search', query='weather')}\n"
        f"script after <functions>: say {_call('get_weather', city='Paris')}"
    )
    asked: Any = {"model": "demo", "max_tokens": 200, "tools": tools}
    before = client.messages.count_tokens(model="demo", messages=[_turn("x")], tools=tools).input_tokens
    assert before == client.messages.count_tokens(model="demo", messages=[_turn("x")], tools=[search]).input_tokens
    searched = client.messages.create(messages=[_turn(script)], **asked)
    (use,) = (block for block in searched.content if isinstance(block, ToolUseBlock))
    found: Any = [{"type": "tool_reference", "tool_name": "get_weather"}]
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": found}]}
    response = client.messages.with_raw_response.create(messages=[_turn(script), searched.to_param(), result], **asked)
    (call,) = (block for block in response.parse().content if isinstance(block, ToolUseBlock))
    assert (use.name, call.name, call.input) == ("search", "get_weather", {"city": "Paris"})
    assert response.headers[CONVERTED_HEADER].startswith("messages[2].content[0].content[0] (tool_reference as text)")


def test_a_tool_that_is_not_found_yet_cannot_be_called(client: Anthropic) -> None:
    tools: Any = [{"name": "search", "input_schema": {"type": "object"}}, {**WEATHER, "defer_loading": True}]
    answer = _create(client, f"say {_call('get_weather', city='Paris')}", tools=tools)
    assert all(block.name == "search" for block in answer.content if isinstance(block, ToolUseBlock))
