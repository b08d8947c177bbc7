"""Blocks that this server's messages do not have are read as text, and the response names them."""

from copy import deepcopy
from typing import Any

import httpx
import pytest

from genai_server.apis.messages.leniency import convert
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER
from tests.running_server import RunningServer

USER = {"role": "user", "content": "say hi"}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "weather"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srv_1",
    "content": [{"type": "web_search_result", "title": "T", "url": "https://a.example", "encrypted_content": "x"}],
}
FROM_NOW_ON = {"type": "tool_reference", "name": "add"}


def _converted(block: Any, role: str = "assistant") -> tuple[list[str], Any]:
    body: Any = {"messages": [{"role": role, "content": [deepcopy(block)]}, USER]}
    names = convert(body)
    return names, body["messages"][0]["content"][0]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (SEARCH, '[server_tool_use]\nname: web_search\ninput: {"query": "weather"}'),
        (
            FOUND,
            '[web_search_tool_result]\ncontent: [{"type": "web_search_result", "title": "T", "url": "https://a.example"}]',
        ),
        (
            {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": [{"name": "f"}]},
            "[mcp_tool_listing]\nmcp_server_name: s",
        ),
    ],
)
def test_a_block_of_another_server_is_a_note(block: Any, text: str) -> None:
    names = [f"messages[0].content[0] ({block['type']} as text)"]
    assert _converted(block) == (names, {"type": "text", "text": text})


def test_parts_of_results_and_documents_are_notes_too() -> None:
    block = {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "found"}]}
    text = "[search_result]\ntitle: T\nsource: s\ncontent: found"
    document = {"type": "document", "source": {"type": "content", "content": [deepcopy(block)]}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block, document]}
    names, converted = _converted(result, "user")
    assert converted["content"][0] == {"type": "text", "text": text}
    assert converted["content"][1]["source"]["content"] == [{"type": "text", "text": text}]
    assert names == [
        "messages[0].content[0].content[0] (search_result as text)",
        "messages[0].content[0].content[1].source.content[0] (search_result as text)",
    ]


@pytest.mark.parametrize("kind", ["hologram", "größe", "a b" * 50])
def test_a_block_of_a_type_that_comes_later_is_a_note(kind: str) -> None:
    names, block = _converted({"type": kind, "text": "seen", "data": "x" * 600})
    assert block == {"type": "text", "text": f"[{kind}]\ntext: seen\ndata: (file left out)"}
    assert names == [f"messages[0].content[0] ({'hologram' if kind == 'hologram' else 'a block'} as text)"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ("", {}),
        ('{"city": "Paris"}', {"city": "Paris"}),
        ('{"city": ', {"input": '{"city": '}),
        ([1], {"input": [1]}),
    ],
)
def test_the_input_of_a_call_that_was_cut_becomes_an_object(given: Any, expected: dict[str, Any]) -> None:
    names, block = _converted({"type": "tool_use", "id": "t", "name": "f", "input": given})
    assert (names, block["input"]) == (["messages[0].content[0].input (as an object)"], expected)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp_tool_reference", "server_name": "s", "name": "f"},
        {"type": "mcp_toolset_reference", "server_name": "s"},
        {"type": "tool_definition", "definition": {"type": "web_search_20250305", "name": "web_search"}},
        None,
    ],
)
def test_changes_of_tools_that_only_other_servers_run_are_notes(tool: Any) -> None:
    change = {"type": "tool_addition", "tool": tool}
    assert _converted(change, "system")[0] == ["messages[0].content[0] (tool_addition as text)"]
    summary = {"type": "compaction", "content": "So far.", "tool_changes": [change, {**change, "tool": FROM_NOW_ON}]}
    names, block = _converted(summary)
    assert names == ["messages[0].content[0].tool_changes (without those of other tools)"]
    assert block["tool_changes"] == [{**change, "tool": FROM_NOW_ON}]


def test_changes_of_tools_stay_in_messages_of_the_system() -> None:
    change = {"type": "tool_addition", "tool": FROM_NOW_ON}
    assert _converted(change, "system") == ([], change)
    assert _converted(change, "user")[0] == ["messages[0].content[0] (tool_addition as text)"]


def test_a_system_message_of_options_alone_is_empty() -> None:
    body: Any = {"messages": [USER, {"role": "system", "output_config": {"effort": "low"}}]}
    assert convert(body) == []
    assert body["messages"][1]["content"] == ""


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"messages": 5},
        {"messages": [3, {"content": "x"}, {"content": [None, {"type": ["image"]}, {}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        {"messages": [{"role": "system", "content": None, "output_config": {}}]},
    ],
)
def test_all_else_stays(body: Any) -> None:
    before = deepcopy(body)
    assert (convert(body), body) == ([], before)


def _asked(server: RunningServer, *messages: Any, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/messages", json={"max_tokens": 50, "messages": [*messages, USER], **fields})


def test_conversation_of_another_server_is_answered_and_named(scripted: RunningServer, strict: RunningServer) -> None:
    asked = {"role": "user", "content": "What is the weather?"}
    answer = {"role": "assistant", "content": [SEARCH, FOUND, {"type": "text", "text": "Sunny."}]}
    for server in (scripted, strict):
        response = _asked(server, asked, answer)
        assert (response.status_code, response.json()["content"][0]["text"]) == (200, "hi")
        assert response.headers[CONVERTED_HEADER] == (
            "messages[1].content[0] (server_tool_use as text), messages[1].content[1] (web_search_tool_result as text)"
        )
        assert IGNORED_HEADER not in response.headers


def test_a_conversation_may_end_with_calls_or_have_none(scripted: RunningServer) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
    messages = [USER, {"role": "assistant", "content": [call]}]
    assert scripted.client.post("/v1/messages", json={"max_tokens": 9, "messages": messages}).status_code == 200
    result = {"type": "tool_result", "tool_use_id": "t0", "content": "3"}
    response = _asked(scripted, {"role": "user", "content": [result]})
    assert response.status_code == 200
    assert response.headers[CONVERTED_HEADER] == "messages[0].content[0] (tool_result without its call, as text)"


def test_strict_requests_may_lose_nothing_of_their_history(strict: RunningServer) -> None:
    cited = {"type": "text", "text": "x", "citations": [{"type": "char_location"}]}
    response = _asked(strict, {"role": "assistant", "content": [cited]})
    assert response.status_code == 400
    assert "messages[0].content[0].citations" in response.json()["error"]["message"]
