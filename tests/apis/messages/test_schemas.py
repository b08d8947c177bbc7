"""Which bodies are accepted, and the errors for others."""

from typing import Any

import pytest
from pydantic import ValidationError

from genai_server.apis.messages.schemas import CountTokensRequest, MessagesRequest
from genai_server.http.error_responses import from_findings

HELLO = {"role": "user", "content": "x"}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
NOTES = {"type": "text", "media_type": "text/plain", "data": "a"}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
TOOL = {"name": "add", "input_schema": {"type": "object"}}
BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
TYPE_OF_FIRST = "messages[0].content[0].type"


def _refusal(body: dict[str, Any]) -> tuple[str | None, str]:
    """The field that the error names, and the complete message."""
    with pytest.raises(ValidationError) as caught:
        MessagesRequest.model_validate(body)
    findings = [{**finding, "loc": ("body", *finding["loc"])} for finding in caught.value.errors()]
    error = from_findings(findings, body)
    return error.param, error.message


def _body(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [HELLO], **fields}


def _content(block: Any, role: str = "user") -> dict[str, Any]:
    return _body(messages=[{"role": role, "content": [block]}, HELLO])


@pytest.mark.parametrize(
    "body",
    [
        _body(),
        _body(model="m", metadata={"user_id": "u"}, service_tier="auto", cache_control={"type": "ephemeral"}),
        _body(system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]),
        _body(temperature=1.0, top_p=0.5, top_k=5, stop_sequences=["a", "b", "c", "d"], seed=1, min_p=0.1),
        _body(thinking={"type": "enabled", "budget_tokens": 1024, "display": "summarized"}),
        _body(thinking={"type": "adaptive", "display": "updates", "block_binding": {}}),
        _body(thinking={"type": "between_tools"}),
        _body(output_format=FORMAT),
        _body(tools=[{**TOOL, "type": "custom", "strict": True, "eager_input_streaming": True}]),
        _body(tools=[{**TOOL, "defer_loading": True, "input_examples": [{"a": 1}], "allowed_callers": ["direct"]}]),
        _body(tools=[BASH, {**EDITOR, "max_characters": 5000, "cache_control": None}]),
        _body(messages=[HELLO, {"role": "assistant", "content": [CALL]}]),
        _body(tools=[TOOL], tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True}),
        _content({"type": "text", "text": "a", "citations": None}),
        _content({"type": "document", "source": NOTES, "title": None, "cache_control": {"type": "ephemeral"}}),
        _content({"type": "thinking", "thinking": "a", "signature": "s"}, "assistant"),
        _content({"type": "redacted_thinking", "data": "s"}, "assistant"),
        _content({**CALL, "caller": {"type": "direct"}}, "assistant"),
        _content(
            {**CALL, "caller": {"type": "code_execution_20250825", "tool_id": "t"}, "toolset_name": "b"}, "assistant"
        ),
        _body(messages=[HELLO, {"role": "assistant", "content": []}, HELLO]),
    ],
)
def test_fields_of_anthropics_clients_are_accepted(body: dict[str, Any]) -> None:
    MessagesRequest.model_validate(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [HELLO]}, "max_tokens"),
        (_body(max_tokens=0), "max_tokens"),
        (_body(messages=[]), "messages"),
        (_body(messages=[{"role": "tool", "content": "x"}]), "messages[0].role"),
        (_body(messages=[{"role": "user", "content": []}]), "messages[0].content"),
        (_body(temperature=1.1), "temperature"),
        (_body(stop=["x"]), "stop"),
        (_body(stop_sequences=list(map(str, range(65)))), "stop_sequences"),
        (_body(stop_sequences=[""]), "stop_sequences[0]"),
        (_body(stop_sequences=["x" * 1025]), "stop_sequences[0]"),
        (_body(messages=[HELLO] * 4097), "messages"),
        (_body(tools=[{**TOOL, "name": f"f{n}"} for n in range(513)]), "tools"),
        (_body(thinking={"type": "sometimes"}), "thinking.type"),
        (_body(thinking={"type": "adaptive", "display": "all"}), "thinking.display"),
        (_body(thinking={"type": "adaptive", "budget_tokens": 2000}), "thinking.budget_tokens"),
        (_body(thinking={"type": "disabled", "display": "omitted"}), "thinking.display"),
        (_body(thinking={"type": "between_tools", "display": "updates"}), "thinking.display"),
        (_body(thinking={"type": "disabled"}, output_config={"effort": "low"}), "output_config.effort"),
        (_body(thinking={"type": "between_tools"}, output_config={"effort": "low"}), "output_config.effort"),
        (_body(output_format=FORMAT, output_config={"format": FORMAT}), "output_format"),
        (_body(compaction={"type": "summarize"}), "compaction"),
        (_body(tool_choice={"type": "any"}), "tool_choice"),
        (_body(tool_choice={"type": "tool"}, tools=[TOOL]), "tool_choice.name"),
        (_body(tool_choice={"type": "auto", "name": "add"}, tools=[TOOL]), "tool_choice.name"),
        (_body(tool_choice={"type": "tool", "name": "sub"}, tools=[TOOL]), "tool_choice.name"),
        (_body(tools=[TOOL, TOOL]), "tools"),
        (_body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
        (_body(tools=[{**TOOL, "input_schema": {"x": float("nan")}}]), "tools[0].input_schema"),
        (_body(tools=[{**TOOL, "input_schema": {"x": "\ud800"}}]), "tools[0].input_schema"),
        (_body(tools=[{**TOOL, "name": "a b"}]), "tools[0].name"),
        (_body(tools=[{"name": "add"}]), "tools[0].input_schema"),
        (_body(tools=[{"type": "bash_20990101", "name": "bash"}]), "tools[0].type"),
        (_body(tools=[{**TOOL, "type": "bash_20250124"}]), "tools[0].input_schema"),
        (_body(tools=[{**BASH, "description": "x"}]), "tools[0].description"),
        (_body(tools=[{**BASH, "max_characters": 5}]), "tools[0].max_characters"),
        (_body(tools=[{**EDITOR, "max_characters": 0}]), "tools[0].max_characters"),
        (_body(tools=[{**TOOL, "input_examples": ["x"]}]), "tools[0].input_examples[0]"),
        (_body(tools=[{**TOOL, "allowed_callers": ["code_execution_20250825"]}]), "tools[0].allowed_callers[0]"),
        (_body(messages=[{**HELLO, "clear_at": "never"}]), "messages[0].clear_at"),
        (_body(messages=[HELLO, {"role": "system", "content": "x", "clear_at": "soon"}]), "messages[1].clear_at"),
        (_content({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "add"}}), TYPE_OF_FIRST),
        (_body(mcp_servers=[{}]), "mcp_servers[0].type"),
        (_content({"type": "image", "source": {}}), "messages[0].content[0].source"),
        (_content({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source"),
        (_content({"type": "image", "source": {**PNG, "data": ""}}), "messages[0].content[0].source.data"),
        (
            _content({"type": "image", "source": {**PNG, "media_type": "image/tiff"}}),
            "messages[0].content[0].source.media_type",
        ),
        (_content({"type": "image", "source": {"type": "url"}}), "messages[0].content[0].source.url"),
        (_content({"type": "document", "source": {}}), "messages[0].content[0].source"),
        (_content({"type": "document", "source": PDF}), "messages[0].content[0].source"),
        (_content({"type": "document", "source": {**NOTES, "data": 5}}), "messages[0].content[0].source.data"),
        (_content({"type": "document", "source": NOTES, "title": 5}), "messages[0].content[0].title"),
        (_content({"type": "document", "source": NOTES, "citations": {}}), "messages[0].content[0].citations"),
        (
            _content({"type": "document", "source": {"type": "content", "content": [CALL]}}),
            "messages[0].content[0].source.content[0]",
        ),
        (_content({}), "messages[0].content[0]"),
        (_content({"type": "text", "text": "a", "more": 1}), "messages[0].content[0].more"),
        (_content({"type": "thinking", "thinking": 5}, "assistant"), "messages[0].content[0].thinking"),
        (_content({"type": "thinking", "thinking": "a"}), "messages[0].content[0].type"),
        (_content({"type": "tool_result", "tool_use_id": "t"}, "assistant"), "messages[0].content[0].type"),
        (_content(CALL), "messages[0].content[0].type"),
        (
            _content({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0].source",
        ),
        (
            _content({"type": "tool_result", "tool_use_id": "t", "content": [CALL]}),
            "messages[0].content[0].content[0]",
        ),
    ],
)
def test_invalid_field_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    found, message = _refusal(body)
    assert found == param
    assert message.startswith(f"{param} ")


def test_refusal_of_a_file_says_that_files_are_not_read() -> None:
    _, message = _refusal(_content({"type": "document", "source": PDF}))
    assert "must be a source of type text or content: this server reads no files" in message


def test_refusal_of_a_block_lists_the_supported_ones() -> None:
    _, message = _refusal(_content({"type": "search_result"}))
    assert (
        "must be a block of type text, image, document, thinking, redacted_thinking, tool_use, tool_result" in message
    )


@pytest.mark.parametrize("field", ["max_tokens", "temperature", "stream", "stop_sequences"])
def test_counting_refuses_fields_without_effect_on_the_prompt(field: str) -> None:
    with pytest.raises(ValidationError):
        CountTokensRequest.model_validate({"messages": [HELLO], field: None})
