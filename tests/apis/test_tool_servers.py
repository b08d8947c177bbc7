"""Tools that the server runs, from OpenAI's and Anthropic's SDKs, streamed and stored, with a real program behind them.

Answers are scripted; the prompt of each round has the results of the rounds before, which the scripts wait for.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicBadRequest
from openai import APIStatusError, BadRequestError, InternalServerError, OpenAI

from genai_server.tool_servers import servers as tool_servers
from tests.running_server import PATIENCE, RunningServer, command_line, run_server, wait_until
from tests.server_here import run_here
from tests.tool_server import PROMPT, TOOLS
from tests.tool_servers.test_http import Address, listening

PROGRAM = Path(__file__).parents[1] / "tool_server.py"
COMMAND = [sys.executable, str(PROGRAM)]
HEADER = "x-genai-run-tools"
FUNCTION: Any = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
MCP: Any = {"type": "mcp", "server_label": "test", "require_approval": "never"}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>⏎{json.dumps({'name': name, 'arguments': arguments})}⏎</tool_call>"


def script(first: str, *later: tuple[str, str]) -> str:
    """A message whose answer is `first`, and after each word in the prompt another one."""
    return "\n".join([f"script: say {first}", *(f"script after {word}: say {said}" for word, said in later)])


ECHO = script(f"I look. {call('test__echo', text='heron')}", ("heron", "It said so."))


def configured(folder: Path, **servers: dict[str, Any]) -> list[str]:
    """Options of `serve` for these tool servers, whose tables are added to the command of the test's program."""
    tables = [
        [f"[mcp.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in {"command": COMMAND, **table}.items())]
        for name, table in servers.items()
    ]
    (folder / "server.toml").write_text("\n".join(line for table in tables for line in table), encoding="utf-8")
    return ["--config", str(folder / "server.toml"), "--device", "scripted", "--max-length", "20000"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tools")
    options = configured(
        folder,
        test={"max_message_bytes": 100_000, "timeout": 60},
        slow={"timeout": 0.2},
        guarded={"approval": ["echo"]},
        others={"keys": ["nobody"]},
        schemas={"command": [*COMMAND, "schemas"], "max_message_bytes": 1_000_000},
        mute={"command": [*COMMAND, "mute"]},
        broken={"command": ["./no-such-program"]},
    )
    with run_here(folder, *options, settings={"GENAI_MAX_TOOL_ROUNDS": "4"}) as server:
        yield server


@pytest.fixture(scope="module")
def openai(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic(server: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def respond(openai: OpenAI, given: Any, **fields: Any) -> Any:
    return openai.responses.create(model="demo", input=given, **{"tools": [MCP], **fields})


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


# Responses


def test_response_has_tools_call_result_and_answer_and_is_stored(openai: OpenAI) -> None:
    response = respond(openai, ECHO)
    listed, before, called, after = response.output
    assert [tool.name for tool in listed.tools] == [*TOOLS]
    assert (listed.server_label, listed.tools[0].input_schema["required"]) == ("test", ["a", "b"])
    assert before.content[0].text.strip() == "I look."
    assert called.to_dict() == {
        "id": called.id,
        "type": "mcp_call",
        "status": "completed",
        "approval_request_id": None,
        "arguments": called.arguments,
        "error": None,
        "name": "echo",
        "output": "heron",
        "server_label": "test",
    }
    assert json.loads(called.arguments) == {"text": "heron"}
    assert (response.status, response.output_text[-11:], after.type) == ("completed", "It said so.", "message")
    # The usage is that of both rounds.
    assert response.usage.output_tokens == len("I look. " + call("test__echo", text="heron") + "It said so.")
    assert response.usage.input_tokens > 2 * len(ECHO)
    assert openai.responses.retrieve(response.id).output == response.output
    assert response.tools[0].to_dict() == MCP


def test_next_response_continues_calls_and_does_not_list_tools_again(openai: OpenAI) -> None:
    first = respond(openai, ECHO)
    second = respond(openai, script(call("test__add", a=20, b=22), ("42", "And 42.")), previous_response_id=first.id)
    assert kinds(second) == ["mcp_call", "message"]
    assert (second.output[0].output, second.output_text) == ("42", "And 42.")
    # A client that stores nothing here sends all items back.
    items: list[Any] = [{"role": "user", "content": ECHO}, *(item.to_dict() for item in first.output)]
    raw = openai.responses.with_raw_response.create(
        model="demo", input=[*items, {"role": "user", "content": "script: say All is here."}], tools=[MCP], store=False
    )
    assert "x-genai-converted" not in raw.headers
    assert (kinds(raw.parse()), raw.parse().output_text) == (["message"], "All is here.")


def test_stream_has_openais_events_in_order(openai: OpenAI) -> None:
    events = list(respond(openai, ECHO, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events]
    without = [name for name in dict.fromkeys(names) if not name.startswith(("output_text", "content_part"))]
    assert without == [
        "created",
        "in_progress",
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "completed",
    ]
    arguments = "".join(event.delta for event in events if event.type == "response.mcp_call_arguments.delta")
    assert json.loads(arguments) == {"text": "heron"}
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2, 3]
    assert [event.item for event in done] == events[-1].response.output
    with openai.responses.stream(model="demo", input=ECHO, tools=[MCP]) as stream:
        assert kinds(stream.get_final_response()) == ["mcp_list_tools", "message", "mcp_call", "message"]


def test_calls_of_one_round_run_at_once_and_keep_their_order(openai: OpenAI) -> None:
    given = script(call("test__echo", text="one") + call("test__add", a=500, b=55), ("555", "Both."))
    calls = [item for item in respond(openai, given).output if item.type == "mcp_call"]
    assert [(item.name, item.output) for item in calls] == [("echo", "one"), ("add", "555")]
    *events, last = respond(openai, given, stream=True)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.output for item in done if item.type == "mcp_call"] == ["one", "555"]
    assert done == last.response.output


def test_background_response_runs_tools(openai: OpenAI) -> None:
    running = respond(openai, ECHO, background=True)
    events = list(respond(openai, ECHO, background=True, stream=True))
    assert events[-1].response.output_text.endswith("It said so.")
    while running.status in ("queued", "in_progress"):
        running = openai.responses.retrieve(running.id)
    assert kinds(running) == ["mcp_list_tools", "message", "mcp_call", "message"]


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_call_is_run_once_the_client_approves_it(openai: OpenAI, *, streams: bool) -> None:
    tools = [{**MCP, "require_approval": "always"}]
    asked = respond(openai, ECHO, tools=tools)
    request = asked.output[-1]
    assert (request.type, request.name) == ("mcp_approval_request", "echo")
    assert json.loads(request.arguments) == {"text": "heron"}
    approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    answer = respond(openai, [approval], stream=streams, tools=tools, previous_response_id=asked.id)
    if streams:
        answer = list(answer)[-1].response
    called, said = answer.output
    assert (called.output, called.approval_request_id, said.content[0].text) == ("heron", request.id, "It said so.")
    # A further turn does not run it again.
    assert kinds(respond(openai, "script: say Third.", previous_response_id=answer.id)) == ["message"]


def test_declined_call_is_not_run(openai: OpenAI) -> None:
    given = script(call("test__echo", text="heron"), ("approved", "As you like."))
    asked = respond(openai, given, tools=[{"type": "mcp", "server_label": "test"}])
    answer = {"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": False}
    declined = respond(openai, [{**answer, "reason": "too expensive"}], previous_response_id=asked.id)
    assert (kinds(declined), declined.output_text) == (["message"], "As you like.")
    with pytest.raises(BadRequestError, match="mcpr_unknown"):
        respond(openai, [{**answer, "approval_request_id": "mcpr_unknown"}], previous_response_id=asked.id)


def test_operator_and_client_choose_tools_and_approvals(openai: OpenAI) -> None:
    some = {**MCP, "server_label": "guarded", "allowed_tools": ["echo", "add"]}
    asked = respond(openai, script(call("guarded__echo", text="heron")), tools=[some])
    assert [tool.name for tool in asked.output[0].tools] == ["add", "echo"]
    assert kinds(asked)[-1] == "mcp_approval_request"
    never = {**MCP, "require_approval": {"never": {"tool_names": ["add"]}}}
    added = respond(openai, script(call("test__add", a=500, b=55), ("555", "ok")), tools=[never])
    assert kinds(added) == ["mcp_list_tools", "mcp_call", "message"]


def test_answer_ends_with_calls_of_the_client(openai: OpenAI) -> None:
    both = call("test__echo", text="heron") + call("mine")
    response = respond(openai, script(both), tools=[MCP, FUNCTION])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert response.output[1].output == "heron"
    result: Any = {"type": "function_call_output", "call_id": response.output[2].call_id, "output": "kestrel"}
    last = respond(openai, [result], previous_response_id=response.id, tools=[MCP, FUNCTION])
    assert last.status == "completed"


def test_limits_of_calls_and_rounds_end_the_loop_with_a_text(openai: OpenAI) -> None:
    again = script(call("test__count"))
    assert kinds(respond(openai, again)) == ["mcp_list_tools", *(["mcp_call"] * 4), "message"]
    twice = respond(openai, again, max_tool_calls=2).output
    assert [getattr(item, "status", "") for item in twice] == ["", "completed", "completed", "completed"]
    both = call("test__echo", text="one") + call("test__echo", text="two")
    limited = respond(openai, script(both), max_tool_calls=1)
    assert [item.status for item in limited.output[1:3]] == ["completed", "failed"]
    short = respond(openai, ECHO, max_output_tokens=len("I look. " + call("test__echo", text="heron")) + 3)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_functions_of_the_client_replace_tools_of_their_names(openai: OpenAI, anthropic: Anthropic) -> None:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    given = script(call("test__echo", text="heron"))
    own: Any = {"name": "test__echo", "parameters": parameters}
    response = respond(openai, given, tools=[MCP, {"type": "function", **own}])
    assert kinds(response) == ["mcp_list_tools", "function_call"]
    completion = chat(openai, given, tools=[{"type": "function", "function": own}])
    assert completion.choices[0].message.tool_calls[0].function.name == "test__echo"
    tools: Any = [{"name": "test__echo", "input_schema": parameters}]
    answer = anthropic.beta.messages.create(**message(anthropic, given, tools=tools))
    assert [block.type for block in answer.content] == ["tool_use"]


def test_tool_choice_of_a_server_forces_a_call(openai: OpenAI) -> None:
    choice: Any = {"type": "mcp", "server_label": "test", "name": "count"}
    given = script(call("test__count"), ("count", "Counted."))
    for chosen in (choice, {"type": "mcp", "server_label": "test"}):
        response = respond(openai, given, tool_choice=chosen, tools=[MCP, FUNCTION])
        assert (kinds(response), response.output[1].name) == (["mcp_list_tools", "mcp_call", "message"], "count")
    with pytest.raises(BadRequestError, match="names the tool"):
        respond(openai, given, tool_choice={**choice, "name": "nothing"})


@pytest.mark.parametrize(
    ("label", "tool", "arguments", "said"),
    [
        ("test", "crash", {}, "tool server test: it ended"),
        ("test", "flood", {}, "tool server test: it sent a message of more than 100000 bytes"),
        ("test", "fail", {}, "it did not work"),
        ("slow", "hang", {}, "the tool has not answered within 0.2 s"),
        # No grammar follows this schema, which is relaxed.
        ("schemas", "pattern", {"x": "aab"}, "tool server schemas: it ended"),
    ],
)
def test_a_hostile_server_costs_its_call_only(
    openai: OpenAI, label: str, tool: str, arguments: dict[str, str], said: str
) -> None:
    given = script(call(f"{label}__{tool}", **arguments), ("Error:", "I go on."))
    response = respond(openai, given, tools=[{**MCP, "server_label": label}])
    called = response.output[1]
    assert (called.status, called.output, response.output_text) == ("failed", None, "I go on.")
    assert said in called.error.content[0]["text"]
    assert respond(openai, ECHO).output_text.endswith("It said so.")


def test_deadline_ends_an_answer_within_a_tool(openai: OpenAI) -> None:
    response = respond(openai, script(call("test__hang")), timeout=60, extra_body={"timeout": 0.5})
    assert (response.status, response.incomplete_details.genai_finish_reason) == ("incomplete", "timeout")


def test_a_client_that_leaves_stops_the_tool(openai: OpenAI) -> None:
    stream = respond(openai, script(call("test__hang")), stream=True)
    for event in stream:
        if event.type == "response.mcp_call_arguments.done":
            break
    stream.close()
    assert respond(openai, ECHO.replace("test__", "guarded__"), tools=[{**MCP, "server_label": "guarded"}]).output


def test_background_response_is_cancelled_within_a_tool(openai: OpenAI) -> None:
    stream = respond(openai, script(call("test__hang")), stream=True, background=True)
    for event in stream:
        if event.type == "response.created":
            id = event.response.id
        if event.type == "response.mcp_call_arguments.done":
            break
    cancelled = openai.responses.cancel(id)
    assert (cancelled.status, cancelled.output[1].status) == ("cancelled", "incomplete")


def within_a_tool(server: RunningServer, name: str) -> Any:
    """The entry of the request with this id, once a tool runs for it."""
    found: list[Any] = []

    def look() -> bool:
        listed = server.client.get("/v1/requests").json()["data"]
        found[:] = [each for each in listed if each["id"] == name and each["phase"] == "tools"]
        return bool(found)

    wait_until(look)
    return found[0]


def hanging(openai: OpenAI, name: str) -> Any:
    """A streamed chat completion whose tool never answers."""
    given: Any = [{"role": "user", "content": script(f"I look. {call('test__hang')}")}]
    headers = {HEADER: "test", "x-request-id": name}
    return openai.chat.completions.create(model="demo", messages=given, stream=True, extra_headers=headers)


def tool_programs() -> list[psutil.Process]:
    """The programs of tool servers, which this process has started: it is the supervisor."""
    return [each for each in psutil.Process().children(recursive=True) if str(PROGRAM) in command_line(each)]


def ends_of(stream: Any) -> list[tuple[str, str | None]]:
    """Why the answers of a stream have ended."""
    choices = [choice for chunk in stream for choice in chunk.choices if choice.finish_reason]
    return [(choice.finish_reason, getattr(choice, "genai_finish_reason", None)) for choice in choices]


@pytest.mark.parametrize("by", ["id", "unique_id"])
def test_an_operator_cancels_a_request_and_its_tool(server: RunningServer, openai: OpenAI, by: str) -> None:
    stream = hanging(openai, f"hanging-{by}")
    entry, before = within_a_tool(server, f"hanging-{by}"), tool_programs()
    assert entry["output_tokens"] == len(f"I look. {call('test__hang')}")
    assert (entry["model"], entry["device"]) == ("demo", "scripted")
    cancelled = server.client.post(f"/v1/requests/{entry[by]}/cancel", json={}).json()
    assert cancelled == {name: entry[name] for name in ("id", "unique_id", "object")} | {"cancelled": True}
    assert ends_of(stream) == [("length", "cancelled")]
    wait_until(lambda: any(not each.is_running() for each in before))
    wait_until(lambda: not server.client.get("/v1/requests").json()["data"])
    again = server.client.post(f"/v1/requests/{entry[by]}/cancel", json={})
    assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_found")


def test_requests_of_one_id_are_not_cancelled_together(server: RunningServer, openai: OpenAI) -> None:
    streams = [hanging(openai, "twice") for _ in range(2)]
    wait_until(lambda: len(server.client.get("/v1/requests").json()["data"]) == 2)
    refused = server.client.post("/v1/requests/twice/cancel", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "request_ambiguous")
    for entry in server.client.get("/v1/requests").json()["data"]:
        assert server.client.post(f"/v1/requests/{entry['unique_id']}/cancel", json={}).status_code == 200
    assert [ends_of(stream) for stream in streams] == [[("length", "cancelled")]] * 2


def test_terminate_session_ends_a_request_within_a_tool(server: RunningServer, openai: OpenAI) -> None:
    first, second = hanging(openai, "first"), hanging(openai, "second")
    one, _ = (within_a_tool(server, name) for name in ("first", "second"))
    path = "/v1/admin/runtime_options"
    options = server.client.post(path, json={"terminate_session": "1", "request_id": one["unique_id"]})
    assert options.json()["devices"]["scripted"]["terminate_session"] == "0"
    assert ends_of(first) == [("length", "terminated")]
    assert server.client.post(path, json={"terminate_session": "1"}).status_code == 200
    assert ends_of(second) == [("length", "terminated")]
    assert server.client.post(path, json={"terminate_session": "0"}).status_code == 200
    assert respond(openai, ECHO).output_text.endswith("It said so.")


_HANG = {"id": "call_1", "type": "function", "function": {"name": "test__hang", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("servers", "turns"),
    [
        pytest.param("test", [{"role": "assistant", "tool_calls": [_HANG]}], id="an approved call"),
        pytest.param("mute", [], id="a tool server that starts"),
    ],
)
def test_a_request_is_cancelled_before_its_first_round(
    server: RunningServer, openai: OpenAI, servers: str, turns: list[Any]
) -> None:
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(chat, openai, "script: say Done.", *turns, servers=servers, name=servers)
        entry = within_a_tool(server, servers)
        assert server.client.post(f"/v1/requests/{entry['unique_id']}/cancel", json={}).status_code == 200
        with pytest.raises(APIStatusError) as raised:
            asked.result()
    assert (entry["model"], raised.value.code) == ("demo", "cancelled")


@pytest.mark.slow
def test_every_api_process_finds_and_ends_a_request_within_a_tool(tmp_path: Path) -> None:
    with run_server(tmp_path, *configured(tmp_path, test={}), "--workers", "2") as server:
        # Each on a connection of its own, which either process accepts.
        asked: Any = {"model": "demo", "input": script(call("test__hang")), "tools": [MCP], "background": True}
        paths = []
        for _ in range(6):
            begun = httpx.post(f"{server.url}/v1/responses", json=asked, timeout=PATIENCE).json()
            paths.append(f"{server.url}/v1/responses/{begun['id']}")

        def listed() -> list[Any]:
            entries = httpx.get(f"{server.url}/v1/requests", timeout=PATIENCE).json()["data"]
            return [entry for entry in entries if entry["phase"] == "tools"]

        wait_until(lambda: [len(listed()) for _ in range(4)] == [6] * 4)
        cancelled = [httpx.post(f"{path}/cancel", timeout=PATIENCE).json()["status"] for path in paths[:3]]
        assert cancelled == ["cancelled"] * 3
        wait_until(lambda: len(listed()) == 3)
        for entry in listed():
            ended = httpx.post(f"{server.url}/v1/requests/{entry['unique_id']}/cancel", timeout=PATIENCE)
            assert ended.status_code == 200
        wait_until(lambda: {httpx.get(path, timeout=PATIENCE).json()["status"] for path in paths[3:]} == {"incomplete"})
        wait_until(lambda: not listed())


def test_servers_that_a_request_may_not_use_are_left_out_and_named(openai: OpenAI) -> None:
    tools: Any = [{**MCP, "server_label": "others"}, {**MCP, "server_label": "x", "server_url": "https://x.example"}]
    raw = openai.responses.with_raw_response.create(model="demo", input="script: say Hi.", tools=tools)
    assert raw.headers["x-genai-ignored"] == "tools[0] (mcp), tools[1] (mcp)"
    assert kinds(raw.parse()) == ["message"]
    secret: Any = [{**MCP, "server_url": "https://x.example", "authorization": "s3cret-token"}]
    raw = openai.responses.with_raw_response.create(model="demo", input="script: say Hi.", tools=secret)
    assert raw.headers["x-genai-ignored"] == "tools[0].server_url, tools[0].authorization"
    assert "s3cret-token" not in raw.text


def test_a_server_that_does_not_start_is_an_error(openai: OpenAI) -> None:
    with pytest.raises(InternalServerError) as raised:
        respond(openai, "x", tools=[{**MCP, "server_label": "broken"}])
    assert (raised.value.status_code, raised.value.code) == (503, "tool_server_unavailable")


def test_api_keys_may_use_the_servers_of_their_tables(tmp_path: Path) -> None:
    keys = {name: f"{name}s-key-0123456789" for name in ("alice", "bob")}
    given = ",".join(f"{name}:{key}" for name, key in keys.items())
    settings = {"GENAI_API_KEYS": given, "GENAI_ADMIN_API_KEY": "admins-key-0123456789"}
    with run_here(tmp_path, *configured(tmp_path, test={"keys": ["alice"]}), settings=settings) as server:
        for key, names in ((keys["alice"], ["test"]), (keys["bob"], []), (settings["GENAI_ADMIN_API_KEY"], ["test"])):
            headers = {"authorization": f"Bearer {key}"}
            listed = server.client.get("/v1/tool_servers", headers=headers).json()["data"]
            assert [each["id"] for each in listed] == names
            with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                raw = client.responses.with_raw_response.create(model="demo", input=ECHO, tools=[MCP])
                assert ("mcp_call" in kinds(raw.parse())) == bool(names)
                assert raw.headers.get("x-genai-ignored") == (None if names else "tools[0] (mcp)")


def test_a_model_reads_the_result_and_a_later_round_takes_its_prompt_from_the_cache(tmp_path: Path) -> None:
    config = configured(tmp_path, w={"tools": ["get_weather"]})[:2]
    with (
        run_here(tmp_path, *config) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        tools: Any = [{**MCP, "server_label": "w"}]
        response = respond(client, "What is the weather in Paris?", tools=tools, max_output_tokens=200)
    assert json.loads(response.output[1].arguments) == {"city": "Paris"}
    assert "temperature 21" in response.output_text
    assert response.usage.input_tokens_details.cached_tokens > 50


@pytest.fixture
def visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningServer, Address]]:
    """A server whose operator allows the host of a tool server, and this one."""
    monkeypatch.setattr(tool_servers, "is_public", lambda address: True)
    with listening() as address:
        settings = {"GENAI_MCP_HOSTS": f"localhost:{address.server_port}"}
        with run_here(tmp_path, "--device", "scripted", "--max-length", "20000", settings=settings) as server:
            yield server, address


def test_a_request_names_a_server_at_an_allowed_host(visited: tuple[RunningServer, Address]) -> None:
    server, address = visited
    there: Any = {**MCP, "server_url": address.url, "authorization": "s3cret-token", "headers": {"X-Team": "blue"}}
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        raw = client.responses.with_raw_response.create(model="demo", input=ECHO, tools=[there])
        response = raw.parse()
        assert (kinds(response)[2], response.output[2].output) == ("mcp_call", "heron")
        assert "x-genai-ignored" not in raw.headers
        kept = client.responses.with_raw_response.retrieve(response.id)
        assert "s3cret-token" not in raw.text + kept.text
        tool: Any = {**there, "server_url": "http://localhost:1/mcp"}
        elsewhere = client.responses.with_raw_response.create(model="demo", input="script: say Hi.", tools=[tool])
        assert elsewhere.headers["x-genai-ignored"] == "tools[0] (mcp)"
        for fields, where in (({"headers": {"Host": "x"}}, "headers"), ({"server_label": "a__b"}, "server_label")):
            with pytest.raises(BadRequestError, match=where):
                respond(client, "x", tools=[{**there, **fields}])
    assert {headers["authorization"] for headers in address.headers} == {"Bearer s3cret-token"}
    assert {headers["x-team"] for headers in address.headers} == {"blue"}
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as anthropic:
        named: Any = [{"type": "url", "name": "test", "url": address.url, "authorization_token": "anthropics-token"}]
        answer = anthropic.beta.messages.create(**message(anthropic, ECHO, mcp_servers=named))
    assert [block.type for block in answer.content] == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
    assert address.headers[-1]["authorization"] == "Bearer anthropics-token"


# Chat completions


def chat(openai: OpenAI, *messages: Any, servers: str = "test", name: str = "", **fields: Any) -> Any:
    given = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages]
    headers = {HEADER: servers} | ({"x-request-id": name} if name else {})
    return openai.chat.completions.create(model="demo", messages=given, extra_headers=headers, **fields)


def test_chat_completion_has_runs_in_a_field_of_its_own(openai: OpenAI) -> None:
    (choice,) = chat(openai, ECHO).choices
    (run,) = choice.message.genai_tool_runs
    told = {name: run[name] for name in ("id", "arguments")}
    assert run == told | {"server": "test", "name": "echo", "status": "completed", "output": "heron"}
    assert (choice.finish_reason, choice.message.content) == ("stop", "I look.\n\nIt said so.")
    assert choice.message.tool_calls is None


def test_streamed_chat_completion_has_runs_as_they_begin_and_end(openai: OpenAI) -> None:
    chunks = list(chat(openai, ECHO, stream=True, stream_options={"include_usage": True}))
    runs = [run for chunk in chunks for choice in chunk.choices for run in getattr(choice.delta, "genai_tool_runs", [])]
    assert [(run["index"], run["status"], run.get("output")) for run in runs] == [
        (0, "in_progress", None),
        (0, "completed", "heron"),
    ]
    assert runs[0]["id"] == runs[1]["id"]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "I look.\n\nIt said so."
    assert not [choice for chunk in chunks for choice in chunk.choices if choice.delta.tool_calls]
    assert chunks[-1].usage.completion_tokens > len(text)


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_chat_call_that_needs_an_approval_is_the_clients(openai: OpenAI, *, streams: bool) -> None:
    given = script(call("guarded__add", a=500, b=55), ("555", call("guarded__echo", text="heron")))
    if streams:
        chunks = list(chat(openai, given, servers="guarded", stream=True))
        calls = [one for chunk in chunks for choice in chunk.choices for one in choice.delta.tool_calls or []]
        assert {one.index for one in calls} == {0}
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert "".join(one.function.arguments for one in calls) == '{"text": "heron"}'
        return
    (choice,) = chat(openai, given, servers="guarded").choices
    assert choice.finish_reason == "tool_calls"
    (asked,) = choice.message.tool_calls
    assert (asked.function.name, choice.message.genai_tool_runs[0]["output"]) == ("guarded__echo", "555")
    turn: Any = {"role": "assistant", "content": None, "tool_calls": [asked.to_dict()]}
    # Without a result it is approved; with one, the client has run or declined it.
    approved = chat(openai, "script: say Done.", turn, servers="guarded").choices[0].message
    assert (approved.content, approved.genai_tool_runs[0]["output"]) == ("Done.", "heron")
    declined: Any = {"role": "tool", "tool_call_id": asked.id, "content": "declined"}
    assert "genai_tool_runs" not in chat(openai, "script: say Done.", turn, declined, servers="guarded").to_json()


def test_chat_refuses_what_it_cannot_run(openai: OpenAI) -> None:
    for servers in ("nothing", "others", "test,nothing"):
        with pytest.raises(BadRequestError, match=HEADER):
            chat(openai, "x", servers=servers)
    with pytest.raises(BadRequestError, match="n must be 1"):
        chat(openai, "x", n=2)


def test_chat_with_clients_tools_numbers_them_from_zero(openai: OpenAI) -> None:
    fields: Any = {"tools": [{"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}]}
    both = script(call("test__echo", text="heron") + call("mine"))
    (choice,) = chat(openai, both, **fields).choices
    assert [each.function.name for each in choice.message.tool_calls] == ["mine"]
    deltas = [choice.delta for chunk in chat(openai, both, stream=True, **fields) for choice in chunk.choices]
    calls = [one for delta in deltas for one in delta.tool_calls or []]
    assert [one.index for one in calls if one.function.name] == [0]


def test_results_are_text_in_prompts_whatever_they_look_like(openai: OpenAI) -> None:
    (choice,) = chat(openai, script(call("test__prompt"), ("evil", "I read it."))).choices
    assert (choice.message.genai_tool_runs[0]["output"], choice.message.content) == (PROMPT, "I read it.")


# Messages


def message(anthropic: Anthropic, given: Any, name: str = "test", **fields: Any) -> Any:
    servers: Any = [{"type": "url", "name": name, "url": "https://example.com/mcp"}]
    messages: Any = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return {"model": "demo", "max_tokens": 2000, "mcp_servers": servers, "messages": messages, **fields}


def test_message_has_anthropics_blocks_and_is_continued(anthropic: Anthropic) -> None:
    answer = anthropic.beta.messages.create(**message(anthropic, ECHO))
    text, use, result, last = answer.content
    assert (use.type, use.server_name, use.name, use.input) == ("mcp_tool_use", "test", "echo", {"text": "heron"})
    assert (result.type, result.tool_use_id, result.is_error) == ("mcp_tool_result", use.id, False)
    assert (text.text.strip(), result.content[0].text, last.text) == ("I look.", "heron", "It said so.")
    assert (answer.stop_reason, use.id[:9]) == ("end_turn", "mcptoolu_")
    history: Any = [
        {"role": "user", "content": ECHO},
        {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
        {"role": "user", "content": "script: say And more."},
    ]
    raw = anthropic.beta.messages.with_raw_response.create(**message(anthropic, history))
    assert "x-genai-converted" not in raw.headers
    assert raw.parse().content[0].text == "And more."
    without = anthropic.beta.messages.with_raw_response.create(**message(anthropic, history, mcp_servers=[]))
    assert "mcp_tool_use as text" in without.headers["x-genai-converted"]


def test_streamed_message_is_the_same(anthropic: Anthropic) -> None:
    with anthropic.beta.messages.stream(**message(anthropic, ECHO)) as stream:
        streamed = stream.get_final_message()
    plain = anthropic.beta.messages.create(**message(anthropic, ECHO))
    ids = {"id": "", "tool_use_id": ""}
    assert [block.to_dict() | ids for block in streamed.content] == [block.to_dict() | ids for block in plain.content]
    assert streamed.usage == plain.usage


def test_message_chooses_tools(anthropic: Anthropic) -> None:
    chosen = {"default_config": {"enabled": False}, "configs": {"count": {"enabled": True}}}
    tools: Any = [{"type": "mcp_toolset", "mcp_server_name": "test", **chosen}]
    asked = message(anthropic, script(call("test__count"), ("count", "Counted.")), tools=tools)
    for choice in ({"type": "any"}, {"type": "auto"}, {"type": "tool", "name": "test__count"}):
        answer = anthropic.beta.messages.create(**asked, tool_choice=choice)
        assert [block.name for block in answer.content if block.type == "mcp_tool_use"] == ["count"]
        assert answer.content[-1].text == "Counted."
    with pytest.raises(AnthropicBadRequest, match="tool_choice.name"):
        anthropic.beta.messages.create(**asked, tool_choice={"type": "tool", "name": "test__echo"})


@pytest.mark.parametrize(
    ("name", "left_out"),
    [("others", "mcp_servers[0]"), ("guarded", "mcp_servers (guarded: echo needs an approval)")],
)
def test_message_leaves_out_what_it_cannot_use(anthropic: Anthropic, name: str, left_out: str) -> None:
    raw = anthropic.beta.messages.with_raw_response.create(**message(anthropic, "script: say Hi.", name))
    assert raw.headers["x-genai-ignored"] == left_out
