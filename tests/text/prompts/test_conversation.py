"""Conversations in the forms that chat templates write."""

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.errors import InvalidField
from genai_server.text.prompts.conversation import Conversation, convert
from genai_server.text.prompts.template_traits import (
    TEXTS_BY_TURNS,
    CallForm,
    CallIds,
    TemplateTraits,
    TextBesideCalls,
)

Message = dict[str, Any]
USER = {"role": "user", "content": "Hello"}
IMAGE = {"type": "image"}
# As the templates of Mistral's models are.
STRICT: dict[str, Any] = {**TEXTS_BY_TURNS, "calls": CallForm.TOGETHER, "tool_results": True}


def _joined(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Each note as one text: the path, and what is said of it."""
    return tuple(map("".join, notes))


def _convert(*messages: Message, continues: bool = False, **traits: Any) -> Conversation:
    return convert(messages, TemplateTraits(is_known=True, **traits), continues=continues)


def _says(content: Any) -> Message:
    return {"role": "assistant", "content": content}


def _calls(*ids: str, content: Any = None, arguments: Any = '{"a": 1}') -> Message:
    calls = [{"id": id, "type": "function", "function": {"name": f"add_{id}", "arguments": arguments}} for id in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _result(id: str, content: Any = "4") -> Message:
    return {"role": "tool", "tool_call_id": id, "content": content}


def _short(conversation: Conversation) -> list[str]:
    """Each message as its role, calls and content."""
    shown = []
    for message in conversation.messages:
        calls = [call["id"] for call in message.get("tool_calls", [])]
        shown.append(" ".join([message["role"], *calls, repr(message["content"])]))
    return shown


# what stays as it is


def test_messages_that_a_template_writes_keep_all_their_fields() -> None:
    messages = [
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "query", "content": "of a reranker"},
    ]
    found = _convert(*messages)
    assert found.messages == messages
    assert _joined(found.notes.converted) == _joined(found.notes.left_out) == ()


def test_null_and_empty_fields_are_left_out_for_templates() -> None:
    message: Message = {"role": "assistant", "content": "x", "name": None, "tool_calls": [], "refusal": None}
    assert _convert(message).messages == [{"role": "assistant", "content": "x"}]


def test_a_content_in_parts_becomes_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert _convert({"role": "user", "content": parts}).messages[0]["content"] == "one\ntwo"


@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "text"}, {"type": "text", "text": 1}, "text"])
def test_part_that_is_not_text_is_refused_by_its_place(part: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        _convert({"role": "user", "content": [{"type": "text", "text": "x"}, part]})
    assert caught.value.param == "messages[0].content[1]"


# instructions


def _system(text: str, role: str = "system") -> Message:
    return {"role": role, "content": text}


def test_instructions_at_the_beginning_are_one_message() -> None:
    found = _convert(_system("one"), _system("two", "developer"), USER)
    assert _short(found) == ["system 'one\\n\\ntwo'", "user 'Hello'"]
    assert _joined(found.notes.converted) == ()  # all of it is where it was


def test_developer_is_the_system_unless_the_template_knows_one() -> None:
    assert _short(_convert(_system("one", "developer"), USER))[0] == "system 'one'"
    knows = {"leading_developer": True}
    assert _short(_convert(_system("one", "developer"), USER, **knows))[0] == "developer 'one'"
    assert _short(_convert(_system("one"), _system("two", "developer"), USER, **knows))[0] == "system 'one\\n\\ntwo'"
    both = _convert(_system("one"), _system("two", "developer"), USER, **knows, separate_developer=True)
    assert _short(both)[:2] == ["system 'one'", "developer 'two'"]


def test_later_instructions_are_text_of_the_user_in_their_place() -> None:
    messages = [_system("one"), USER, _says("Hi"), _system("two"), _system("three", "developer"), USER]
    assert _short(_convert(*messages))[3:5] == ["system 'two'", "system 'three'"]
    found = _convert(*messages, later_instructions=False)
    assert _short(found)[3:] == [
        "user '[system message]\\ntwo'",
        "user '[developer message]\\nthree'",
        "user 'Hello'",
    ]
    assert _joined(found.notes.converted) == (
        "messages[3] (system message as text of the user)",
        "messages[4] (developer message as text of the user)",
    )


def test_one_entry_stands_for_all_places_of_one_form() -> None:
    found = _convert(USER, *[_system("x")] * 3, later_instructions=False)
    assert _joined(found.notes.converted) == ("messages[1] and 2 more (system message as text of the user)",)


def test_instructions_are_text_of_the_first_user_for_templates_without_them() -> None:
    found = _convert(_system("one"), USER, _says("Hi"), leading_instructions=False)
    assert _short(found) == ["user 'one\\n\\nHello'", "assistant 'Hi'"]
    assert _joined(found.notes.converted) == ("messages[0] (system message as text of the user)",)
    assert _short(_convert(_system("one"), _says("Hi"), leading_instructions=False)) == ["user 'one'", "assistant 'Hi'"]
    assert _short(_convert(_system("one"), instructions_alone=False)) == ["user 'one'"]


def test_instructions_precede_the_last_question_where_they_would_be_lost_before_results() -> None:
    messages = [_system("one"), USER, _calls("c1"), _result("c1")]
    found = _convert(*messages, instructions_before_results=False)
    assert _short(found)[0] == "user 'one\\n\\nHello'"
    assert _short(_convert(*messages[:2], instructions_before_results=False))[0] == "system 'one'"


# neighbours


def test_neighbours_of_one_role_are_joined() -> None:
    found = _convert(USER, USER, _says("a"), _says("b"), user_after_user=False, assistant_after_assistant=False)
    assert _short(found) == ["user 'Hello\\n\\nHello'", "assistant 'a\\n\\nb'"]
    assert _joined(found.notes.converted) == ("messages[1] and 1 more (joined with the message before it)",)


def test_images_stay_where_they_are_in_joined_messages() -> None:
    parts = [{"type": "text", "text": "see"}, IMAGE]
    found = _convert(USER, {"role": "user", "content": parts}, USER, user_after_user=False)
    assert found.messages[0]["content"] == [
        {"type": "text", "text": "Hello\n\nsee"},
        IMAGE,
        {"type": "text", "text": "Hello"},
    ]


def test_text_of_the_assistant_and_following_calls_are_joined() -> None:
    found = _convert(USER, _says("I look."), _calls("c1"), _result("c1"), assistant_after_assistant=False)
    assert _short(found)[1] == "assistant c1 'I look.'"


def test_answer_without_text_is_left_out_where_it_is_refused() -> None:
    empty = {**_says(""), "reasoning_content": "Hm."}
    found = _convert(USER, empty, USER, **STRICT)
    assert _short(found) == ["user 'Hello\\n\\nHello'"]
    assert _joined(found.notes.converted)[0] == "messages[1] (without text, therefore left out)"
    assert _joined(found.notes.left_out) == ("messages[1].reasoning_content (the message has no text)",)
    assert _short(_convert(USER, empty, continues=True, **STRICT))[-1] == "assistant ''"


def test_text_after_a_result_is_at_its_end() -> None:
    found = _convert(USER, _calls("c1"), _result("c1"), USER, _system("S"), _says("Hi"), **STRICT)
    assert _short(found)[2:] == [
        "tool '4\\n\\n[user message]\\nHello\\n\\n[system message]\\nS'",
        "assistant 'Hi'",
    ]
    assert "messages[3] and 1 more (at the end of the tool result before it)" in _joined(found.notes.converted)


def test_image_after_a_result_follows_an_added_answer() -> None:
    seen = {"role": "user", "content": [IMAGE]}
    found = _convert(USER, _calls("c1"), _result("c1"), seen, **STRICT)
    assert _short(found)[3:] == ["assistant '[The user continues.]'", "user [{'type': 'image'}]"]


def test_assistant_does_not_begin_where_that_is_refused() -> None:
    found = _convert(_system("S"), _says("Hi"), USER, **STRICT)
    assert _short(found) == ["system 'S'", "user '[The assistant begins.]'", "assistant 'Hi'", "user 'Hello'"]


# calls and results


def test_arguments_are_objects_or_texts_as_the_template_needs() -> None:
    def arguments(given: Any, **traits: Any) -> Any:
        return _convert(_calls("c1", arguments=given), **traits).messages[0]["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"a": [1, "é"]}') == arguments({"a": [1, "é"]}) == {"a": [1, "é"]}
    assert arguments('{"a":  1}', arguments_as_json=True) == '{"a":  1}'
    assert arguments({"a": 1}, arguments_as_json=True) == '{"a": 1}'
    assert (arguments(""), arguments("", arguments_as_json=True)) == ({}, "{}")
    assert str(arguments('{"a": NaN}')) == "{'a': nan}"


@pytest.mark.parametrize("broken", ['{"city": ', "[1]", "[" * 100_000, "1" * 5000, "no JSON", "null"])
def test_arguments_that_are_no_object_are_text_or_empty(broken: str) -> None:
    found = _convert(USER, _calls("c1", arguments=broken), broken_arguments=True)
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == broken
    place = "messages[1].tool_calls[0].function.arguments (no JSON object and therefore"
    assert _joined(found.notes.converted) == (f"{place} as text)",)
    for as_json, expected in ((False, {}), (True, "{}")):
        found = _convert(USER, _calls("c1", arguments=broken), arguments_as_json=as_json)
        assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == expected
        assert _joined(found.notes.left_out) == (f"{place} {{}})",)


def test_calls_of_another_kind_stay_as_they_are() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "x"}}
    messages = [{"role": "assistant", "content": "x", "tool_calls": [call]}]
    assert _convert(*messages).messages == messages


def test_empty_content_next_to_calls_is_what_the_template_needs() -> None:
    for content in (None, ""):
        assert _convert(_calls("c1", content=""), empty_content=content).messages[0]["content"] == content


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (TextBesideCalls.WRITTEN, ["assistant c1 'I look.'"]),
        (TextBesideCalls.BEFORE, ["assistant 'I look.'", "assistant c1 None"]),
        (TextBesideCalls.LOST, ["assistant c1 None"]),
    ],
)
def test_text_next_to_calls_is_where_the_template_writes_it(form: TextBesideCalls, expected: list[str]) -> None:
    found = _convert(USER, _calls("c1", content="I look."), text_beside_calls=form)
    assert _short(found)[1:] == expected
    assert _joined(found.notes.left_out) == (
        ("messages[1].content (the chat template writes none next to tool calls)",)
        if form is TextBesideCalls.LOST
        else ()
    )


def test_parallel_calls_are_written_one_by_one_with_their_results() -> None:
    messages = [USER, _calls("c1", "c2"), _result("c2", "two"), _result("c1", "one")]
    found = _convert(*messages, calls=CallForm.ONE_BY_ONE)
    assert _short(found)[1:] == ["assistant c1 None", "tool 'one'", "assistant c2 None", "tool 'two'"]
    assert _joined(found.notes.converted) == ("messages[1].tool_calls (one by one)",)
    assert found.sources == [0, 1, 3, 1, 2]


def test_calls_with_the_same_id_have_results_of_their_own() -> None:
    messages = [USER, _calls("c1", "c1"), *(_result("c1", text) for text in ("one", "two", "three"))]
    found = _convert(*messages, calls=CallForm.ONE_BY_ONE)
    assert _short(found)[1:] == ["assistant c1 None", "tool 'one'", "assistant c1 None", "tool 'two'", "tool 'three'"]


def test_conversation_may_have_no_text_at_all() -> None:
    assert _convert(_says(""), **STRICT, instructions_before_results=False).messages == []


def test_results_come_before_other_messages_of_their_turn() -> None:
    found = _convert(USER, _calls("c1", "c2"), _result("c1"), USER, _result("c2"))
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert _joined(found.notes.converted) == ("messages[4] (before the messages that precede it)",)


def test_results_know_the_name_of_their_tool() -> None:
    assert _convert(USER, _calls("c1"), _result("c1")).messages[2]["name"] == "add_c1"


def test_call_without_a_result_gets_one_where_it_is_refused() -> None:
    messages = [USER, _calls("c1", "c2"), _result("c2"), USER]
    assert len(_convert(*messages).messages) == 4
    found = _convert(*messages, open_calls=False)
    assert _short(found)[2:4] == ["tool '[no result]'", "tool '4'"]
    assert _joined(found.notes.converted) == ("messages[1].tool_calls[0] (with the result [no result])",)
    assert _short(_convert(USER, _calls("c1"), open_calls=False))[-1] == "assistant c1 None"  # it may still come


def test_result_without_a_call_is_text_of_the_user_where_it_is_refused() -> None:
    messages = [USER, _says("Hi"), {**_result("c9"), "name": "add"}, _result("c8")]
    assert _short(_convert(*messages))[2:] == ["tool '4'", "tool '4'"]
    found = _convert(*messages, orphan_results=False)
    assert _short(found)[2:] == ["user '[result of the tool add]\\n4'", "user '[tool result]\\n4'"]
    assert _joined(found.notes.converted) == ("messages[2] and 1 more (as text of the user)",)


def test_calls_are_text_for_templates_without_them() -> None:
    messages = [USER, _calls("c1", content="I look."), _result("c1"), USER, _says("Hi")]
    found = _convert(*messages, **TEXTS_BY_TURNS)
    assert _short(found) == [
        "user 'Hello'",
        "assistant 'I look.\\n\\n[tool call: add_c1 {\"a\": 1}]'",
        "user '[result of the tool add_c1]\\n4\\n\\nHello'",
        "assistant 'Hi'",
    ]


def test_image_of_a_result_is_the_users_where_the_template_writes_none_there() -> None:
    result = _result("c1", [{"type": "text", "text": "seen"}, IMAGE])
    found = _convert(USER, _calls("c1"), result, media_in_results=False)
    assert _short(found)[2:] == [
        "tool 'seen'",
        "user [{'type': 'text', 'text': '[of the tool result]\\n'}, {'type': 'image'}]",
    ]


def test_images_are_known_in_their_new_order() -> None:
    messages = [
        USER,
        _calls("c1", "c2"),
        _result("c2", [{**IMAGE}]),
        {"role": "user", "content": [{**IMAGE}, {**IMAGE}]},
    ]
    messages.append(_result("c1", [{**IMAGE}]))
    assert _convert(*messages).media_order(messages) == [3, 0, 1, 2]
    assert _convert(*messages, **TEXTS_BY_TURNS).media_order(messages) == [3, 0, 1, 2]


@pytest.mark.parametrize("id", ["toolu_01", "call_1", "chatcmpl-tool-" + "0" * 32, "ü"])
def test_ids_have_the_form_that_the_template_needs(id: str) -> None:
    messages = [USER, _calls(id, "abcDEF123"), _result(id), _result("abcDEF123")]
    found = _convert(*messages, call_ids=CallIds.NINE_CHARACTERS).messages
    first, second = (call["id"] for call in found[1]["tool_calls"])
    assert len(first) == 9
    assert first.isalnum()
    assert first.isascii()
    assert second == "abcDEF123"
    assert [result["tool_call_id"] for result in found[2:]] == [first, second]
    assert _convert(*messages, call_ids=CallIds.NINE_CHARACTERS).messages == found

    named = _convert(*messages, *messages[1:], call_ids=CallIds.NAMED).messages
    assert named[1]["tool_calls"][0]["id"] == f"functions.add_{id}:0"
    assert named[4]["tool_calls"][1]["id"] == "functions.add_abcDEF123:3"
    assert named[-1]["tool_call_id"] == "functions.add_abcDEF123:3"


# reasoning and names


def test_reasoning_is_in_the_field_that_the_template_reads() -> None:
    message = {**_says("Hi"), "reasoning_content": "Hm."}
    assert _convert(USER, message, reasoning_field="thinking").messages[1] == {**_says("Hi"), "thinking": "Hm."}
    found = _convert(USER, message, reasoning_field="")
    assert found.messages[1] == _says("Hi")
    assert _joined(found.notes.left_out) == ("messages[1].reasoning_content (the chat template writes none)",)


def test_unwritten_names_are_noted() -> None:
    messages = [{**_system("S"), "name": "example"}, {**USER, "name": "Ann"}, {**_result("c1"), "name": "add"}]
    found = _convert(*messages, names=False)
    assert _joined(found.notes.left_out) == ("messages[0].name and 1 more (the chat template writes none)",)


# any conversation


def _as_text(conversation: Conversation) -> str:
    return json.dumps(conversation.messages)


ROLES = st.sampled_from(["system", "developer", "user", "assistant", "calls", "result", "other result"])
TRAITS = st.fixed_dictionaries(
    {
        **{
            name: st.booleans()
            for name, value in TEXTS_BY_TURNS.items()
            if isinstance(value, bool) and name != "empty_assistant"
        },
        "leading_instructions": st.booleans(),
        "instructions_alone": st.booleans(),
        "instructions_before_results": st.booleans(),
        "calls": st.sampled_from(CallForm),
        "text_beside_calls": st.sampled_from([TextBesideCalls.WRITTEN, TextBesideCalls.BEFORE]),
    }
)


def _conversation(roles: list[str]) -> list[Message]:
    messages: list[Message] = []
    called: list[str] = []
    for number, role in enumerate(roles):
        text = f"text {number}."
        if role == "calls":
            called = [f"call{number}", f"also{number}"]
            messages.append(_calls(*called, content=text, arguments=json.dumps({"value": f"value {number}."})))
        elif role == "result":
            messages.append(_result(called.pop() if called else "unknown", text))
        elif role == "other result":
            messages.append(_result("unknown", text))
        else:
            messages.append({"role": role, "content": text})
    return messages


@given(st.lists(ROLES, min_size=1, max_size=12), TRAITS)
def test_no_text_of_any_conversation_is_lost(roles: list[str], traits: dict[str, Any]) -> None:
    messages = _conversation(roles)
    found = _convert(*messages, **traits)
    text = _as_text(found)
    for number, role in enumerate(roles):
        assert text.count(f"text {number}.") == 1
        assert text.count(f"value {number}.") == (2 if role == "calls" else 0)
    assert len(found.sources) == len(found.messages)


@given(st.lists(ROLES, min_size=1, max_size=12))
def test_strict_templates_get_turns(roles: list[str]) -> None:
    found = _convert(*_conversation(roles), **TEXTS_BY_TURNS).messages
    written = [message["role"] for message in found if message["role"] != "system"]
    assert written == [("user", "assistant")[number % 2] for number in range(len(written))]
    assert all(message["role"] != "system" for message in found[1:])


@pytest.mark.parametrize("traits", [{}, STRICT, TEXTS_BY_TURNS, {"calls": CallForm.ONE_BY_ONE}], ids=lambda _: "")
def test_growing_conversation_keeps_its_beginning(traits: dict[str, Any]) -> None:
    turn = [USER, _calls("c1", "c2", content="I look."), _result("c1"), _result("c2"), _system("Remember."), USER]
    messages = [_system("S"), *turn, *turn[1:], _says("Hi"), USER, _says("Bye")]
    whole = _convert(*messages, **traits).messages
    for end in range(1, len(messages) + 1):
        if messages[end - 1].get("tool_calls") or (end < len(messages) and messages[end]["role"] == "tool"):
            continue  # the results are still missing
        found = _convert(*messages[:end], **traits).messages
        assert found[:-1] == whole[: len(found) - 1]
        assert str(whole[len(found) - 1]["content"]).startswith(str(found[-1]["content"]))


def test_long_history_takes_little_time() -> None:
    turn = [USER, USER, _calls("c1", "c2", content="I look."), _result("c1"), _result("c2"), _system("Remember."), USER]
    messages = (turn * 600)[:4096]
    started = time.thread_time()
    found = _convert(*messages, **STRICT)
    seconds = time.thread_time() - started
    assert len(found.messages) > 1500
    assert seconds < 2  # 40 ms on a free machine
    started = time.thread_time()
    joined = _convert(*[{"role": "user", "content": "x" * 1000}] * 4096, **STRICT)
    assert len(joined.messages) == 1
    assert time.thread_time() - started < 2
