"""Which tools are at the beginning of a prompt, which its messages introduce, and which an answer may call."""

from typing import Any

import pytest

from genai_server.apis.messages.schemas import MessagesRequest
from genai_server.apis.messages.tools import CLIENT_TOOLS, OfferedTools
from genai_server.apis.messages.translate import Translation
from genai_server.errors import InvalidField
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, Leniency

HELLO = {"role": "user", "content": "x"}
SEARCH = {"name": "search", "input_schema": {"type": "object"}}
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
DEFERRED = {**ADD, "defer_loading": True}
DEFINITION = '<function>{"description": "Adds.", "name": "add", "parameters": {"type": "object"}}</function>'
FOUND = {"type": "tool_reference", "tool_name": "add"}
BY_NAME = {"type": "tool_reference", "name": "add"}
CHANGES = [{"type": "tool_addition", "tool": BY_NAME}, {"type": "tool_removal", "tool": BY_NAME | {"name": "search"}}]
SUMMARY = {"role": "assistant", "content": [{"type": "compaction", "content": "x", "tool_changes": CHANGES}]}


def _body(*messages: Any, **fields: Any) -> MessagesRequest:
    return MessagesRequest.model_validate({"max_tokens": 5, "messages": [HELLO, *messages], **fields})


def _searched(*found: Any) -> tuple[Any, Any]:
    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [*found]}
    return {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}


def _system(*blocks: Any) -> Any:
    return {"role": "system", "content": [*blocks]}


def _names(*messages: Any, **fields: Any) -> tuple[list[str], list[str]]:
    """The tools at the beginning of the prompt, and those that can be called."""
    tools = OfferedTools(_body(*messages, **fields))
    return [tool["name"] for tool in tools.listed], [tool["name"] for tool in tools.callable]


def _last(*messages: Any, tools: Any) -> Any:
    """The content of the last message of the prompt."""
    return Translation(_body(*messages, tools=tools)).chat.messages[-1].content


def _changed(change: str, tool: Any) -> Any:
    return _system({"type": f"tool_{change}", "tool": tool})


def _reported(translation: Translation) -> dict[str, str]:
    leniency = Leniency()
    translation.report(leniency)
    return leniency.report()


@pytest.mark.parametrize(
    ("messages", "fields", "listed", "callable"),
    [
        ([], {}, ["search"], ["search"]),
        ([*_searched(FOUND)], {}, ["search"], ["search", "add"]),
        ([_changed("addition", BY_NAME)], {}, ["search"], ["search", "add"]),
        ([], {"tool_choice": {"type": "tool", "name": "add"}}, ["search", "add"], ["search", "add"]),
        # A summary keeps its changes of tools.
        ([SUMMARY, HELLO], {}, ["search"], ["add"]),
    ],
    ids=["not found", "found", "added", "chosen", "a summary"],
)
def test_a_deferred_tool_can_be_called_from_its_reference_on(
    messages: list[Any], fields: dict[str, Any], listed: list[str], callable: list[str]
) -> None:
    assert _names(*messages, tools=[SEARCH, DEFERRED], **fields) == (listed, callable)


def test_the_prompt_has_the_definition_where_the_tool_is_found() -> None:
    translation = Translation(_body(*_searched(FOUND, FOUND | {"tool_name": "sub"}), tools=[SEARCH, DEFERRED]))
    content = f'<functions>\n{DEFINITION}\n<function>{{"name": "sub"}}</function>\n</functions>'
    assert translation.chat.messages[-1].content == content
    places = [f"messages[2].content[0].content[{number}] (tool_reference as text)" for number in range(2)]
    assert _reported(translation) == {CONVERTED_HEADER: ", ".join(places)}
    assert [tool.function.name for tool in translation.chat.listed_tools] == ["search"]
    assert [tool.function.name for tool in translation.chat.tools or []] == ["search", "add"]
    # The prompt before a reference does not depend on it.
    before = Translation(_body(tools=[SEARCH, DEFERRED])).chat
    assert translation.chat.listed_tools == before.listed_tools
    assert translation.chat.messages[0] == before.messages[0]


def test_texts_stay_around_references() -> None:
    parts = [{"type": "text", "text": "Found:"}, FOUND, {"type": "text", "text": "Done."}]
    found = _last(*_searched(*parts), tools=[SEARCH, DEFERRED])
    assert found == f"Found:\n<functions>\n{DEFINITION}\n</functions>\nDone."
    # A tool of the beginning is named.
    named = _last(*_searched(FOUND), tools=[SEARCH, ADD])
    assert named == '<functions>\n<function>{"name": "add"}</function>\n</functions>'


def test_tools_are_not_deferred_if_all_are() -> None:
    translation = Translation(_body(tools=[DEFERRED]))
    assert [tool.function.name for tool in translation.chat.listed_tools] == ["add"]
    assert _reported(translation) == {IGNORED_HEADER: "tools[0].defer_loading"}


def test_a_message_may_define_a_tool() -> None:
    addition = _changed("addition", {"type": "tool_definition", "definition": ADD})
    assert _names(addition, tools=[SEARCH]) == (["search"], ["search", "add"])
    assert _last(addition, tools=[SEARCH]) == f"[tool_addition]\n<functions>\n{DEFINITION}\n</functions>"


def test_a_removed_tool_cannot_be_called_but_stays_in_the_prompt() -> None:
    removal, again = _changed("removal", BY_NAME), _changed("addition", BY_NAME)
    assert _names(removal, tools=[SEARCH, ADD]) == (["search", "add"], ["search"])
    assert _last(removal, tools=[SEARCH, ADD]) == "[tool_removal]\nname: add"
    assert _names(removal, again, tools=[SEARCH, ADD])[1] == ["search", "add"]
    with pytest.raises(InvalidField, match="tool_choice of type any is only allowed with a tool that is loaded"):
        Translation(_body(removal, tools=[ADD], tool_choice={"type": "any"}))
    assert not Translation(_body(removal, tools=[ADD])).chat.tools


def test_the_number_of_defined_tools_has_a_limit() -> None:
    definitions = [{"type": "tool_definition", "definition": {**ADD, "name": f"f{number}"}} for number in range(513)]
    blocks = [{"type": "tool_addition", "tool": one} for one in definitions]
    assert len(Translation(_body(_system(*blocks[:512]))).chat.tools or []) == 512
    with pytest.raises(InvalidField, match="until there are 512; given 513"):
        Translation(_body(_system(*blocks)))


def test_examples_are_part_of_the_description() -> None:
    (tool,) = OfferedTools(_body(tools=[{**ADD, "input_examples": [{"a": 1}, {"a": "ä"}]}])).callable
    assert tool["description"] == 'Adds.\nExamples of its input:\n{"a": 1}\n{"a": "ä"}'
    (tool,) = OfferedTools(_body(tools=[{**SEARCH, "input_examples": [{}]}])).callable
    assert tool["description"] == "Examples of its input:\n{}"


@pytest.mark.parametrize(
    ("kind", "name", "parameters"),
    [
        ("bash_20241022", "bash", "command restart"),
        ("bash_20250124", "bash", "command restart"),
        *(
            (kind, "str_replace_editor", "command file_text insert_line new_str old_str path view_range")
            for kind in ("text_editor_20241022", "text_editor_20250124")
        ),
        *(
            (kind, "edit", "command file_text insert_line insert_text new_str old_str path view_range")
            for kind in ("text_editor_20250429", "text_editor_20250728")
        ),
        (
            "memory_20250818",
            "memory",
            "command file_text insert_line insert_text new_path new_str old_path old_str path view_range",
        ),
    ],
)
def test_a_tool_known_by_its_type_is_a_function(kind: str, name: str, parameters: str) -> None:
    (tool,) = OfferedTools(_body(tools=[{"type": kind, "name": name, "strict": True}])).callable
    assert (tool["name"], tool["strict"], bool(tool["description"])) == (name, True, True)
    assert " ".join(sorted(tool["parameters"]["properties"])) == parameters


def test_only_older_editors_undo() -> None:
    commands = {kind: tool.parameters["properties"]["command"].get("enum", ()) for kind, tool in CLIENT_TOOLS.items()}
    undo = {kind for kind, values in commands.items() if "undo_edit" in values}
    assert undo == {"text_editor_20241022", "text_editor_20250124"}


def test_the_editor_is_told_how_much_the_client_shows() -> None:
    editor = {"type": "text_editor_20250728", "name": "edit", "max_characters": 1234}
    (tool,) = OfferedTools(_body(tools=[editor])).callable
    assert tool["description"].endswith("view shows at most 1234 characters.")
