"""The Responses API, through OpenAI's own client where it has a say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from openai.types.responses.response_input_param import FunctionCallOutput, ResponseInputParam
from pydantic import BaseModel

from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here

MODEL = "onnx-genai"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.fixture(scope="module")
def client(scripted: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _post(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/responses", json={"input": "say x", **fields})


def test_a_response_has_the_answer_and_its_usage(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="say hello", metadata={"a": "b"})
    assert (response.status, response.output_text, response.metadata) == ("completed", "hello", {"a": "b"})
    assert response.usage is not None
    assert response.usage.output_tokens == 5
    assert response.temperature == 0.0


def test_a_stream_makes_the_same_response_as_one_in_one_piece(client: OpenAI) -> None:
    script = f"say <think>so</think>Yes.{CALL}"
    whole = client.responses.create(model=MODEL, input=script, tools=[WEATHER], store=False)
    with client.responses.stream(model=MODEL, input=script, tools=[WEATHER], store=False) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"

    def without_names(response: Any) -> Any:
        told = response.to_dict()
        for item in told["output"]:
            item.pop("id")
            item.pop("call_id", None)
            item.pop("parsed_arguments", None)
            for part in item.get("content", []):
                part.pop("parsed", None)
        return {name: told[name] for name in told if name not in ("id", "created_at", "completed_at")}

    assert without_names(streamed) == without_names(whole)


def test_what_cannot_be_gone_on_from_is_named(client: OpenAI) -> None:
    cut = client.responses.create(model=MODEL, input=f"say {CALL}", tools=[WEATHER], max_output_tokens=55)
    (call,) = cut.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (cut.status, call.status) == ("incomplete", "incomplete")
    with pytest.raises(
        openai.BadRequestError, match=r"input \(tool_calls\[0\].function.arguments\) must be JSON"
    ) as no:
        client.responses.create(model=MODEL, input="say x", previous_response_id=cut.id)
    assert no.value.param == "input"


def test_each_event_is_named_by_its_type(scripted: RunningServer) -> None:
    lines = _post(scripted, stream=True).text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_an_answer_at_its_limit_ends_a_stream_as_incomplete(client: OpenAI) -> None:
    *_, last = client.responses.create(model=MODEL, input="say hello", max_output_tokens=2, stream=True)
    assert last.type == "response.incomplete"
    assert last.response.output_text == "he"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_parsed_response_is_of_the_given_class(client: OpenAI) -> None:
    class Capital(BaseModel):
        name: str

    said = 'say {"name": "Paris"}'
    parsed = client.responses.parse(model=MODEL, input=said, text_format=Capital).output_parsed
    assert parsed == Capital(name="Paris")
    with client.responses.stream(model=MODEL, input=said, text_format=Capital) as stream:
        assert stream.get_final_response().output_parsed == parsed


def test_log_probabilities_come_with_the_text_if_they_are_asked_for(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input="say hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (message,) = response.output
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert [(one.token, len(one.top_logprobs)) for one in message.content[0].logprobs or []] == [("h", 2), ("i", 2)]


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_come_with_the_response_if_they_are_asked_for(scripted: RunningServer, stream: bool) -> None:
    asked = _post(scripted, include_metrics=True, stream=stream).text.splitlines()[-2 if stream else 0]
    told = json.loads(asked.removeprefix("data: "))
    response = told["response"] if stream else told
    metrics = response["metrics"]
    assert (metrics["output_tokens"], metrics["model"]) == (1, MODEL)
    assert metrics["total_latency"] > 0
    assert scripted.client.get(f"/v1/responses/{response['id']}").json() == response
    assert "metrics" not in _post(scripted).json()


def test_the_tokens_of_an_input_can_be_counted_before(client: OpenAI, scripted: RunningServer) -> None:
    first = client.responses.create(model=MODEL, instructions="Be brief.", input="say hello")
    asked: Any = {"model": MODEL, "input": "say more", "previous_response_id": first.id, "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(**asked)
    usage = client.responses.create(**asked).usage
    assert usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", usage.input_tokens)
    wrong = scripted.client.post("/responses/input_tokens", json={"input": "x", "chat_template_kwargs": {"a": 1}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "chat_template_kwargs")


# the conversation


@pytest.fixture(scope="module")
def demo_client(demo: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _output(call: Any) -> FunctionCallOutput:
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    return {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}


def test_a_tool_loop_with_all_items_in_the_input(demo_client: OpenAI) -> None:
    items: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    response = demo_client.responses.create(model=MODEL, input=items, tools=[WEATHER], store=False)
    items += [*response.output, _output(response.output[-1])]
    assert "21" in demo_client.responses.create(model=MODEL, input=items, tools=[WEATHER]).output_text


def test_a_tool_loop_that_goes_on_from_the_response_before(demo_client: OpenAI) -> None:
    with demo_client.responses.stream(model=MODEL, input="What is the weather in Paris?", tools=[WEATHER]) as stream:
        response = stream.get_final_response()
    output: ResponseInputParam = [_output(response.output[-1])]
    with demo_client.responses.stream(
        model=MODEL, input=output, previous_response_id=response.id, tools=[WEATHER]
    ) as stream:
        assert "21" in stream.get_final_response().output_text


def test_a_conversation_goes_on_but_not_with_the_instructions(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, instructions="count 3", input="say one")
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input="say two")
    third = client.responses.create(model=MODEL, previous_response_id=second.id, input="say three")
    assert (second.instructions, third.output_text) == (None, "three")
    # A prompt of the scripted model is its messages' texts, each with a line end, and a mark at the end.
    assert third.usage is not None
    assert third.usage.input_tokens == len("say one\none\nsay two\ntwo\nsay three\n") + 1


def test_a_conversation_outlives_the_responses_that_it_began_with(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="say one")
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input="say two")
    client.responses.delete(first.id)
    third = client.responses.create(model=MODEL, previous_response_id=second.id, input="say three")
    assert third.usage is not None
    assert third.usage.input_tokens == len("say one\none\nsay two\ntwo\nsay three\n") + 1


def test_an_item_is_meant_by_its_id(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="say one")
    assert first.output[0].id is not None
    items: ResponseInputParam = [
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "say two"},
    ]
    second = client.responses.create(model=MODEL, input=items)
    assert second.usage is not None
    assert second.usage.input_tokens == len("one\nsay two\n") + 1


def test_reasoning_goes_on_without_a_store_by_its_encrypted_content(client: OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="say <think>so</think>x", store=False, include=["reasoning.encrypted_content"]
    )
    reasoning = first.output[0].to_dict()
    assert reasoning["encrypted_content"]
    del reasoning["content"]
    again: Any = [{"role": "user", "content": "a"}, reasoning, first.output[1], {"role": "user", "content": "say y"}]
    assert client.responses.create(model=MODEL, input=again).output_text == "y"


# what is kept


def test_a_response_is_kept_with_its_input(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="say one")
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input="say two")
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    items = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.to_dict()["content"][0]["text"] for item in items] == ["say one", "one", "say two"]
    newest = client.responses.input_items.list(second.id)
    assert [item.to_dict()["content"][0]["text"] for item in newest.data] == ["say two", "one", "say one"]


def test_input_items_come_in_pages(client: OpenAI, scripted: RunningServer) -> None:
    items: ResponseInputParam = [{"role": "user", "content": f"say {n}"} for n in range(5)]
    response = client.responses.create(model=MODEL, input=items)
    page = scripted.client.get(f"/responses/{response.id}/input_items?order=asc&limit=3").json()
    rest = scripted.client.get(f"/responses/{response.id}/input_items?order=asc&after={page['last_id']}").json()
    assert (page["has_more"], len(page["data"]), rest["has_more"], len(rest["data"])) == (True, 3, False, 2)
    assert page["first_id"] == page["data"][0]["id"]
    end = scripted.client.get(f"/responses/{response.id}/input_items?order=asc&after={rest['last_id']}").json()
    assert end == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_a_deleted_response_is_gone(client: OpenAI, scripted: RunningServer) -> None:
    response = client.responses.create(model=MODEL, input="say x")
    deleted = scripted.client.delete(f"/v1/responses/{response.id}")
    assert deleted.json() == {"id": response.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(response.id)
    assert missing.value.code == "response_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_not_to_be_kept_is_not(client: OpenAI, scripted: RunningServer, stream: bool) -> None:
    text = _post(scripted, store=False, stream=stream).text
    (found, *_) = [word for word in text.split('"') if word.startswith("resp_")]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(found)


def test_a_server_without_a_store_keeps_nothing_and_says_so(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--response-store-size", "0") as server:
        response = _post(server).json()
        assert response["store"] is False
        assert server.client.get(f"/v1/responses/{response['id']}").status_code == 404
        refused = _post(server, store=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")


def test_more_than_the_store_holds_drives_the_oldest_out(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--response-store-size", "2") as server:
        ids = [_post(server).json()["id"] for _ in range(3)]
        statuses = [server.client.get(f"/v1/responses/{id}").status_code for id in ids]
    assert statuses == [404, 200, 200]


# cancelling


def test_a_response_that_is_being_made_can_be_read_and_cancelled(client: OpenAI, scripted: RunningServer) -> None:
    stream = client.responses.create(model=MODEL, input="delay 0.02; count 500", stream=True)
    created, *_ = (next(stream), *(next(stream) for _ in range(8)))
    assert created.type == "response.created"
    running = client.responses.retrieve(created.response.id)
    assert running.status == "in_progress"
    assert running.output_text.startswith("1, 2")
    with pytest.raises(openai.BadRequestError, match="in progress"):
        client.responses.create(model=MODEL, input="x", previous_response_id=running.id)
    cancelled = client.responses.cancel(running.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith(running.output_text)
    *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.to_dict() == client.responses.retrieve(running.id).to_dict() == cancelled.to_dict()
    assert client.responses.cancel(running.id).to_dict() == cancelled.to_dict()
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))
    more = client.responses.create(model=MODEL, input="say more", previous_response_id=running.id)
    assert more.output_text == "more"


def test_a_response_whose_client_leaves_is_cancelled(client: OpenAI, scripted: RunningServer) -> None:
    stream = client.responses.create(model=MODEL, input="delay 0.02; count 500", stream=True)
    created = next(stream)
    assert created.type == "response.created"
    stream.close()
    wait_until(lambda: client.responses.retrieve(created.response.id).status == "cancelled")
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


def test_a_response_that_has_ended_cannot_be_cancelled(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="say x")
    with pytest.raises(openai.BadRequestError, match="completed") as refused:
        client.responses.cancel(response.id)
    assert refused.value.param == "response_id"


# errors


def test_a_stream_that_fails_ends_with_a_failed_response_that_is_kept(client: OpenAI) -> None:
    *_, last = client.responses.create(model=MODEL, input="fail at 2; say hello", stream=True)
    assert last.type == "response.failed"
    assert (last.response.status, last.response.output_text) == ("failed", "he")
    assert last.response.error is not None
    assert last.response.error.message == "scripted failure"
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


def test_an_answer_in_one_piece_that_fails_is_an_error(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="scripted failure") as failed:
        client.responses.create(model=MODEL, input="fail at 2; say hello")
    assert failed.value.code == "runner_failed"


def test_of_an_answer_in_one_piece_that_fails_nothing_is_kept(scripted: RunningServer) -> None:
    marked = [{"id": "msg_of_what_fails", "role": "user", "content": "fail at 2; say hello"}]
    assert _post(scripted, input=marked).status_code == 500
    meant = [{"type": "item_reference", "id": "msg_of_what_fails"}]
    assert _post(scripted, input=meant).json()["error"]["param"] == "input[0].id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"id": "msg_1"}]}, "input[0].id"),
        ({"input": "x" * 3000}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"logit_bias": {"999": 1.0}}, "logit_bias"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"device": "cuda"}, "device"),
    ],
)
def test_a_field_that_is_wrong_or_not_honoured_is_named(
    scripted: RunningServer, fields: dict[str, Any], param: str
) -> None:
    response = _post(scripted, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert "max_tokens" not in error["message"] or param == "max_tokens"


def test_a_schema_that_cannot_be_used_is_named_as_it_was_given(scripted: RunningServer) -> None:
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nonsense"}}}
    assert _post(scripted, text=text).json()["error"]["param"] == "text.format.schema"


def test_an_unknown_previous_response_has_openais_code(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as missing:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    assert missing.value.code == "previous_response_not_found"


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input="x")
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_an_unknown_response_is_not_found(scripted: RunningServer, method: str, path: str, prefix: str) -> None:
    response = scripted.client.request(method, prefix + path.removeprefix("/v1"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=true", "stream"),
        ("?starting_after=3", "starting_after"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_1", "after"),
        ("/input_items?before=msg_1", "before"),
    ],
)
def test_a_query_that_is_not_honoured_is_refused(scripted: RunningServer, query: str, param: str) -> None:
    response = scripted.client.get(f"/v1/responses/{_post(scripted).json()['id']}{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
