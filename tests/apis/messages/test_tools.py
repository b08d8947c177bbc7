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


def test_a_deferred_tool_can_be_called_from_its_reference_on() -> None:
    assert _names(tools=[SEARCH, DEFERRED]) == (["search"], ["search"])
    assert _names(*_searched(FOUND), tools=[SEARCH, DEFERRED]) == (["search"], ["search", "add"])
    assert _names(_system({"type": "tool_addition", "tool": BY_NAME}), tools=[SEARCH, DEFERRED])[1] == ["search", "add"]


def test_the_prompt_has_the_definition_where_the_tool_is_found() -> None:
    translation = Translation(_body(*_searched(FOUND, FOUND | {"tool_name": "sub"}), tools=[SEARCH, DEFERRED]))
    assert translation.chat.messages[-1].content == (
        f'<functions>\n{DEFINITION}\n<function>{{"name": "sub"}}</function>\n</functions>'
    )
    leniency = Leniency()
    translation.report(leniency)
    assert leniency.report() == {
        CONVERTED_HEADER: "messages[2].content[0].content[0] (tool_reference as text), "
        "messages[2].content[0].content[1] (tool_reference as text)"
    }
    assert [tool.function.name for tool in translation.chat.listed_tools] == ["search"]
    assert [tool.function.name for tool in translation.chat.tools or []] == ["search", "add"]


def test_texts_stay_around_references() -> None:
    parts = [{"type": "text", "text": "Found:"}, FOUND, {"type": "text", "text": "Done."}]
    (*_, result) = Translation(_body(*_searched(*parts), tools=[SEARCH, DEFERRED])).chat.messages
    assert result.content == f"Found:\n<functions>\n{DEFINITION}\n</functions>\nDone."


def test_a_reference_to_a_tool_of_the_beginning_is_its_name() -> None:
    (*_, result) = Translation(_body(*_searched(FOUND), tools=[SEARCH, ADD])).chat.messages
    assert result.content == '<functions>\n<function>{"name": "add"}</function>\n</functions>'


def test_the_prompt_before_a_reference_does_not_depend_on_it() -> None:
    before = Translation(_body(tools=[SEARCH, DEFERRED])).chat
    after = Translation(_body(*_searched(FOUND), tools=[SEARCH, DEFERRED])).chat
    assert after.listed_tools == before.listed_tools
    assert after.messages[0] == before.messages[0]


def test_a_chosen_tool_is_at_the_beginning() -> None:
    choice = {"type": "tool", "name": "add"}
    assert _names(tools=[SEARCH, DEFERRED], tool_choice=choice) == (["search", "add"], ["search", "add"])


def test_tools_are_not_deferred_if_all_are() -> None:
    translation = Translation(_body(tools=[DEFERRED]))
    assert [tool.function.name for tool in translation.chat.listed_tools] == ["add"]
    leniency = Leniency()
    translation.report(leniency)
    assert leniency.report() == {IGNORED_HEADER: "tools[0].defer_loading"}


def test_a_message_may_define_a_tool() -> None:
    addition = _system({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": ADD}})
    assert _names(addition, tools=[SEARCH]) == (["search"], ["search", "add"])
    chat = Translation(_body(addition, tools=[SEARCH])).chat
    assert chat.messages[-1].content == f"[tool_addition]\n<functions>\n{DEFINITION}\n</functions>"


def test_a_removed_tool_cannot_be_called_but_stays_in_the_prompt() -> None:
    removal = _system({"type": "tool_removal", "tool": BY_NAME})
    assert _names(removal, tools=[SEARCH, ADD]) == (["search", "add"], ["search"])
    chat = Translation(_body(removal, tools=[SEARCH, ADD])).chat
    assert chat.messages[-1].content == "[tool_removal]\nname: add"
    again = _system({"type": "tool_addition", "tool": BY_NAME})
    assert _names(removal, again, tools=[SEARCH, ADD])[1] == ["search", "add"]


def test_a_summary_keeps_its_changes_of_tools() -> None:
    changes = [
        {"type": "tool_addition", "tool": BY_NAME},
        {"type": "tool_removal", "tool": {**BY_NAME, "name": "search"}},
    ]
    summary = {"role": "assistant", "content": [{"type": "compaction", "content": "x", "tool_changes": changes}]}
    assert _names(summary, HELLO, tools=[SEARCH, DEFERRED]) == (["search"], ["add"])


def test_a_call_cannot_be_forced_without_a_tool() -> None:
    removal = _system({"type": "tool_removal", "tool": BY_NAME})
    with pytest.raises(InvalidField, match="tool_choice of type any is only allowed with a tool that is loaded"):
        Translation(_body(removal, tools=[ADD], tool_choice={"type": "any"}))
    assert not Translation(_body(removal, tools=[ADD])).chat.tools


def test_the_number_of_defined_tools_has_a_limit() -> None:
    definitions = [{**ADD, "name": f"f{number}"} for number in range(513)]
    blocks = [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": one}} for one in definitions]
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
    undo = {
        kind
        for kind, tool in CLIENT_TOOLS.items()
        if "undo_edit" in tool.parameters["properties"]["command"].get("enum", ())
    }
    assert undo == {"text_editor_20241022", "text_editor_20250124"}


def test_the_editor_is_told_how_much_the_client_shows() -> None:
    editor = {"type": "text_editor_20250728", "name": "edit", "max_characters": 1234}
    (tool,) = OfferedTools(_body(tools=[editor])).callable
    assert tool["description"].endswith("view shows at most 1234 characters.")
