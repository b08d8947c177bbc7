"""Conversations of the shapes that coding agents send become prompts of published templates, whole and unrefused.

They are written by hand. scripts/check_clients.py records what the programs themselves send, and replays it the same
way.
"""

import base64
from typing import Any

import pytest
from _templates.published import NotAvailable, published_templates
from _templates.replay import faults, is_in, texts

REMINDER = "<system-reminder>\nThe file notes.md was changed by the user.\n</system-reminder>"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


def _use(id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def _answer(id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def _text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def _of(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def _item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


# As Claude Code: reminders among the user's texts, a later system message, parallel calls, tool search, text behind
# results, a call that was cut, and a web search that Anthropic's servers ran.
CLAUDE: dict[str, Any] = {
    "max_tokens": 32000,
    "stream": True,
    "thinking": {"type": "adaptive", "display": "updates"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": []},
    "diagnostics": {"previous_message_id": None},
    "metadata": {"user_id": "u"},
    "system": [_text("You are an agent for this repository."), _text("Be brief in all answers.", cache_control={})],
    "tools": [
        {"name": "Read", "description": "Reads.", "input_schema": SCHEMA},
        {"name": "ToolSearch", "description": "Searches.", "input_schema": {"type": "object"}},
        {"name": "Fetch", "description": "Fetches a page.", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "bash_20250124", "name": "bash"},
    ],
    "messages": [
        _of("user", _text(REMINDER), _text("Which key is in the files?", cache_control={})),
        _of("system", _text("# Environment\nThe platform is linux today.")),
        _of(
            "assistant",
            {"type": "thinking", "thinking": "Both files have to be read.", "signature": "s"},
            _text("I read both files now."),
            _use("t1", "Read", path="a.txt"),
            _use("t2", "Read", path="b.txt"),
        ),
        _of(
            "user",
            _answer("t1", "the first file has a heron"),
            _answer("t2", [_text("no such file was found")], is_error=True),
            _text(REMINDER.replace("notes", "plans")),
        ),
        _of("assistant", _use("t3", "ToolSearch", query="fetch")),
        _of("user", _answer("t3", [{"type": "tool_reference", "tool_name": "Fetch"}])),
        _of("assistant", {**_use("t4", "Fetch"), "input": '{"path": "https://a.ex'}),
        _of("user", _answer("t4", "the call was cut off here", cache_control={})),
        _of(
            "assistant",
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "heron"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "Herons of the world"}]},
            _text("Herons are long-legged birds."),
        ),
        {"role": "system", "content": "The user has switched to the plan mode.", "clear_at": "never"},
        _of("user", _text("And what is the second key?")),
    ],
}
# As Codex: a developer's message next to instructions, parallel calls, encrypted reasoning, a patch, and a search.
CODEX: dict[str, Any] = {
    "model": "demo",
    "stream": True,
    "store": False,
    "instructions": "You are an agent for this repository.",
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs.", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "patch", "description": "Patches."},
    ],
    "input": [
        _item("developer", "No network access today."),
        _item("user", "<environment>linux shell</environment>"),
        _item("user", "Which key is in the files?"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA", "content": None},
        _item("assistant", "I read both files now."),
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"path": "a.txt"}'},
        {"type": "function_call", "call_id": "c2", "name": "shell", "arguments": '{"path": "b.t'},
        {"type": "function_call_output", "call_id": "c1", "output": "the first file has a heron"},
        {"type": "function_call_output", "call_id": "c2", "output": "the call was cut off here"},
        _item("developer", "The user edits notes.md now."),
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "*** Begin Patch of notes"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "patched without an error"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}},
        _item("assistant", "Herons are birds."),
        _item("user", "And what is the second key?"),
    ],
}


def _called(id: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}, **more}


# As opencode, Qwen Code and Vibe: text next to calls, an index of each call, texts behind results, and a later system
# message.
CHAT: dict[str, Any] = {
    "model": "demo",
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "You are an agent for this repository."},
        {"role": "user", "content": [_text("The platform is linux today."), _text("Which key is in the files?")]},
        {
            "role": "assistant",
            "content": "I read both files now.",
            "reasoning_content": "Both files have to be read.",
            "tool_calls": [_called("call1", '{"path": "a.txt"}', index=0), _called("call2", '{"path": ', index=1)],
        },
        {"role": "tool", "tool_call_id": "call1", "name": "read_file", "content": "the first file has a heron"},
        {"role": "tool", "tool_call_id": "call2", "content": [_text("the call was cut off here")]},
        {"role": "user", "content": REMINDER},
        {"role": "assistant", "content": "There is one key so far.", "refusal": None, "annotations": [], "parsed": {}},
        {"role": "system", "content": "The user has switched to the plan mode."},
        _of("user", _text("The picture of before:"), {"type": "image_url", "image_url": {"url": PIXEL}}),
        {"role": "assistant", "content": "It shows nothing to read."},
        {"role": "user", "content": "And what is the second key?"},
    ],
}


CONVERSATIONS = {"/v1/messages": CLAUDE, "/v1/responses": CODEX, "/v1/chat/completions": CHAT}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("path", "body"), CONVERSATIONS.items())
def test_a_conversation_of_an_agent_is_whole_with_published_templates(path: str, body: dict[str, Any]) -> None:
    try:
        published_templates()
    except NotAvailable as error:
        pytest.skip(str(error))
    assert len(list(texts(body))) > 10
    assert faults(path, body) == []


def test_a_lost_text_is_found() -> None:
    assert dict(texts({"system": "a", "messages": [{"content": [{"type": "tool_result", "content": "b"}]}]})) == {
        "system": "a",
        "messages[0]": "b",
    }
    assert is_in('a line that is "long"\nshort', 'x a line that is \\"long\\" x')
    assert not is_in("a line that is long\nanother long line", "a line that is long")
