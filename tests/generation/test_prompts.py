"""The template's variables for effort and thinking."""

from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.prompts import template_variables
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, LeftOut, Leniency
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer

USERS = "{% for m in messages %}{{ m.content }}{% endfor %}"
SWITCH = "{{ enable_thinking }}"
EFFORT = "{{ reasoning_effort }}"
PICKY = "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('unknown effort') }}{% endif %}"
LOW_OR_HIGH = PICKY.replace("'none'", "'low'")


def _variables(source: str, **fields: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables, and the headers of the response."""
    codec = TextCodec({"default": ChatTemplate(USERS + source)}, ByteTokenizer())
    leniency = Leniency()
    try:
        body = ChatParameters.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
        return template_variables(body, codec, leniency), leniency.report()
    finally:
        codec.close()


@pytest.mark.parametrize(
    ("source", "effort", "expected"),
    [
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "low", {"enable_thinking": True}),
        (EFFORT, "none", {"reasoning_effort": "none"}),
        # A template that reads both is switched off, and gets no effort that it may not know.
        (SWITCH + EFFORT, "none", {"enable_thinking": False}),
        (SWITCH + EFFORT, "high", {"enable_thinking": True, "reasoning_effort": "high"}),
        ("{{ thinking }}", "none", {"thinking": False}),
        ("", "none", {}),
    ],
)
def test_effort_is_what_the_template_reads(source: str, effort: str, expected: dict[str, Any]) -> None:
    assert _variables(source, reasoning_effort=effort) == (expected, {})


@pytest.mark.parametrize(
    ("source", "effort", "taken"),
    [
        (PICKY, "medium", "high"),
        (PICKY, "minimal", "high"),  # not the nearer "none", which turns reasoning off
        (PICKY, "max", "high"),
        (LOW_OR_HIGH, "none", "low"),
        (LOW_OR_HIGH, "medium", "high"),
    ],
)
def test_effort_that_the_template_refuses_becomes_the_nearest_one_and_is_named(
    source: str, effort: str, taken: str
) -> None:
    variables, headers = _variables(source, reasoning_effort=effort)
    assert variables == {"reasoning_effort": taken}
    assert headers == {CONVERTED_HEADER: f'reasoning_effort "{effort}" (as "{taken}")'}


def test_given_variables_come_first() -> None:
    variables, _ = _variables(SWITCH, reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    assert variables == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ("{{ thinking }}", {"enable_thinking": False}, {"thinking": False}),
        (SWITCH, {"thinking": True}, {"enable_thinking": True}),
        (EFFORT, {"enable_thinking": False}, {"reasoning_effort": "none"}),
        (EFFORT, {"enable_thinking": True}, {}),
        ("", {"enable_thinking": False}, {"enable_thinking": False}),  # refused by the template's variables
    ],
)
def test_switch_has_the_templates_name(source: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert _variables(source, chat_template_kwargs=given) == (expected, {})


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        (SWITCH, {}, {"enable_thinking": False}),
        (EFFORT, {}, {"reasoning_effort": "none"}),
        ("", {}, {}),
        (SWITCH + EFFORT, {"reasoning_effort": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
        (SWITCH, {"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
    ],
)
def test_budget_of_zero_turns_thinking_off(source: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert _variables(source, thinking_token_budget=0, **given) == (expected, {})
    assert _variables(source, thinking_token_budget=1, **given) == _variables(source, **given)


def test_effort_without_effect_is_refused_unless_lenient() -> None:
    with pytest.raises(InvalidField, match='reasoning_effort has no effect .*; given "high"') as caught:
        _variables("", reasoning_effort="high")
    assert caught.value.param == "reasoning_effort"
    codec = TextCodec({"default": ChatTemplate(USERS)}, ByteTokenizer())
    leniency = Leniency(LeftOut())
    body = ChatParameters.model_validate({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "high"})
    assert template_variables(body, codec, leniency) == {}
    assert leniency.report() == {IGNORED_HEADER: "reasoning_effort"}
    codec.close()
