"""Everything that the server sends on OpenAI's paths has the fields of OpenAI's classes, plus documented ones."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem
from openai.types.model import Model
from openai.types.responses import CompactedResponse, Response, ResponseItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.running_server import RunningServer

# This server's own fields, described in docs/api.md and docs/compatibility.md.
OF_THIS_SERVER = {
    # Open Responses requires these in a response.
    *("frequency_penalty", "presence_penalty", "store"),
    *("genai_finish_reason", "metrics", "prompt_progress", "reasoning", "reasoning_content"),
    # Of the output of a local_shell call, whose id OpenAI's API has in `id`.
    "call_id",
    # Fields of a model: those of vLLM, OpenRouter and this server.
    *("capabilities", "context_length", "limited_by", "max_model_len", "parent", "root", "state", "chat"),
}


def unknown_fields(value: Any, place: str = "") -> Iterator[str]:
    """The places of fields that these objects' classes lack."""
    if isinstance(value, BaseModel):
        yield from (f"{place}.{name}" for name in value.model_extra or () if name not in OF_THIS_SERVER)
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from unknown_fields(one, f"{place}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from unknown_fields(one, f"{place}[]")


FUNCTION = {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b"}
TOOLS = [FUNCTION, {"type": "custom", "name": "note"}, {"type": "apply_patch"}]
TOOLS += [{"type": "namespace", "name": "math", "description": "Numbers.", "tools": [FUNCTION]}]
OWN_MACHINE = {"type": "local", "skills": [{"name": "pdf", "description": "Read PDFs.", "path": "skills/pdf"}]}
SHELLS = [{"type": "shell", "environment": OWN_MACHINE}, {"type": "local_shell"}]
DEFERRED = {**FUNCTION, "name": "subtract", "defer_loading": True}
SEARCH = [{"type": "tool_search", "execution": "client", "description": "Find tools."}, FUNCTION, DEFERRED]


def _call(name: str, arguments: Any) -> str:
    return f"<tool_call>⏎{json.dumps({'name': name, 'arguments': arguments})}⏎</tool_call>"


ANSWERS: dict[str, dict[str, Any]] = {
    "words": {"input": "say hi"},
    "scored": {"input": "say hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1},
    "reasoning": {"input": "say <think>so</think>yes", "include": ["reasoning.encrypted_content"]},
    "function": {"input": f"say yes{_call('add', {'a': 1})}", "tools": TOOLS, "tool_choice": "auto"},
    "namespace": {"input": f"say {_call('math__add', {})}", "tools": TOOLS},
    "custom": {"input": f"say {_call('note', {'input': 'x'})}", "tools": TOOLS},
    "patch": {"input": f"say {_call('apply_patch', PATCH)}", "tools": TOOLS},
    "cut patch": {"input": f"say {_call('apply_patch', PATCH)}", "tools": TOOLS, "max_output_tokens": 70},
    "custom in a namespace": {
        "input": f"say {_call('notes__note', {'input': 'x'})}",
        "tools": [{"type": "namespace", "name": "notes", "description": "Notes.", "tools": [TOOLS[1]]}],
    },
    "shell": {"input": f"say {_call('shell', {'commands': ['ls', 'pwd'], 'timeout_ms': 1000})}", "tools": SHELLS},
    "local shell": {"input": f"say {_call('local_shell', {'command': ['ls', '-l']})}", "tools": SHELLS},
    "cut shell": {
        "input": f"say {_call('shell', {'commands': ['rm -r a/b']})}",
        "tools": SHELLS,
        "max_output_tokens": 65,
    },
    "search": {"input": f"say {_call('tool_search', {'paths': ['subtract']})}", "tools": SEARCH},
    "named": {
        "input": f"say {_call('add', {})}",
        "tools": TOOLS[:1],
        "tool_choice": {"type": "function", "name": "add"},
    },
    "cut": {"input": "say hello", "max_output_tokens": 2},
    "late": {"input": "delay 0.1; say hello", "timeout": 0.2},
    "fields": {
        "input": [{"role": "user", "content": "say {}"}],
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "reasoning": {"effort": "none"},
        "text": {"format": {"type": "json_object"}},
        "truncation": "auto",
        "user": "me",
        "safety_identifier": "me",
        "prompt_cache_key": "key",
        "service_tier": "auto",
        "max_tool_calls": 1,
        "parallel_tool_calls": False,
    },
}


# The types of items that only some of these answers contain.
OUTPUTS = {
    "reasoning": ["reasoning", "message"],
    "function": ["message", "function_call"],
    "namespace": ["function_call"],
    "custom": ["custom_tool_call"],
    "patch": ["apply_patch_call"],
    "cut patch": [],
    "custom in a namespace": ["custom_tool_call"],
    "shell": ["shell_call"],
    "local shell": ["local_shell_call"],
    "cut shell": [],
    "search": ["tool_search_call"],
    "named": ["function_call"],
}


def _streamed(server: RunningServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    lines = server.client.post(path, json={**fields, "stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def _post(server: RunningServer, path: str, **fields: Any) -> Any:
    response = server.client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def _get(server: RunningServer, path: str) -> Any:
    return server.client.get(path).json()


# Made once for each type: that takes longer than the checks.
_adapter = cache(TypeAdapter[Any])


def _check(kind: Any, *values: Any) -> None:
    for value in values:
        assert list(unknown_fields(_adapter(kind).validate_python(value))) == [], value


@pytest.mark.parametrize("name", ANSWERS)
def test_responses_and_their_events_have_openais_fields(scripted: RunningServer, name: str) -> None:
    response = _post(scripted, "/v1/responses", **ANSWERS[name])
    events = _streamed(scripted, "/v1/responses", **ANSWERS[name])
    _check(Response, response)
    _check(ResponseStreamEvent, *events)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for found in (response, events[-1]["response"]):
        assert [item["type"] for item in found["output"]] == OUTPUTS.get(name, ["message"])


def test_a_failed_response_has_openais_fields(scripted: RunningServer) -> None:
    events = _streamed(scripted, "/v1/responses", input="say hello; fail at 2", background=True)
    assert events[-1]["type"] == "response.failed"
    _check(ResponseStreamEvent, *events)
    _check(Response, _get(scripted, f"/v1/responses/{events[-1]['response']['id']}"))


def _conversation_items() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}", "namespace": "math"},
        {"type": "function_call_output", "call_id": "1", "output": "2", "name": "add"},
        {"type": "custom_tool_call", "call_id": "2", "name": "note", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
        {"type": "apply_patch_call", "call_id": "3", "operation": PATCH, "status": "completed"},
        {"type": "apply_patch_call_output", "call_id": "3", "status": "failed", "output": "no such file"},
        {"type": "shell_call", "call_id": "4", "action": {"commands": ["ls"]}, "environment": {"type": "local"}},
        {
            "type": "shell_call_output",
            "call_id": "4",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        {"type": "local_shell_call", "call_id": "5", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "5", "output": "a"},
        {"type": "tool_search_call", "call_id": "6", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "6", "execution": "client", "tools": [FUNCTION]},
        {"type": "additional_tools", "role": "developer", "tools": [{**FUNCTION, "name": "more"}]},
        {"type": "mcp_call", "id": "mcp_1", "name": "f", "server_label": "s", "arguments": "{}", "output": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "say z"},
    ]


def test_listed_items_have_openais_fields(scripted: RunningServer) -> None:
    given = _conversation_items()
    response = _post(scripted, "/v1/responses", input=given)
    listed = _get(scripted, f"/v1/responses/{response['id']}/input_items?order=asc")["data"]
    assert len(listed) == len(given)
    _check(ResponseItem, *listed)


def test_conversations_have_openais_fields(scripted: RunningServer) -> None:
    given = _conversation_items()
    conversation = _post(scripted, "/v1/conversations", items=given, metadata={"a": "b"})
    path = f"/v1/conversations/{conversation['id']}"
    _check(Conversation, conversation, _get(scripted, path))
    items = _get(scripted, f"{path}/items?order=asc")["data"]
    assert len(items) == len(given)
    _check(ConversationItem, *items)
    _check(ConversationDeletedResource, scripted.client.delete(path).json())


def test_a_compacted_response_has_openais_fields(scripted: RunningServer) -> None:
    found = _post(scripted, "/v1/responses/compact", model="demo", input="say x")
    # OpenAI documents the users' messages there, but the class has only items of the model.
    said, compaction = found["output"]
    _check(ResponseItem, said)
    _check(CompactedResponse, {**found, "output": [compaction]})


_ADDING = {"messages": [{"role": "user", "content": f"say {_call('add', {})}"}]}
CHATS: dict[str, dict[str, Any]] = {
    "scored": {"logprobs": True, "top_logprobs": 1, "n": 2},
    "reasoning": {"messages": [{"role": "user", "content": "say <think>so</think>yes"}]},
    "call": {**_ADDING, "tools": [{"type": "function", "function": {"name": "add"}}]},
    "function": {**_ADDING, "functions": [{"name": "add"}]},
    "late": {"messages": [{"role": "user", "content": "delay 0.1; say hello"}], "timeout": 0.2},
    "metrics": {"include_metrics": True},
}


@pytest.mark.parametrize("name", CHATS)
def test_chat_completions_have_openais_fields(scripted: RunningServer, name: str) -> None:
    path, fields = "/v1/chat/completions", {"messages": [{"role": "user", "content": "say hi"}], **CHATS[name]}
    _check(ChatCompletion, _post(scripted, path, **fields))
    chunks = _streamed(scripted, path, **fields, return_progress=True, stream_options={"include_usage": True})
    assert len(chunks) > 2
    _check(ChatCompletionChunk, *chunks)


def test_completions_have_openais_fields(scripted: RunningServer) -> None:
    fields = {"prompt": "say hi", "logprobs": 1}
    for one in (_post(scripted, "/v1/completions", **fields), *_streamed(scripted, "/v1/completions", **fields)):
        # Complete completions share the class of chunks, whose finish reason may be null.
        choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in one["choices"]]
        _check(Completion, {**one, "choices": choices})


def test_models_have_openais_fields(scripted: RunningServer) -> None:
    (model,) = _get(scripted, "/v1/models")["data"]
    _check(Model, model)
