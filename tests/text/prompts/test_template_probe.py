"""What the probe finds out of templates."""

import time
from typing import Any

import pytest

from genai_server.text.prompts import template_probe, template_sandbox
from genai_server.text.prompts.chat_template import SCRIPTED_TEMPLATE, ChatTemplate
from genai_server.text.prompts.template_probe import probe
from genai_server.text.prompts.template_traits import (
    CallForm,
    CallIds,
    TemplateTraits,
    TextBesideCalls,
    ThinkingVariables,
    ToolsPosition,
)
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS

CALLS = "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments }} {{ c.id }}>{% endfor %}"
# Writes all messages.
OPEN = "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}" + CALLS + "\n{% endfor %}"
_RAISE = "{{ raise_exception('no') }}"


def _traits(source: str, *, with_tools: bool = False, image_marker: str = "", tool_format: str = "") -> TemplateTraits:
    return probe(ChatTemplate(source), TOOL_FORMATS.get(tool_format), image_marker, with_tools=with_tools)


def _refusing(condition: str, source: str = OPEN) -> str:
    """A template that refuses any message for which a condition holds."""
    return f"{{% for m in messages %}}{{% if {condition} %}}{_RAISE}{{% endif %}}{{% endfor %}}{source}"


def _dropping(condition: str) -> str:
    """A template that drops any message for which a condition holds."""
    return OPEN.replace("{{ m.role", f"{{% if {condition} %}}{{% continue %}}{{% endif %}}{{{{ m.role")


def test_template_that_writes_everything_needs_nothing() -> None:
    traits = _traits(OPEN)
    expected = TemplateTraits(is_known=True, broken_arguments=True, reasoning_field="", names=False)
    assert traits == expected
    assert list(traits.in_words()) == ["reasoning of earlier answers: left out"]


def _after(role: str, before: str) -> str:
    """The condition that a message of one role follows one of another."""
    return f"loop.previtem and m.role == '{role}' and loop.previtem.role == '{before}'"


def _beginning(text: str) -> str:
    """A template that writes this text at the beginning of each message."""
    return OPEN.replace("{{ m.role", text + "{{ m.role")


CONTENT, ARGUMENTS = "m.content or ''", "c.function.arguments"
# Writes no text next to calls.
WITHOUT_TEXT = OPEN.replace(CONTENT, "(m.content or '') if not m.tool_calls")
NOT_FIRST = "m.role in ['system', 'developer'] and not loop.first"
ORPHAN = "m.role == 'tool' and not (loop.previtem.tool_calls or loop.previtem.role == 'tool')"
FOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "a system message is refused": (
        _refusing("m.role == 'system'"),
        {"leading_instructions": False, "later_instructions": False},
    ),
    "a system message is dropped unless it is the first one": (
        _dropping("m.role == 'system' and not loop.first"),
        {"leading_instructions": True, "later_instructions": False},
    ),
    "the last system message moves to the front": (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}" + _dropping("m.role == 'system'"),
        {"later_instructions": False},
    ),
    "a developer is known": (OPEN + "{# developer #}", {"leading_developer": True, "separate_developer": True}),
    "the second of system and developer is dropped": (
        _dropping(NOT_FIRST),
        {"leading_developer": True, "separate_developer": False, "later_instructions": False},
    ),
    "two users in a row": (_refusing(_after("user", "user")), {"user_after_user": False}),
    "two answers in a row": (_refusing(_after("assistant", "assistant")), {"assistant_after_assistant": False}),
    "a user after a result": (_refusing(_after("user", "tool")), {"user_after_tool": False}),
    "an answer at the beginning": (_refusing("loop.first and m.role == 'assistant'"), {"assistant_first": False}),
    "an answer without text": (
        _refusing("m.role == 'assistant' and not m.content and not m.tool_calls"),
        {"empty_assistant": False},
    ),
    "ids of nine characters": (
        _refusing("m.tool_calls and m.tool_calls[0].id | length != 9"),
        {"call_ids": CallIds.NINE_CHARACTERS},
    ),
    "names in ids only": (OPEN.replace("c.function.name", "c.id"), {"call_ids": CallIds.NAMED}),
    "arguments that are objects": (
        OPEN.replace(ARGUMENTS, f"{ARGUMENTS} | items | list"),
        {"arguments_as_json": False, "broken_arguments": False},
    ),
    "arguments that are text": (
        OPEN.replace(ARGUMENTS, f"'' + {ARGUMENTS}"),
        {"arguments_as_json": True, "broken_arguments": True},
    ),
    "content that is null": (OPEN.replace(CONTENT, "m.content"), {"empty_content": ""}),
    "content that is needed": (_refusing("m.tool_calls and m.content is not none"), {"empty_content": None}),
    "one call only": (_refusing("m.tool_calls and m.tool_calls | length > 1"), {"calls": CallForm.ONE_BY_ONE}),
    "the first call only": (
        OPEN.replace("or []", "or [])[:1]").replace("in m.tool", "in (m.tool"),
        {"calls": CallForm.ONE_BY_ONE},
    ),
    "no calls": (
        "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content or '' }}\n{% endfor %}",
        {"calls": CallForm.TEXT, "tool_results": False},
    ),
    "text next to calls as a message of its own": (WITHOUT_TEXT, {"text_beside_calls": TextBesideCalls.BEFORE}),
    "text next to calls nowhere": (
        _refusing(_after("assistant", "assistant"), WITHOUT_TEXT),
        {"text_beside_calls": TextBesideCalls.LOST},
    ),
    "a call without a result": (
        _refusing("m.tool_calls and loop.nextitem and loop.nextitem.role != 'tool'"),
        {"open_calls": False},
    ),
    "a result without a call": (_refusing(ORPHAN), {"orphan_results": False}),
    "the reasoning's field": (_beginning("{{ m.thinking }}"), {"reasoning_field": "thinking"}),
    "reasoning while it is on": (_beginning("{{ m.reasoning if enable_thinking }}"), {"reasoning_field": "reasoning"}),
    "reasoning that is read only": (OPEN + "{{ messages[0].thought if false }}", {"reasoning_field": "thought"}),
    "the end of reasoning": (
        OPEN.replace("{{ m.content", "{{ '<think>' ~ m.reasoning ~ '\n</think>\n\n' if m.reasoning }}{{ m.content"),
        {"reasoning_end": "\n</think>\n\n"},
    ),
    "names of users": (_beginning("{{ m.name }}"), {"names": True}),
    "instructions before results": (
        "{% for m in messages %}{% if m.role != 'system' or messages[-1].role == 'user' %}{{ m.content }}"
        + CALLS
        + "{% endif %}{% endfor %}",
        {"instructions_before_results": False, "instructions_alone": False},
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_probe_finds_out(case: str) -> None:
    source, expected = FOUND[case]
    traits = _traits(source)
    assert {name: getattr(traits, name) for name in expected} == expected


def test_results_tools_and_images_are_where_the_template_has_them() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}\n{% endfor %}"
    assert not _traits(source).tool_results
    assert _traits(source + "{{ 'tool' if false }}").tool_results
    assert _traits(source, tool_format="hermes").calls is CallForm.IN_CONTENT
    listed = "{% for t in messages[0].tools or [] %}{{ t.function.name }}{% endfor %}" + OPEN
    assert _traits(listed, with_tools=True).tools_position is ToolsPosition.LIST_IN_MESSAGE
    as_text = "{{ '<' + messages[0].tools + '>' if messages[0].tools }}" + OPEN
    assert _traits(as_text, with_tools=True).tools_position is ToolsPosition.JSON_IN_MESSAGE
    assert _traits("{{ tools }}" + OPEN, with_tools=True).tools_position is ToolsPosition.VARIABLE
    parts = "{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}"
    source = OPEN.replace(
        "{{ m.content or '' }}", f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{parts}{{% endif %}}"
    )
    assert _traits(source, image_marker="<image>").media_in_results
    as_string = source.replace("m.content is string", "m.content is string or m.role == 'tool'")
    assert not _traits(as_string, image_marker="<image>").media_in_results


def test_template_that_writes_no_conversation_is_not_adapted_to() -> None:
    traits = _traits("{{ messages | length }}")
    assert traits == TemplateTraits()
    assert list(traits.in_words()) == [
        "the chat template renders no simple conversation, so conversations are not adapted to it"
    ]


def test_costly_template_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.05)
    costly = (
        "{% if messages[1:] %}{% for n in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endif %}"
        + OPEN
    )
    started = time.thread_time()
    assert _traits(costly) == TemplateTraits()
    assert time.thread_time() - started < 20  # of hundreds of questions, ten are asked


def test_template_that_is_given_up_keeps_calls_in_the_form_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_probe, "_MAX_SECONDS", -1.0)
    without_calls = OPEN.replace(CALLS, "{# given up #}")  # no other test has probed it
    assert _traits(without_calls, tool_format="hermes") == TemplateTraits(calls=CallForm.IN_CONTENT)
    assert _traits(OPEN + "{# given up #}", tool_format="hermes") == TemplateTraits()


def test_scripted_devices_take_everything_and_findings_are_said_in_words() -> None:
    assert list(_traits(SCRIPTED_TEMPLATE).in_words()) == ["reasoning of earlier answers: left out"]
    dropping = _dropping("m.role == 'system' and not loop.first")
    picky = "{% if reasoning_effort is defined and reasoning_effort != 'high' %}" + _RAISE + "{% endif %}"
    assert list(_traits(dropping + picky).in_words()) == [
        "system messages later in a conversation: written as text of the user",
        "reasoning of earlier answers: left out",
        "reasoning efforts: high; others become the nearest one",
    ]


# thinking


THINKING: dict[str, tuple[str, ThinkingVariables]] = {
    "a switch": (
        "{{ '<think>' if enable_thinking }}",
        ThinkingVariables({"enable_thinking": True}, {"enable_thinking": False}),
    ),
    "a switch of another name": (
        "{% if thinking_mode == 'disabled' %}</think>{% endif %}",
        ThinkingVariables({"thinking_mode": "enabled"}, {"thinking_mode": "disabled"}),
    ),
    "a variable without effect": ("{{ 'x' if enable_thinking else 'x' }}", ThinkingVariables()),
    "efforts": (
        "{% if reasoning_effort not in ['none', 'high'] and reasoning_effort is defined %}" + _RAISE + "{% endif %}",
        ThinkingVariables(effort="reasoning_effort", efforts={"none": "none", "high": "high"}),
    ),
    "efforts of other names": (
        "{% if thinking_effort not in ['no_think', 'low'] and thinking_effort is defined %}" + _RAISE + "{% endif %}",
        ThinkingVariables(effort="thinking_effort", efforts={"none": "no_think", "low": "low"}),
    ),
}


@pytest.mark.parametrize("case", THINKING)
def test_the_probe_finds_variables_for_thinking(case: str) -> None:
    source, expected = THINKING[case]
    assert _traits(OPEN + source).thinking == expected
