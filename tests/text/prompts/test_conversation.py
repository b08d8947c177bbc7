"""Conversations in the forms that chat templates write."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.errors import InvalidField
from genai_server.text.prompts.conversation import Conversation, convert
from genai_server.text.prompts.template_traits import TEXTS_BY_TURNS, CallForm, CallIds, TemplateTraits, TextBesideCalls

Message = dict[str, Any]
USER = {"role": "user", "content": "Hello"}
IMAGE = {"type": "image"}
# As the templates of Mistral's models are.
STRICT: dict[str, Any] = {**TEXTS_BY_TURNS, "calls": CallForm.TOGETHER, "tool_results": True}


def _converted(conversation: Conversation) -> list[str]:
    """What was written in another form: for each note, the path and what is said of it."""
    return ["".join(note) for note in conversation.notes.converted]


def _left_out(conversation: Conversation) -> list[str]:
    return ["".join(note) for note in conversation.notes.left_out]


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
    return [
        " ".join([message["role"], *(call["id"] for call in message.get("tool_calls", [])), repr(message["content"])])
        for message in conversation.messages
    ]


# what stays as it is


def test_messages_that_a_template_writes_keep_all_their_fields() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "x"}}
    messages: list[Message] = [
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "query", "content": "of a reranker"},
        {"role": "assistant", "content": "x", "tool_calls": [call]},
    ]
    found = _convert(*messages)
    assert (found.messages, _converted(found), _left_out(found)) == (messages, [], [])


def test_fields_without_content_are_left_out_and_parts_become_one_text() -> None:
    message: Message = {"role": "assistant", "content": "x", "name": None, "tool_calls": [], "refusal": None}
    assert _convert(message).messages == [{"role": "assistant", "content": "x"}]
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


ONE, TWO, HI = _system("one"), _system("two", "developer"), _says("Hi")
CALLED, WRITTEN, HELLO = [_calls("c1"), _result("c1")], ["assistant c1 None", "tool '4'"], "user 'Hello'"
INSTRUCTIONS: list[tuple[list[Message], dict[str, Any], list[str]]] = [
    ([ONE, TWO, USER], {}, ["system 'one\\n\\ntwo'", HELLO]),
    # A developer is the system unless the template knows one.
    ([TWO, USER], {}, ["system 'two'", HELLO]),
    ([TWO, USER], {"leading_developer": True}, ["developer 'two'", HELLO]),
    ([ONE, TWO, USER], {"leading_developer": True}, ["system 'one\\n\\ntwo'", HELLO]),
    (
        [ONE, TWO, USER],
        dict.fromkeys(["leading_developer", "separate_developer"], True),
        ["system 'one'", "developer 'two'", HELLO],
    ),
    # Later ones stay in their place.
    ([ONE, USER, HI, ONE, TWO], {}, ["system 'one'", HELLO, "assistant 'Hi'", "system 'one'", "system 'two'"]),
    ([ONE, HI], {"leading_instructions": False}, ["user 'one'", "assistant 'Hi'"]),
    ([ONE], {"instructions_alone": False}, ["user 'one'"]),
    # Those that results would lose precede the last question.
    ([ONE, USER, *CALLED], {"instructions_before_results": False}, ["user 'one\\n\\nHello'", *WRITTEN]),
    ([ONE, USER], {"instructions_before_results": False}, ["system 'one'", HELLO]),
]


@pytest.mark.parametrize(("messages", "traits", "expected"), INSTRUCTIONS)
def test_instructions_are_where_the_template_takes_them(
    messages: list[Message], traits: dict[str, Any], expected: list[str]
) -> None:
    assert _short(_convert(*messages, **traits)) == expected


def test_instructions_of_another_form_are_noted_in_one_entry_each() -> None:
    assert _converted(_convert(ONE, TWO, USER)) == []  # all of it is where it was
    found = _convert(USER, _says("Hi"), ONE, ONE, TWO, USER, later_instructions=False)
    assert _short(found)[2:] == [
        "user '[system message]\\none'",
        "user '[system message]\\none'",
        "user '[developer message]\\ntwo'",
        "user 'Hello'",
    ]
    assert _converted(found) == [
        "messages[2] and 1 more (system message as text of the user)",
        "messages[4] (developer message as text of the user)",
    ]
    found = _convert(ONE, USER, _says("Hi"), leading_instructions=False)
    assert _short(found) == ["user 'one\\n\\nHello'", "assistant 'Hi'"]
    assert _converted(found) == ["messages[0] (system message as text of the user)"]


# neighbours


def test_neighbours_of_one_role_are_joined_around_images() -> None:
    found = _convert(USER, USER, _says("a"), _says("b"), user_after_user=False, assistant_after_assistant=False)
    assert _short(found) == ["user 'Hello\\n\\nHello'", "assistant 'a\\n\\nb'"]
    assert _converted(found) == ["messages[1] and 1 more (joined with the message before it)"]
    found = _convert(USER, _says("I look."), _calls("c1"), _result("c1"), assistant_after_assistant=False)
    assert _short(found)[1] == "assistant c1 'I look.'"
    parts = [{"type": "text", "text": "see"}, IMAGE]
    found = _convert(USER, {"role": "user", "content": parts}, USER, user_after_user=False)
    texts = [{"type": "text", "text": text} for text in ("Hello\n\nsee", "Hello")]
    assert found.messages[0]["content"] == [texts[0], IMAGE, texts[1]]


def test_answer_without_text_is_left_out_where_it_is_refused() -> None:
    empty = {**_says(""), "reasoning_content": "Hm."}
    found = _convert(USER, empty, USER, **STRICT)
    assert _short(found) == ["user 'Hello\\n\\nHello'"]
    assert _converted(found)[0] == "messages[1] (without text, therefore left out)"
    assert _left_out(found) == ["messages[1].reasoning_content (the message has no text)"]
    assert _short(_convert(USER, empty, continues=True, **STRICT))[-1] == "assistant ''"


def test_text_after_a_result_is_at_its_end() -> None:
    found = _convert(USER, _calls("c1"), _result("c1"), USER, _system("S"), _says("Hi"), **STRICT)
    assert _short(found)[2:] == ["tool '4\\n\\n[user message]\\nHello\\n\\n[system message]\\nS'", "assistant 'Hi'"]
    assert "messages[3] and 1 more (at the end of the tool result before it)" in _converted(found)


def test_missing_turns_are_added_where_others_are_refused() -> None:
    seen = {"role": "user", "content": [IMAGE]}
    found = _convert(USER, _calls("c1"), _result("c1"), seen, **STRICT)
    assert _short(found)[3:] == ["assistant '[The user continues.]'", "user [{'type': 'image'}]"]
    found = _convert(_system("S"), _says("Hi"), USER, **STRICT)
    assert _short(found) == ["system 'S'", "user '[The assistant begins.]'", "assistant 'Hi'", "user 'Hello'"]


# calls and results


def _arguments(conversation: Conversation) -> Any:
    return conversation.messages[-1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("given", "as_object", "as_json"),
    [('{"a":  [1, "é"]}', {"a": [1, "é"]}, '{"a":  [1, "é"]}'), ({"a": 1}, {"a": 1}, '{"a": 1}'), ("", {}, "{}")],
)
def test_arguments_are_objects_or_texts_as_the_template_needs(given: Any, as_object: Any, as_json: str) -> None:
    call = _calls("c1", arguments=given)
    assert (_arguments(_convert(call)), _arguments(_convert(call, arguments_as_json=True))) == (as_object, as_json)


def test_arguments_may_have_pythons_numbers() -> None:
    assert str(_arguments(_convert(_calls("c1", arguments='{"a": NaN}')))) == "{'a': nan}"


@pytest.mark.parametrize("broken", ['{"city": ', "[1]", "[" * 100_000, "1" * 5000, "no JSON", "null"])
def test_arguments_that_are_no_object_are_text_or_empty(broken: str) -> None:
    messages = [USER, _calls("c1", arguments=broken)]
    place = "messages[1].tool_calls[0].function.arguments (no JSON object and therefore"
    found = _convert(*messages, broken_arguments=True)
    assert (_arguments(found), _converted(found)) == (broken, [f"{place} as text)"])
    for as_json, expected in ((False, {}), (True, "{}")):
        found = _convert(*messages, arguments_as_json=as_json)
        assert (_arguments(found), _left_out(found)) == (expected, [f"{place} {{}})"])


def test_empty_content_next_to_calls_is_what_the_template_needs() -> None:
    for content in (None, ""):
        assert _convert(_calls("c1", content=""), empty_content=content).messages[0]["content"] == content


@pytest.mark.parametrize(
    ("form", "expected", "left_out"),
    [
        (TextBesideCalls.WRITTEN, ["assistant c1 'I look.'"], []),
        (TextBesideCalls.BEFORE, ["assistant 'I look.'", "assistant c1 None"], []),
        (
            TextBesideCalls.LOST,
            ["assistant c1 None"],
            ["messages[1].content (the chat template writes none next to tool calls)"],
        ),
    ],
)
def test_text_next_to_calls_is_where_the_template_writes_it(
    form: TextBesideCalls, expected: list[str], left_out: list[str]
) -> None:
    found = _convert(USER, _calls("c1", content="I look."), text_beside_calls=form)
    assert (_short(found)[1:], _left_out(found)) == (expected, left_out)


def test_parallel_calls_are_written_one_by_one_with_their_results() -> None:
    messages = [USER, _calls("c1", "c2"), _result("c2", "two"), _result("c1", "one")]
    found = _convert(*messages, calls=CallForm.ONE_BY_ONE)
    assert _short(found)[1:] == ["assistant c1 None", "tool 'one'", "assistant c2 None", "tool 'two'"]
    assert _converted(found) == ["messages[1].tool_calls (one by one)"]
    assert found.sources == [0, 1, 3, 1, 2]
    same_id = [USER, _calls("c1", "c1"), *(_result("c1", text) for text in ("one", "two", "three"))]
    found = _convert(*same_id, calls=CallForm.ONE_BY_ONE)
    assert _short(found)[1:] == ["assistant c1 None", "tool 'one'", "assistant c1 None", "tool 'two'", "tool 'three'"]


def test_conversation_may_have_no_text_at_all() -> None:
    assert _convert(_says(""), **STRICT, instructions_before_results=False).messages == []


def test_results_name_their_tool_and_come_before_other_messages_of_their_turn() -> None:
    found = _convert(USER, _calls("c1", "c2"), _result("c1"), USER, _result("c2"))
    assert [message.get("name", message["role"]) for message in found.messages] == [
        "user",
        "assistant",
        "add_c1",
        "add_c2",
        "user",
    ]
    assert _converted(found) == ["messages[4] (before the messages that precede it)"]


def test_call_without_a_result_gets_one_where_it_is_refused() -> None:
    messages = [USER, _calls("c1", "c2"), _result("c2"), USER]
    assert len(_convert(*messages).messages) == 4
    found = _convert(*messages, open_calls=False)
    assert _short(found)[2:4] == ["tool '[no result]'", "tool '4'"]
    assert _converted(found) == ["messages[1].tool_calls[0] (with the result [no result])"]
    assert _short(_convert(USER, _calls("c1"), open_calls=False))[-1] == "assistant c1 None"  # it may still come


def test_result_without_a_call_is_text_of_the_user_where_it_is_refused() -> None:
    messages = [USER, _says("Hi"), {**_result("c9"), "name": "add"}, _result("c8")]
    assert _short(_convert(*messages))[2:] == ["tool '4'", "tool '4'"]
    found = _convert(*messages, orphan_results=False)
    assert _short(found)[2:] == ["user '[result of the tool add]\\n4'", "user '[tool result]\\n4'"]
    assert _converted(found) == ["messages[2] and 1 more (as text of the user)"]


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
    shown = {"role": "user", "content": [{**IMAGE}, {**IMAGE}]}
    messages = [USER, _calls("c1", "c2"), _result("c2", [{**IMAGE}]), shown, _result("c1", [{**IMAGE}])]
    assert _convert(*messages).media_order(messages) == [3, 0, 1, 2]
    assert _convert(*messages, **TEXTS_BY_TURNS).media_order(messages) == [3, 0, 1, 2]


@pytest.mark.parametrize("id", ["toolu_01", "call_1", "chatcmpl-tool-" + "0" * 32, "ü"])
def test_ids_have_the_form_that_the_template_needs(id: str) -> None:
    messages = [USER, _calls(id, "abcDEF123"), _result(id), _result("abcDEF123")]
    found = _convert(*messages, call_ids=CallIds.NINE_CHARACTERS).messages
    first, second = (call["id"] for call in found[1]["tool_calls"])
    assert re.fullmatch("[A-Za-z0-9]{9}", first)
    assert second == "abcDEF123"
    assert [result["tool_call_id"] for result in found[2:]] == [first, second]
    assert _convert(*messages, call_ids=CallIds.NINE_CHARACTERS).messages == found

    named = _convert(*messages, *messages[1:], call_ids=CallIds.NAMED).messages
    assert named[1]["tool_calls"][0]["id"] == f"functions.add_{id}:0"
    assert named[4]["tool_calls"][1]["id"] == "functions.add_abcDEF123:3"
    assert named[-1]["tool_call_id"] == "functions.add_abcDEF123:3"


# reasoning and names


def test_reasoning_is_in_the_templates_field_and_unwritten_fields_are_noted() -> None:
    message = {**_says("Hi"), "reasoning_content": "Hm."}
    assert _convert(USER, message, reasoning_field="thinking").messages[1] == {**_says("Hi"), "thinking": "Hm."}
    found = _convert(USER, message, reasoning_field="")
    assert found.messages[1] == _says("Hi")
    assert _left_out(found) == ["messages[1].reasoning_content (the chat template writes none)"]
    messages = [{**_system("S"), "name": "example"}, {**USER, "name": "Ann"}, {**_result("c1"), "name": "add"}]
    found = _convert(*messages, names=False)
    assert _left_out(found) == ["messages[0].name and 1 more (the chat template writes none)"]


# any conversation


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
    text = json.dumps(found.messages)
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
    for messages in ((turn * 600)[:4096], [{"role": "user", "content": "x" * 1000}] * 4096):
        started = time.thread_time()
        assert _convert(*messages, **STRICT).messages
        assert time.thread_time() - started < 2  # 40 ms on a free machine
