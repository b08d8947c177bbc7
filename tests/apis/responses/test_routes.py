"""The Responses API, through OpenAI's client where possible."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from genai_server.config.settings import Settings
from genai_server.http.leniency import CONVERTED_HEADER
from genai_server.supervisor.supervisor import Supervisor
from tests.running_server import RunningServer, refusal, wait_until
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


def _create(client: OpenAI, given: Any = "say x", **fields: Any) -> Any:
    return client.responses.create(model=MODEL, input=given, **fields)


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _texts(items: Iterable[Any]) -> list[str]:
    return [item.to_dict()["content"][0]["text"] for item in items]


def test_a_response_has_the_answer_and_its_usage(client: OpenAI) -> None:
    response = _create(client, "say hello", metadata={"a": "b"})
    assert (response.status, response.output_text, response.metadata) == ("completed", "hello", {"a": "b"})
    assert (response.usage.output_tokens, response.temperature) == (5, 0.0)


def test_a_stream_makes_the_same_response_as_one_in_one_piece(client: OpenAI) -> None:
    script = f"say <think>so</think>Yes.{CALL}"
    whole = _create(client, script, tools=[WEATHER], store=False)
    with client.responses.stream(model=MODEL, input=script, tools=[WEATHER], store=False) as stream:
        kinds = [event.type for event in stream]
        streamed: Any = stream.get_final_response()
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert (kinds[:2], kinds[-1]) == (["response.created", "response.in_progress"], "response.completed")

    def without_names(response: Any) -> Any:
        fields = response.to_dict()
        for part in (part for item in fields["output"] for part in [item, *item.get("content", [])]):
            for name in ("id", "call_id", "parsed_arguments", "parsed"):
                part.pop(name, None)
        return {name: fields[name] for name in fields if name not in ("id", "created_at", "completed_at")}

    assert without_names(streamed) == without_names(whole)
    # Both go back as they are, with what the client has added to them.
    for response in (streamed, whole):
        result = {"type": "function_call_output", "call_id": response.output[-1].call_id, "output": "21"}
        items = [_user(script), *response.output, result, _user("say x")]
        assert _create(client, items, store=False).output_text == "x"


def test_cut_call_is_continued_and_named(client: OpenAI) -> None:
    cut = _create(client, f"say {CALL}", tools=[WEATHER], max_output_tokens=55)
    assert (cut.status, [(item.type, item.status) for item in cut.output]) == (
        "incomplete",
        [("function_call", "incomplete")],
    )
    response = client.responses.with_raw_response.create(model=MODEL, input="say x", previous_response_id=cut.id)
    assert response.parse().output_text == "x"
    assert "tool_calls" in response.headers[CONVERTED_HEADER]


def test_a_parsed_response_is_of_the_given_class(client: OpenAI) -> None:
    class Capital(BaseModel):
        name: str

    said = 'say {"name": "Paris"}'
    response = client.responses.parse(model=MODEL, input=said, text_format=Capital)
    assert response.output_parsed == Capital(name="Paris")
    assert _create(client, [_user(said), *response.output, _user("say x")]).output_text == "x"
    with client.responses.stream(model=MODEL, input=said, text_format=Capital) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_come_with_the_response_on_request(scripted: RunningServer, stream: bool) -> None:
    asked = _post(scripted, include_metrics=True, stream=stream).text.splitlines()[-2 if stream else 0]
    body = json.loads(asked.removeprefix("data: "))
    response = body["response"] if stream else body
    metrics = response["metrics"]
    assert (metrics["output_tokens"], metrics["model"], metrics["total_latency"] > 0) == (1, MODEL, True)
    assert scripted.client.get(f"/v1/responses/{response['id']}").json() == response
    assert "metrics" not in _post(scripted).json()


def test_the_tokens_of_an_input_can_be_counted_before(client: OpenAI, scripted: RunningServer) -> None:
    first = _create(client, "say hello", instructions="Be brief.")
    asked: Any = {"model": MODEL, "input": "say more", "previous_response_id": first.id, "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(**asked)
    expected = client.responses.create(**asked).usage.input_tokens
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", expected)
    wrong = scripted.client.post("/responses/input_tokens", json={"input": "x", "chat_template_kwargs": {"a": 1}})
    assert refusal(wrong) == (400, "invalid_value", "chat_template_kwargs")


# conversations


def test_tool_loop_continues_the_previous_response(demo: RunningServer) -> None:
    asked: Any = {"model": MODEL, "tools": [WEATHER]}
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.stream(input="What is the weather in Paris?", **asked) as stream:
            response: Any = stream.get_final_response()
        call = response.output[-1]
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}
        with client.responses.stream(input=[output], previous_response_id=response.id, **asked) as stream:
            assert "21" in stream.get_final_response().output_text


def test_conversation_continues_without_instructions_and_first_responses(client: OpenAI) -> None:
    first = _create(client, "say one", instructions="count 3")
    second = _create(client, "say two", previous_response_id=first.id)
    third = _create(client, "say three", previous_response_id=second.id)
    assert (second.instructions, third.output_text) == (None, "three")
    client.responses.delete(first.id)
    again = _create(client, "say three", previous_response_id=second.id)
    # A prompt of the scripted model consists of the texts of its messages, one per line, and an end mark.
    expected = len("say one\none\nsay two\ntwo\nsay three\n") + 1
    assert (third.usage.input_tokens, again.usage.input_tokens) == (expected, expected)


def test_item_is_referenced_by_its_id(client: OpenAI) -> None:
    reference = {"type": "item_reference", "id": _create(client, "say one").output[0].id}
    assert _create(client, [reference, _user("say two")]).usage.input_tokens == len("one\nsay two\n") + 1


def test_encrypted_reasoning_continues_without_a_store(client: OpenAI) -> None:
    include = ["reasoning.encrypted_content"]
    reasoning, said = _create(client, "say <think>so</think>x", store=False, include=include).output
    assert reasoning.encrypted_content
    reasoning.content = None
    assert _create(client, [_user("a"), reasoning, said, _user("say y")]).output_text == "y"


# storage


def test_a_response_is_kept_with_its_input(client: OpenAI) -> None:
    first = _create(client, "say one")
    second = _create(client, "say two", previous_response_id=first.id)
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    listed = client.responses.input_items.list
    assert _texts(listed(second.id, order="asc", limit=2)) == ["say one", "one", "say two"]
    assert _texts(listed(second.id).data) == ["say two", "one", "say one"]


def test_input_items_come_in_pages(client: OpenAI, scripted: RunningServer) -> None:
    path = f"/responses/{_create(client, [_user(f'say {n}') for n in range(5)]).id}/input_items?order=asc"
    page = scripted.client.get(f"{path}&limit=3").json()
    rest = scripted.client.get(f"{path}&after={page['last_id']}").json()
    assert (page["has_more"], len(page["data"]), rest["has_more"], len(rest["data"])) == (True, 3, False, 2)
    assert page["first_id"] == page["data"][0]["id"]
    end = scripted.client.get(f"{path}&after={rest['last_id']}").json()
    assert end == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_a_deleted_response_is_gone(scripted: RunningServer) -> None:
    id = _post(scripted).json()["id"]
    assert scripted.client.delete(f"/v1/responses/{id}").json() == {"id": id, "object": "response", "deleted": True}
    assert refusal(scripted.client.get(f"/v1/responses/{id}"))[:2] == (404, "response_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_response_with_store_false_is_not_kept(scripted: RunningServer, stream: bool) -> None:
    text = _post(scripted, store=False, stream=stream).text
    (found, *_) = [word for word in text.split('"') if word.startswith("resp_")]
    assert scripted.client.get(f"/v1/responses/{found}").status_code == 404


def test_a_server_without_a_store_keeps_nothing_and_says_so(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--response-store-size", "0") as server:
        response = _post(server).json()
        assert response["store"] is False
        assert server.client.get(f"/v1/responses/{response['id']}").status_code == 404
        fields: dict[str, Any] = {"store": True, "background": True, "conversation": "conv_1"}
        refused = [refusal(_post(server, **{name: value})) for name, value in fields.items()]
        assert [(status, param) for status, _, param in refused] == [(400, name) for name in fields]
        assert server.client.post("/v1/conversations", json={}).status_code == 400


def test_full_store_evicts_the_oldest_response(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--response-store-size", "2") as server:
        ids = [_post(server).json()["id"] for _ in range(3)]
        statuses = [server.client.get(f"/v1/responses/{id}").status_code for id in ids]
    assert statuses == [404, 200, 200]


# cancelling


def test_running_response_can_be_read_and_cancelled(client: OpenAI, scripted: RunningServer) -> None:
    stream = _create(client, "delay 0.02; count 500", stream=True)
    created, *_ = [next(stream) for _ in range(9)]
    running = client.responses.retrieve(created.response.id)
    assert (created.type, running.status, running.output_text[:4]) == ("response.created", "in_progress", "1, 2")
    with pytest.raises(openai.BadRequestError, match="in progress"):
        _create(client, previous_response_id=running.id)
    cancelled = client.responses.cancel(running.id)
    assert (cancelled.status, [item.status for item in cancelled.output]) == ("cancelled", ["incomplete"])
    assert cancelled.output_text.startswith(running.output_text)
    *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.to_dict() == client.responses.retrieve(running.id).to_dict() == cancelled.to_dict()
    assert client.responses.cancel(running.id).to_dict() == cancelled.to_dict()
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))
    assert _create(client, "say more", previous_response_id=running.id).output_text == "more"


def test_disconnected_clients_response_is_cancelled(client: OpenAI, scripted: RunningServer) -> None:
    stream = _create(client, "delay 0.02; count 500", stream=True)
    id = next(stream).response.id
    stream.close()
    wait_until(lambda: client.responses.retrieve(id).status == "cancelled")
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


def test_a_response_that_has_ended_cannot_be_cancelled(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="completed") as refused:
        client.responses.cancel(_create(client).id)
    assert refused.value.param == "response_id"


# errors


def test_failed_stream_ends_with_a_stored_failed_response(client: OpenAI) -> None:
    *_, last = _create(client, "fail at 2; say hello", stream=True)
    response = last.response
    assert (last.type, response.status, response.output_text) == ("response.failed", "failed", "he")
    assert ([item.status for item in response.output], response.error.message) == (["incomplete"], "scripted failure")
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_an_answer_in_one_piece_that_fails_is_an_error_and_not_stored(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="scripted failure") as failed:
        _create(client, [{**_user("fail at 2; say hello"), "id": "msg_of_what_fails"}])
    assert failed.value.code == "runner_failed"
    with pytest.raises(openai.BadRequestError) as unknown:
        _create(client, [{"type": "item_reference", "id": "msg_of_what_fails"}])
    assert unknown.value.param == "input[0].id"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_an_unknown_response_is_not_found(scripted: RunningServer, method: str, path: str, prefix: str) -> None:
    response = scripted.client.request(method, f"{prefix}/responses/resp_1{path}")
    assert refusal(response)[:2] == (404, "response_not_found")


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
    response = refusal(scripted.client.get(f"/v1/responses/{_post(scripted).json()['id']}{query}"))
    assert (response[0], response[2]) == (400, param)


@pytest.mark.parametrize("path", ["/v1/responses/nowhere", "/v1/responses/resp_1/nowhere", "/responses/nowhere"])
def test_unknown_path_is_not_found(scripted: RunningServer, path: str) -> None:
    assert refusal(scripted.client.post(path, json={}))[:2] == (404, "not_found")


def test_websocket_path_requires_an_upgrade(scripted: RunningServer) -> None:
    response = scripted.client.get("/v1/responses")
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")


# background responses


def test_background_response_continues_without_its_client(client: OpenAI) -> None:
    begun = _create(client, "delay 0.02; count 9", background=True)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    wait_until(lambda: client.responses.retrieve(begun.id).status == "completed")
    ended = client.responses.retrieve(begun.id)
    assert (ended.output_text, ended.usage is None) == ("1, 2, 3, 4, 5, 6, 7, 8, 9", False)
    assert _create(client, "say more", previous_response_id=begun.id).output_text == "more"


def test_a_response_in_the_background_that_fails_says_so(client: OpenAI) -> None:
    begun = _create(client, "fail at 2; say hello", background=True)
    wait_until(lambda: client.responses.retrieve(begun.id).status == "failed")
    failed: Any = client.responses.retrieve(begun.id)
    assert (failed.error.message, failed.output_text) == ("scripted failure", "he")


def test_a_stream_in_the_background_is_resumed_behind_any_event(client: OpenAI) -> None:
    stream = _create(client, "delay 0.01; count 30", background=True, stream=True)
    seen = [next(stream) for _ in range(10)]
    stream.close()
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    id = seen[0].response.id
    seen += client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    again = client.responses.retrieve(id, stream=True)
    assert [event.to_dict() for event in again] == [event.to_dict() for event in seen]
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.to_dict() == client.responses.retrieve(id).to_dict()


def test_a_response_that_was_not_streamed_has_no_stream(client: OpenAI) -> None:
    begun = _create(client, background=True)
    with pytest.raises(openai.BadRequestError, match="background: true and stream: true") as refused:
        client.responses.retrieve(begun.id, stream=True)
    assert refused.value.param == "stream"


def test_a_response_in_the_background_counts_for_its_key(own_folder: Path) -> None:
    settings = {"GENAI_API_KEYS": "alice:alice-0123456789abcdef", "GENAI_MAX_CONCURRENT_PER_KEY": "1"}
    with run_here(own_folder, "--device", "scripted", settings=settings) as server:
        server.client.headers["authorization"] = "Bearer alice-0123456789abcdef"
        begun = _post(server, input="delay 0.02; count 500", background=True).json()["id"]
        assert _post(server).status_code == 429
        server.client.post(f"/v1/responses/{begun}/cancel").raise_for_status()
        wait_until(lambda: _post(server).status_code == 200)


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
        turns += [_user(f"{number}" * 300), {"role": "assistant", "content": "x"}]
    turns.append(_user("say hello"))
    with pytest.raises(openai.BadRequestError) as refused:
        _create(client, turns)
    assert refused.value.code == "context_length_exceeded"
    response = _create(client, turns, truncation="auto")
    assert (response.output_text, response.truncation) == ("hello", "auto")
    items = _texts(client.responses.input_items.list(response.id))
    assert (items[0], items[-1], 5 < len(items) < 20) == ("say hello", "Be brief.", True)
    with pytest.raises(openai.BadRequestError):  # nothing can be left out
        _create(client, "x" * 3000, truncation="auto")


def test_conversation_is_compacted_to_user_texts_and_a_summary(client: OpenAI) -> None:
    first = _create(client, "script: say in short")
    compacted = client.responses.compact(model=MODEL, previous_response_id=first.id, input="say two")
    assert (compacted.object, compacted.usage.output_tokens) == ("response.compaction", len("in short"))
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    again = _create(client, [*(item.to_dict(warnings=False) for item in compacted.output), _user("say more")])
    summary = "Summary of the conversation up to here:\nin short"
    assert again.usage.input_tokens == len(f"script: say in short\nsay two\n{summary}\nsay more\n") + 1


# custom tools


def test_a_custom_tool_is_called_with_a_text(client: OpenAI) -> None:
    # The form of the grammar of calls.
    said = 'say <tool_call>⏎{"name": "patch", "arguments": {"input": "say \\"x\\"\\nand y"}}⏎</tool_call>'
    (call,) = _create(client, said, tools=[PATCH]).output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", 'say "x"\nand y')
    events = list(_create(client, said, tools=[PATCH], stream=True))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert ("".join(deltas), len(deltas) > 5) == (call.input, True)
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == call.input
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "say done"}
    items = [_user("Change it."), call.to_dict(), output]
    assert _create(client, items, tools=[PATCH]).output_text == "done"


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
    asked: Any = {"tools": [{"type": "apply_patch"}]}
    response = _create(client, said, stream=stream, **asked)
    if stream:
        *_, done, end = response
        response = end.response
        assert (done.type, end.type) == ("response.output_item.done", "response.completed")
        assert response.output == [done.item]
    (call,) = response.output
    assert (call.type, call.status, call.operation.to_dict()) == ("apply_patch_call", "completed", operation)
    result = {"type": "apply_patch_call_output", "call_id": call.call_id, "status": "completed", "output": "say done"}
    assert _create(client, [_user("Change it."), call.to_dict(), result], **asked).output_text == "done"
    assert _create(client, [result], previous_response_id=response.id, **asked).output_text == "done"
