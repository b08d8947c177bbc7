"""What another provider's tools did is kept as text."""

from typing import Any

import pytest

from genai_server.apis.shared.chat_history import note, note_role


def test_a_note_has_the_fields_of_a_call_but_no_ids() -> None:
    action = {"type": "search", "query": "weather", "sources": [{"type": "url", "url": "https://a.example"}]}
    call = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    assert note(call) == (
        '[web_search_call]\naction: {"type": "search", "query": "weather", '
        '"sources": [{"type": "url", "url": "https://a.example"}]}'
    )


def test_texts_are_written_as_they_are() -> None:
    value = {"type": "agent_message", "content": [{"type": "text", "text": "a\n"}, {"type": "text", "text": '"b"'}]}
    assert note(value) == '[agent_message]\ncontent: a\n\n"b"'


def test_files_and_encrypted_content_are_left_out() -> None:
    page = {"type": "web_search_result", "title": "T", "encrypted_content": "x", "page_age": None}
    value = {"type": "x_result", "image": f"data:image/png;base64,{'A' * 20}", "file": "Ab1/" * 200, "content": [page]}
    assert note(value) == (
        "[x_result]\nimage: (file left out)\nfile: (file left out)\n"
        'content: [{"type": "web_search_result", "title": "T"}]'
    )


def test_a_value_without_meaning_is_its_type() -> None:
    assert note({"type": "compaction_trigger", "id": "1", "output": None, "results": []}) == "[compaction_trigger]"


def test_false_and_zero_are_part_of_a_note() -> None:
    assert note({"type": "mcp_approval_response", "approve": False, "n": 0}).splitlines()[1:] == [
        "approve: false",
        "n: 0",
    ]


@pytest.mark.parametrize(
    ("value", "role"),
    [
        ({"type": "mcp_call"}, "assistant"),
        ({"type": "program_output"}, "user"),
        ({"type": "mcp_approval_response"}, "user"),
        ({"type": "web_search_tool_result"}, "user"),
        ({"type": "agent_message", "role": "developer"}, "developer"),
        ({"type": "agent_message", "role": ["x"]}, "assistant"),
    ],
)
def test_the_role_of_a_note(value: dict[str, Any], role: str) -> None:
    assert note_role(value) == role
