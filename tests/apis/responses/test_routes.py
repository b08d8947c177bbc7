"""The Responses API, through OpenAI's client where possible."""

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

from genai_server.config.settings import Settings
from genai_server.http.leniency import CONVERTED_HEADER
from genai_server.supervisor.supervisor import Supervisor
from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here

MODEL = "demo"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
PATCH = {"type": "custom", "name": "patch", "description": "Change a file."}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


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
        fields = response.to_dict()
        for item in fields["output"]:
            item.pop("id")
            item.pop("call_id", None)
            item.pop("parsed_arguments", None)
            for part in item.get("content", []):
                part.pop("parsed", None)
        return {name: fields[name] for name in fields if name not in ("id", "created_at", "completed_at")}

    assert without_names(streamed) == without_names(whole)
    # Both go back as they are, with what the client has added to them.
    for response in (streamed, whole):
        called = response.output[-1]
        assert isinstance(called, ResponseFunctionToolCall)
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "21"}
        items: Any = [{"role": "user", "content": script}, *response.output, result]
        again = client.responses.create(model=MODEL, input=[*items, {"role": "user", "content": "say x"}], store=False)
        assert again.output_text == "x"


def test_cut_call_is_continued_and_named(client: OpenAI) -> None:
    cut = client.responses.create(model=MODEL, input=f"say {CALL}", tools=[WEATHER], max_output_tokens=55)
    (call,) = cut.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (cut.status, call.status) == ("incomplete", "incomplete")
    response = client.responses.with_raw_response.create(model=MODEL, input="say x", previous_response_id=cut.id)
    assert response.parse().output_text == "x"
    assert "tool_calls" in response.headers[CONVERTED_HEADER]


def test_a_parsed_response_is_of_the_given_class(client: OpenAI) -> None:
    class Capital(BaseModel):
        name: str

    said = 'say {"name": "Paris"}'
    response = client.responses.parse(model=MODEL, input=said, text_format=Capital)
    parsed = response.output_parsed
    assert parsed == Capital(name="Paris")
    again: Any = [{"role": "user", "content": said}, *response.output, {"role": "user", "content": "say x"}]
    assert client.responses.create(model=MODEL, input=again).output_text == "x"
    with client.responses.stream(model=MODEL, input=said, text_format=Capital) as stream:
        assert stream.get_final_response().output_parsed == parsed


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_come_with_the_response_on_request(scripted: RunningServer, stream: bool) -> None:
    asked = _post(scripted, include_metrics=True, stream=stream).text.splitlines()[-2 if stream else 0]
    body = json.loads(asked.removeprefix("data: "))
    response = body["response"] if stream else body
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


# conversations


@pytest.fixture(scope="module")
def demo_client(demo: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _output(call: Any) -> FunctionCallOutput:
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    return {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}


def test_tool_loop_continues_the_previous_response(demo_client: OpenAI) -> None:
    with demo_client.responses.stream(model=MODEL, input="What is the weather in Paris?", tools=[WEATHER]) as stream:
        response = stream.get_final_response()
    output: ResponseInputParam = [_output(response.output[-1])]
    with demo_client.responses.stream(
        model=MODEL, input=output, previous_response_id=response.id, tools=[WEATHER]
    ) as stream:
        assert "21" in stream.get_final_response().output_text


def test_conversation_continues_without_the_instructions(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, instructions="count 3", input="say one")
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input="say two")
    third = client.responses.create(model=MODEL, previous_response_id=second.id, input="say three")
    assert (second.instructions, third.output_text) == (None, "three")
    # A prompt of the scripted model consists of the texts of its messages, one per line, and an end mark.
    assert third.usage is not None
    assert third.usage.input_tokens == len("say one\none\nsay two\ntwo\nsay three\n") + 1


def test_conversation_outlives_its_first_responses(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="say one")
    second = client.responses.create(model=MODEL, previous_response_id=first.id, input="say two")
    client.responses.delete(first.id)
    third = client.responses.create(model=MODEL, previous_response_id=second.id, input="say three")
    assert third.usage is not None
    assert third.usage.input_tokens == len("say one\none\nsay two\ntwo\nsay three\n") + 1


def test_item_is_referenced_by_its_id(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="say one")
    assert first.output[0].id is not None
    items: ResponseInputParam = [
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "say two"},
    ]
    second = client.responses.create(model=MODEL, input=items)
    assert second.usage is not None
    assert second.usage.input_tokens == len("one\nsay two\n") + 1


def test_encrypted_reasoning_continues_without_a_store(client: OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="say <think>so</think>x", store=False, include=["reasoning.encrypted_content"]
    )
    reasoning = first.output[0].to_dict()
    assert reasoning["encrypted_content"]
    del reasoning["content"]
    again: Any = [{"role": "user", "content": "a"}, reasoning, first.output[1], {"role": "user", "content": "say y"}]
    assert client.responses.create(model=MODEL, input=again).output_text == "y"


# storage


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
def test_response_with_store_false_is_not_kept(client: OpenAI, scripted: RunningServer, stream: bool) -> None:
    text = _post(scripted, store=False, stream=stream).text
    (found, *_) = [word for word in text.split('"') if word.startswith("resp_")]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(found)


def test_a_server_without_a_store_keeps_nothing_and_says_so(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--response-store-size", "0") as server:
        response = _post(server).json()
        assert response["store"] is False
        assert server.client.get(f"/v1/responses/{response['id']}").status_code == 404
        for field, value in (("store", True), ("background", True), ("conversation", "conv_1")):
            refused = _post(server, **{field: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert server.client.post("/v1/conversations", json={}).status_code == 400


def test_full_store_evicts_the_oldest_response(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--response-store-size", "2") as server:
        ids = [_post(server).json()["id"] for _ in range(3)]
        statuses = [server.client.get(f"/v1/responses/{id}").status_code for id in ids]
    assert statuses == [404, 200, 200]


# cancelling


def test_running_response_can_be_read_and_cancelled(client: OpenAI, scripted: RunningServer) -> None:
    stream = client.responses.create(model=MODEL, input="delay 0.02; count 500", stream=True)
    created, *_ = (next(stream), *(next(stream) for _ in range(8)))
    assert created.type == "response.created"
    running = client.responses.retrieve(created.response.id)
    assert running.status == "in_progress"
    assert running.output_text.startswith("1, 2")
    with pytest.raises(openai.BadRequestError, match="in progress"):
        client.responses.create(model=MODEL, input="x", previous_response_id=running.id)
    cancelled = client.responses.cancel(running.id)
    assert (cancelled.status, [item.status for item in cancelled.output]) == ("cancelled", ["incomplete"])
    assert cancelled.output_text.startswith(running.output_text)
    *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.to_dict() == client.responses.retrieve(running.id).to_dict() == cancelled.to_dict()
    assert client.responses.cancel(running.id).to_dict() == cancelled.to_dict()
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))
    more = client.responses.create(model=MODEL, input="say more", previous_response_id=running.id)
    assert more.output_text == "more"


def test_disconnected_clients_response_is_cancelled(client: OpenAI, scripted: RunningServer) -> None:
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


def test_failed_stream_ends_with_a_stored_failed_response(client: OpenAI) -> None:
    *_, last = client.responses.create(model=MODEL, input="fail at 2; say hello", stream=True)
    assert last.type == "response.failed"
    assert (last.response.status, last.response.output_text) == ("failed", "he")
    assert [item.status for item in last.response.output] == ["incomplete"]
    assert last.response.error is not None
    assert last.response.error.message == "scripted failure"
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


def test_an_answer_in_one_piece_that_fails_is_an_error(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="scripted failure") as failed:
        client.responses.create(model=MODEL, input="fail at 2; say hello")
    assert failed.value.code == "runner_failed"


def test_failed_response_without_a_stream_is_not_stored(scripted: RunningServer) -> None:
    marked = [{"id": "msg_of_what_fails", "role": "user", "content": "fail at 2; say hello"}]
    assert _post(scripted, input=marked).status_code == 500
    meant = [{"type": "item_reference", "id": "msg_of_what_fails"}]
    assert _post(scripted, input=meant).json()["error"]["param"] == "input[0].id"


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
        ("?starting_after=-1&stream=true", "starting_after"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_1", "after"),
        ("/input_items?before=msg_1", "before"),
    ],
)
def test_a_query_that_is_not_honoured_is_refused(scripted: RunningServer, query: str, param: str) -> None:
    response = scripted.client.get(f"/v1/responses/{_post(scripted).json()['id']}{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/v1/responses/nowhere", "/v1/responses/resp_1/nowhere", "/responses/nowhere"])
def test_unknown_path_is_not_found(scripted: RunningServer, path: str) -> None:
    response = scripted.client.post(path, json={})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_websocket_path_requires_an_upgrade(scripted: RunningServer) -> None:
    response = scripted.client.get("/v1/responses")
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")


# background responses


def test_background_response_continues_without_its_client(client: OpenAI, scripted: RunningServer) -> None:
    begun = client.responses.create(model=MODEL, input="delay 0.02; count 9", background=True)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    wait_until(lambda: client.responses.retrieve(begun.id).status == "completed")
    ended = client.responses.retrieve(begun.id)
    assert ended.output_text == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert ended.usage is not None
    more = client.responses.create(model=MODEL, input="say more", previous_response_id=begun.id)
    assert more.output_text == "more"
    metrics = scripted.client.get("/metrics").text
    assert "genai" in metrics


def test_a_response_in_the_background_that_fails_says_so(client: OpenAI) -> None:
    begun = client.responses.create(model=MODEL, input="fail at 2; say hello", background=True)
    wait_until(lambda: client.responses.retrieve(begun.id).status == "failed")
    failed = client.responses.retrieve(begun.id)
    assert failed.error is not None
    assert (failed.error.message, failed.output_text) == ("scripted failure", "he")


def test_a_stream_in_the_background_is_resumed_behind_any_event(client: OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="delay 0.01; count 30", background=True, stream=True)
    seen = [next(stream) for _ in range(10)]
    stream.close()
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    created = seen[0]
    assert created.type == "response.created"
    id = created.response.id
    seen += client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    again = list(client.responses.retrieve(id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in seen]
    last = seen[-1]
    assert last.type == "response.completed"
    assert last.response.to_dict() == client.responses.retrieve(id).to_dict()


def test_a_response_that_was_not_streamed_has_no_stream(client: OpenAI) -> None:
    begun = client.responses.create(model=MODEL, input="say x", background=True)
    with pytest.raises(openai.BadRequestError, match="background: true and stream: true") as refused:
        client.responses.retrieve(begun.id, stream=True)
    assert refused.value.param == "stream"


def test_a_response_in_the_background_counts_for_its_key(own_folder: Path) -> None:
    settings = {"GENAI_API_KEYS": "alice:alice-0123456789abcdef", "GENAI_MAX_CONCURRENT_PER_KEY": "1"}
    with (
        run_here(own_folder, "--device", "scripted", settings=settings) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="alice-0123456789abcdef", max_retries=0) as alice,
    ):
        begun = alice.responses.create(model=MODEL, input="delay 0.02; count 500", background=True)
        with pytest.raises(openai.RateLimitError):
            alice.responses.create(model=MODEL, input="say x")
        alice.responses.cancel(begun.id)
        wait_until(lambda: _is_allowed(alice))


def _is_allowed(client: OpenAI) -> bool:
    try:
        return bool(client.responses.create(model=MODEL, input="say x").output_text == "x")
    except openai.RateLimitError:
        return False


def test_terminate_session_ends_a_response_in_the_background(own_scripted: RunningServer) -> None:
    begun = _post(own_scripted, input="delay 0.02; count 500", background=True).json()

    def state() -> dict[str, Any]:
        found: dict[str, Any] = own_scripted.client.get(f"/v1/responses/{begun['id']}").json()
        return found

    wait_until(lambda: state()["status"] == "in_progress")
    own_scripted.options(terminate_session="1")
    try:
        wait_until(lambda: state()["status"] == "incomplete")
        assert "terminated" in str(state()["incomplete_details"])
        assert _post(own_scripted, background=True).status_code == 503
    finally:
        own_scripted.recover()


# truncation


def test_automatic_truncation_drops_the_oldest_turns(client: OpenAI) -> None:
    turns: Any = [{"role": "system", "content": "Be brief."}]
    for number in range(10):
        turns += [{"role": "user", "content": f"{number}" * 300}, {"role": "assistant", "content": "x"}]
    turns.append({"role": "user", "content": "say hello"})
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=turns)
    assert refused.value.code == "context_length_exceeded"
    response = client.responses.create(model=MODEL, input=turns, truncation="auto")
    assert (response.output_text, response.truncation) == ("hello", "auto")
    items = [item.to_dict()["content"][0]["text"] for item in client.responses.input_items.list(response.id)]
    assert (items[0], items[-1]) == ("say hello", "Be brief.")
    assert 5 < len(items) < 20
    with pytest.raises(openai.BadRequestError):  # nothing can be left out
        client.responses.create(model=MODEL, input="x" * 3000, truncation="auto")


def test_conversation_is_compacted_to_user_texts_and_a_summary(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="script: say in short")
    compacted = client.responses.compact(model=MODEL, previous_response_id=first.id, input="say two")
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert compacted.usage.output_tokens == len("in short")
    items: Any = [*(item.to_dict(warnings=False) for item in compacted.output), {"role": "user", "content": "say more"}]
    again = client.responses.create(model=MODEL, input=items)
    assert again.usage is not None
    summary = "Summary of the conversation up to here:\nin short"
    assert again.usage.input_tokens == len(f"script: say in short\nsay two\n{summary}\nsay more\n") + 1


# custom tools


def test_a_custom_tool_is_called_with_a_text(client: OpenAI) -> None:
    # The form of the grammar of calls.
    said = '<tool_call>⏎{"name": "patch", "arguments": {"input": "say \\"x\\"\\nand y"}}⏎</tool_call>'
    tools: Any = [PATCH]
    (call,) = client.responses.create(model=MODEL, input=f"say {said}", tools=tools).output
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("patch", 'say "x"\nand y')
    events = list(client.responses.create(model=MODEL, input=f"say {said}", tools=tools, stream=True))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input
    assert len(deltas) > 5
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == call.input
    items: Any = [
        {"role": "user", "content": "Change it."},
        call.to_dict(),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "say done"},
    ]
    assert client.responses.create(model=MODEL, input=items, tools=tools).output_text == "done"


@pytest.mark.parametrize("how", ["whole", "streamed", "background"])
def test_a_custom_call_is_added_to_its_conversation(scripted: RunningServer, how: str) -> None:
    said = 'say <tool_call>⏎{"name": "patch", "arguments": {"input": "x"}}⏎</tool_call>'
    conversation = scripted.client.post("/v1/conversations", json={}).json()["id"]
    sent = {"input": said, "tools": [PATCH], "conversation": conversation, "stream": how != "whole"}
    response = _post(scripted, **sent, background=how == "background")
    if how == "whole":
        output = response.json()["output"]
    else:
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"
        output = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["input"]) for item in output] == [("custom_tool_call", "x")]
    kept = scripted.client.get(f"/v1/conversations/{conversation}/items?order=asc").json()["data"]
    assert kept[1:] == output


# on a disk


def test_responses_and_conversations_survive_a_restart(own_folder: Path) -> None:
    options = ("--device", "scripted", "--response-store-file", str(own_folder / "responses.sqlite"))
    with run_here(own_folder, *options) as server:
        first = _post(server, input="say one")
        conversation = server.client.post("/v1/conversations", json={"metadata": {"a": "b"}}).json()
        _post(server, input="say two", conversation=conversation["id"])
        assert "x-genai-not-stored" not in first.headers
    with run_here(own_folder, *options) as server:
        id = first.json()["id"]
        assert server.client.get(f"/v1/responses/{id}").json() == first.json()
        assert _post(server, input="say three", previous_response_id=id).json()["usage"]["input_tokens"] > 12
        assert server.client.get(f"/v1/conversations/{conversation['id']}").json() == conversation
        items = server.client.get(f"/v1/conversations/{conversation['id']}/items").json()
        assert [item["role"] for item in items["data"]] == ["assistant", "user"]


def _begin(server: RunningServer, **fields: Any) -> str:
    """Start a response in the background; returns its path."""
    begun = httpx.post(f"{server.url}/v1/responses", json={"background": True, **fields}, timeout=90).json()
    return f"{server.url}/v1/responses/{begun['id']}"


def test_all_api_processes_share_the_store(workers: RunningServer) -> None:
    url = f"{workers.url}/v1/responses"
    ids = [httpx.post(url, json={"input": "say x"}, timeout=90).json()["id"] for _ in range(4)]
    assert [httpx.get(f"{url}/{id}", timeout=90).status_code for id in ids for _ in range(4)] == [200] * 16
    path = _begin(workers, input="delay 0.01; count 9")
    wait_until(lambda: [httpx.get(path, timeout=90).json()["status"] for _ in range(4)] == ["completed"] * 4)


def test_every_api_process_cancels_a_response_of_the_others(workers: RunningServer) -> None:
    # The chance that all twelve requests reach the process that runs them is 1 in 4,000.
    paths = [_begin(workers, input="delay 0.02; count 500") for _ in range(12)]
    ended = [httpx.post(f"{path}/cancel", timeout=90).json() for path in paths]
    assert [response.get("status", response) for response in ended] == ["cancelled"] * len(paths)
    assert [httpx.get(path, timeout=90).json() for path in paths] == ended
    wait_until(lambda: workers.idle("scripted"))


def test_damaged_file_fails_only_what_needs_the_store(own_folder: Path) -> None:
    path = own_folder / "responses.sqlite"
    path.write_bytes(b"junk" * 5000)
    with run_here(own_folder, "--device", "scripted", "--response-store-file", str(path)) as server:
        response = _post(server)
        assert (response.status_code, response.json()["store"]) == (200, False)
        assert "file is not a database" in response.headers["x-genai-not-stored"]
        assert _post(server, store=False).status_code == 200
        *_, last = _post(server, stream=True).text.strip().split("\n\n")
        end = json.loads(last.partition("data: ")[2])
        assert (end["type"], end["response"]["store"]) == ("response.completed", False)
        for refused in (
            _post(server, store=True),
            _post(server, store=True, stream=True),
            _post(server, background=True),
            _post(server, conversation="conv_1"),
            _post(server, previous_response_id=response.json()["id"]),
            server.client.get(f"/v1/responses/{response.json()['id']}"),
            server.client.post("/v1/conversations", json={}),
        ):
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (503, "store_unavailable")
            assert "responses.sqlite cannot be read or written: file is not a database" in error["message"]
    assert path.read_bytes() == b"junk" * 5000


def test_the_store_without_a_setting_is_removed_with_the_server(own_folder: Path) -> None:
    supervisors: list[Supervisor] = []

    def supervise(settings: Settings) -> Supervisor:
        supervisors.append(Supervisor(settings))
        return supervisors[0]

    with run_here(own_folder, "--device", "scripted", supervise=supervise) as server:
        response = _post(server, input="say a secret").json()
        file = supervisors[0].folder / "store.sqlite"
        assert {found.stat().st_mode & 0o077 for found in (file, file.parent)} == {0}
        assert b"a secret" in b"".join(part.read_bytes() for part in file.parent.glob("store.sqlite*"))
    assert not file.parent.exists()
    with run_here(own_folder, "--device", "scripted") as server:
        assert server.client.get(f"/v1/responses/{response['id']}").status_code == 404


# the tool apply_patch


@pytest.mark.parametrize("stream", [False, True])
def test_a_patch_is_applied_and_its_output_sent_back(client: OpenAI, stream: bool) -> None:
    operation = {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b"}
    said = f"say <tool_call>⏎{json.dumps({'name': 'apply_patch', 'arguments': operation})}⏎</tool_call>"
    tools: Any = [{"type": "apply_patch"}]
    if stream:
        *_, done, end = client.responses.create(model=MODEL, input=said, tools=tools, stream=True)
        assert done.type == "response.output_item.done"
        assert end.type == "response.completed"
        response = end.response
        assert response.output == [done.item]
    else:
        response = client.responses.create(model=MODEL, input=said, tools=tools)
    (call,) = response.output
    assert call.type == "apply_patch_call"
    assert (call.status, call.operation.to_dict()) == ("completed", operation)
    result = {"type": "apply_patch_call_output", "call_id": call.call_id, "status": "completed", "output": "say done"}
    for earlier in ([{"role": "user", "content": "Change it."}, call.to_dict()], []):
        previous: Any = {} if earlier else {"previous_response_id": response.id}
        items: Any = [*earlier, result]
        assert client.responses.create(model=MODEL, input=items, tools=tools, **previous).output_text == "done"
