"""Tools that the client runs: as functions of the prompt, and their calls and outputs as items."""

import json
from typing import Any

import pytest

from genai_server.apis.responses.items import to_messages, to_response_items
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.responses.translate import to_chat
from genai_server.errors import InvalidField
from genai_server.generation.parameters.chat_messages import ChatParameters
from tests.running_server import RunningServer

FUNCTION = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
DEFERRED = {**FUNCTION, "name": "subtract", "defer_loading": True}
SEARCH = {"type": "tool_search", "execution": "client"}
USER = {"role": "user", "content": "x"}


def _chat(*items: Any, tools: Any, **fields: Any) -> ChatParameters:
    body = ResponsesRequest.model_validate({"input": [USER, *items], "tools": tools, **fields})
    return to_chat(body, to_response_items(body.input, {}))


def _called(chat: ChatParameters) -> list[str]:
    return [tool.function.name for tool in chat.tools or []]


def _names(*items: Any, tools: Any, **fields: Any) -> list[str]:
    return _called(_chat(*items, tools=tools, **fields))


def _additional(*tools: Any) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def _read(call: dict[str, Any], output: dict[str, Any]) -> tuple[str, Any, Any]:
    """Name and arguments of a call in the prompt, and its result."""
    body = ResponsesRequest.model_validate({"input": [USER, call, output]})
    _, turn, result = to_messages(to_response_items(body.input, {}))
    (called,) = turn.tool_calls or []
    return called.function.name, json.loads(called.function.arguments), result.content


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_a_tool_is_a_function_whose_schema_is_followed(kind: str) -> None:
    (tool,) = _chat(tools=[{"type": kind}], tool_choice="required").tools or []
    assert (tool.function.name, tool.function.strict) == (kind, True)
    assert tool.function.parameters == {**(tool.function.parameters or {}), "additionalProperties": False}


def test_a_local_command_has_at_least_a_program() -> None:
    (tool,) = _chat(tools=[{"type": "local_shell"}]).tools or []
    command = (tool.function.parameters or {})["properties"]["command"]
    assert (command["type"], command["minItems"]) == ("array", 1)


def test_skills_are_described_to_the_model() -> None:
    skill = {"name": "pdf", "description": "Read PDFs.", "path": "skills/pdf"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    (tool,) = _chat(tools=[shell]).tools or []
    lines = (tool.function.description or "").splitlines()
    assert lines[1].startswith("Skills")
    assert lines[2:] == ["- pdf (skills/pdf): Read PDFs."]


@pytest.mark.parametrize("kind", ["shell", "local_shell", "tool_search", "apply_patch"])
def test_a_tool_can_be_chosen(kind: str) -> None:
    tools = [FUNCTION, SEARCH if kind == "tool_search" else {"type": kind}]
    chosen = _chat(tools=tools, tool_choice={"type": kind}).model_dump()["tool_choice"]
    assert chosen == {"type": "function", "function": {"name": kind}}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]}
    assert _names(tools=tools, tool_choice=allowed) == [kind]


SHELL_CALL = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": 5}}


def _shell_output(*outputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "shell_call_output", "call_id": "c", "output": list(outputs), **fields}


def _ran(stdout: str = "", stderr: str = "", exit_code: int | None = 0) -> dict[str, Any]:
    outcome: dict[str, Any] = {"type": "timeout"} if exit_code is None else {"type": "exit", "exit_code": exit_code}
    return {"stdout": stdout, "stderr": stderr, "outcome": outcome}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (_shell_output(_ran("a")), "a"),
        (_shell_output(_ran("a"), _ran("b")), "a\nb"),
        (_shell_output(_ran()), "exit code 0"),
        (_shell_output(_ran("a", "b", 2)), "a\nstderr:\nb\nexit code 2"),
        (_shell_output(_ran("a", exit_code=None)), "a\ntimed out"),
        (_shell_output(status="failed"), "failed"),
    ],
)
def test_result_of_a_shell_call_is_what_the_commands_have_written(output: dict[str, Any], expected: str) -> None:
    assert _read(SHELL_CALL, output) == ("shell", {"commands": ["ls"], "timeout_ms": 5}, expected)


@pytest.mark.parametrize("field", ["id", "call_id"])
def test_output_of_a_local_shell_call_has_its_call_in_either_field(field: str) -> None:
    action = {"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": "/tmp"}
    call = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": action, "status": "completed"}
    output = {"type": "local_shell_call_output", field: "c", "output": "a"}
    assert _read(call, output) == ("local_shell", {"command": ["ls", "-l"], "working_directory": "/tmp"}, "a")


def _search(*tools: Any) -> list[dict[str, Any]]:
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}}
    return [call, {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": list(tools)}]


def _texts(chat: ChatParameters) -> list[Any]:
    return [message.content for message in chat.messages]


def test_a_deferred_tool_is_defined_where_a_search_has_found_it() -> None:
    tools = [SEARCH, FUNCTION, DEFERRED]
    assert _names(tools=tools) == ["tool_search", "add"]
    chat = _chat(*_search(DEFERRED), tools=tools)
    assert _called(chat) == ["tool_search", "add", "subtract"]
    # So the beginning of the prompt is what it was.
    assert [tool.function.name for tool in chat.listed_tools] == ["tool_search", "add"]
    definition = {"description": "Adds.", "name": "subtract", "parameters": {"type": "object"}}
    assert _texts(chat)[-1] == f"<functions>\n<function>{json.dumps(definition)}</function>\n</functions>"
    assert _texts(_chat(*_search(), tools=[SEARCH]))[-1] == "No tools were found."


def test_a_tool_at_the_beginning_is_only_named_where_a_search_has_found_it() -> None:
    chat = _chat(*_search(FUNCTION, {"type": "shell"}), tools=[SEARCH, FUNCTION])
    first, second = _texts(chat)[-1].splitlines()[1:-1]
    assert first == '<function>{"name": "add"}</function>'
    assert '"name": "shell", "parameters": {' in second


def test_a_deferred_tool_that_was_called_or_is_chosen_is_shown() -> None:
    tools = [SEARCH, DEFERRED]
    call = {"type": "function_call", "call_id": "1", "name": "subtract", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "2"}
    assert _names(call, output, tools=tools) == ["tool_search", "subtract"]
    assert "subtract" in _names(tools=tools, tool_choice={"type": "function", "name": "subtract"})


def test_tools_that_only_a_search_has_brought_can_be_called() -> None:
    space = {"type": "namespace", "name": "math", "description": "Numbers.", "tools": [FUNCTION]}
    chat = _chat(*_search(space, {"type": "custom", "name": "note"}), tools=[SEARCH])
    _, function, custom = chat.tools or []
    assert (function.function.name, function.function.description) == ("math__add", "Numbers.\nAdds.")
    assert (custom.function.name, custom.function.strict) == ("note", True)
    assert '"name": "math__add"' in _texts(chat)[-1]


def test_additional_tools_are_defined_in_their_place() -> None:
    more = _additional(FUNCTION, {**FUNCTION, "name": "more"})
    chat = _chat(more, tools=[{**FUNCTION, "description": "Own."}])
    described = [(tool.function.name, tool.function.description) for tool in chat.tools or []]
    assert described == [("add", "Own."), ("more", "Adds.")]
    assert [tool.function.name for tool in chat.listed_tools] == ["add"]
    assert [message.role for message in chat.messages] == ["user", "developer"]
    assert '<function>{"name": "add"}</function>' in _texts(chat)[-1]
    # They are at the beginning if there are no others.
    alone = _chat(_additional(FUNCTION), tools=None)
    assert ([tool.function.name for tool in alone.listed_tools], _texts(alone)) == (["add"], ["x"])


def test_the_number_of_tools_has_a_limit() -> None:
    more = [{**FUNCTION, "name": f"f{number}"} for number in range(512)]
    with pytest.raises(InvalidField, match="until there are 512; given 513"):
        _chat(_additional(*more), tools=[FUNCTION])


def _searching(*tools: Any, **fields: Any) -> Any:
    chat = _chat(tools=[{**SEARCH, **fields}, *tools])
    return next(tool.function for tool in chat.tools or [] if tool.function.name == "tool_search")


def test_a_search_without_a_schema_is_for_the_paths_of_deferred_tools() -> None:
    inside = {**DEFERRED, "namespace": "crm", "namespace_description": "Customers."}
    function = _searching(FUNCTION, DEFERRED, inside, {**inside, "name": "other"})
    listed = "What can be loaded:\n- subtract: Adds."
    assert function.description == f"Load more tools, which can be called afterwards.\n{listed}\n- crm: Customers."
    (paths,) = function.parameters["properties"].values()
    assert paths["items"] == {"type": "string", "enum": ["subtract", "crm"]}
    assert _searching(FUNCTION).parameters["properties"]["paths"]["items"] == {"type": "string"}
    own = _searching(DEFERRED, description="Find.", parameters={"type": "object"})
    assert (own.description, own.parameters) == (f"Find.\n{listed}", {"type": "object"})


def _call(name: str, arguments: Any) -> str:
    return f"say <tool_call>⏎{json.dumps({'name': name, 'arguments': arguments})}⏎</tool_call>"


@pytest.mark.parametrize("stream", [False, True])
def test_a_search_loop_ends_in_a_call_of_the_tool_that_was_found(scripted: RunningServer, stream: bool) -> None:
    tools = [SEARCH, {"type": "namespace", "name": "math", "description": "Numbers.", "tools": [DEFERRED]}]
    question = {"role": "user", "content": _call("tool_search", {"paths": ["math"]})}

    def output(*items: Any) -> dict[str, Any]:
        asked = {"input": [question, *items], "tools": tools, "stream": stream}
        response = scripted.client.post("/v1/responses", json=asked)
        assert response.status_code == 200, response.text
        last = response.text.strip().splitlines()[-1].removeprefix("data: ")
        (item,) = (json.loads(last)["response"] if stream else response.json())["output"]
        return dict(item)

    search = output()
    expected = {"type": "tool_search_call", "execution": "client", "arguments": {"paths": ["math"]}}
    assert search == search | expected
    found = {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "tools": tools[1:]}
    call = output(search, found, {"role": "user", "content": _call("math__subtract", {})})
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "math", "subtract")


def test_hosted_tools_of_the_same_types_are_left_out_and_named(scripted: RunningServer) -> None:
    shells = [{"type": "shell", "environment": given} for given in ({"type": "container_auto"}, None)]
    tools = [{"type": "tool_search"}, *shells, DEFERRED]
    response = scripted.client.post("/v1/responses", json={"input": _call("subtract", {}), "tools": tools})
    named = "tools[3].defer_loading, tools[0] (tool_search), tools[1] (shell)"
    assert response.headers["x-genai-ignored"] == named
    assert [tool["type"] for tool in response.json()["tools"]] == ["shell", "function"]
    assert response.json()["output"][0]["name"] == "subtract"
