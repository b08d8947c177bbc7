"""The grammar of answers that may be text, and whose calls fit `strict` functions."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from genai_server.text.answers.reasoning import MISTRAL_THINK, THINK, ReasoningFormat, ReasoningState
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tagged import Tagged
from genai_server.text.tool_formats.tool_format import ANY_OBJECT, Tool
from tests.text.guided import byte_tokenizer, fits, matcher, validate
from tests.text.parsing import answer_of, merged, parser, pieces, stream

CITY = {"properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOLS = [Tool("f", CITY), Tool("g", ANY_OBJECT)]
# gpt-oss writes messages, for text as well: tool_formats/test_harmony.py.
FORMS = sorted(TOOL_FORMATS.keys() - {"harmony"})
# One call of a function with one argument in each format, without and with the model's own tokens.
CALLS = {
    "hermes": '<tool_call>\n{{"name": "{0}", "arguments": {{"city": {1}}}}}\n</tool_call>',
    "llama3_json": '{{"name": "{0}", "parameters": {{"city": {1}}}}}',
    "mistral": '[TOOL_CALLS][{{"name": "{0}", "arguments": {{"city": {1}}}}}]',
    "phi4mini": '<|tool_call|>[{{"name": "{0}", "arguments": {{"city": {1}}}}}]<|/tool_call|>',
    "pythonic": "[{0}(city={1})]",
    "granite": '<|tool_call|>[{{"name": "{0}", "arguments": {{"city": {1}}}}}]',
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{0}:0<|tool_call_argument_begin|>"
        '{{"city": {1}}}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{0}\n```json\n"
        '{{"city": {1}}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{0}<｜tool▁sep｜>"
        '{{"city": {1}}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "qwen3_coder": "<tool_call>\n<function={0}>\n<parameter=city>\n{1}\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>{0}\n<arg_key>city</arg_key>\n<arg_value>{1}</arg_value>\n</tool_call>",
    "minimax": (
        '<minimax:tool_call>\n<invoke name="{0}">\n<parameter name="city">{1}</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "lfm2": "<|tool_call_start|>[{0}(city={1})]<|tool_call_end|>",
    "olmo3": "<function_calls>{0}(city={1})</function_calls>",
    "nemotron": '<TOOLCALL>[{{"name": "{0}", "arguments": {{"city": {1}}}}}]</TOOLCALL>',
}
WITH_TOKENS = {
    **CALLS,
    "llama3_json": "<|python_tag|>" + CALLS["llama3_json"],
    "mistral": '[TOOL_CALLS]{0}[ARGS]{{"city": {1}}}',
}
MARKED = [form for form in FORMS if TOOL_FORMATS[form].opening is not None]
WHOLE = [form for form in FORMS if form not in MARKED]


def _call(form: str, city: str = '"Oslo"', name: str = "f", *, calls: Mapping[str, str] = CALLS) -> str:
    value = city.strip('"') if isinstance(TOOL_FORMATS[form], Tagged) else city
    return calls[form].format(name, value)


def _built(
    form: str,
    *,
    parallel: bool = True,
    opaque: dict[str, int] | None = None,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
) -> str:
    return grammar.text_and_calls(
        TOOL_FORMATS[form],
        TOOLS,
        parallel=parallel,
        opaque_tokens=opaque or {},
        reasoning=reasoning,
        state=ReasoningState.INSIDE if inside else ReasoningState.BEFORE,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parallel", [False, True])
def test_text_and_a_call_of_any_of_the_functions_fit(form: str, parallel: bool) -> None:
    built = _built(form, parallel=parallel)
    validate(built, param="tools")
    for text in ("", "Hi!", "é\n\n- <b> [1] {a: 2}\n", "\n{ [f] f(1)", "<tool_cal", "functools", '{"city": "Paris"}'):
        assert fits(built, text), text
    for before in ("", "\n", " "):
        assert fits(built, before + _call(form))
    assert fits(built, _call(form, '[1, {"a": null}]', name="g"))


@pytest.mark.parametrize("form", FORMS)
def test_a_call_whose_arguments_do_not_fit_is_no_text_either(form: str) -> None:
    for before in ("", "\n", "Hi!\n", _call(form) + "\n"):
        for call in (_call(form, '"Paris"'), _call(form, "1"), _call(form, name="f").replace("city", "town")):
            assert not fits(_built(form), before + call), before + call
    assert not fits(_built(form), _call(form)[: -len("Oslo") - 2])


@pytest.mark.parametrize("form", MARKED)
def test_text_may_stand_around_calls_that_are_marked(form: str) -> None:
    call = _call(form)
    for text in (f"Hi. {call}", f"{call}{call}", f"{call}\n{call}", f"a{call} b {call}c\n"):
        assert fits(_built(form), text), text
    one = _built(form, parallel=False)
    assert fits(one, f"Hi. {call}")
    assert not fits(one, f"{call}\n{call}")


@pytest.mark.parametrize("form", WHOLE)
def test_no_line_starts_as_a_call_if_calls_have_no_marker(form: str) -> None:
    for text in (f"Hi\n{_call(form)}", f"Hi\n  {_call(form)}", f"{_call(form)}\nHi", f"<|python_tag|>{_call(form)}"):
        assert not fits(_built(form), text), text
    assert fits(_built(form), f"Like this: {_call(form)}")


def test_a_call_cannot_hide_behind_another_spelling() -> None:
    for text in (
        '{"n\\u0061me": "f", "parameters": {}}',
        '{ "name":"f"}',
        '{"type": "function", "name": "f"}',
        '{"parameters": {"city": "Paris"}, "name": "f"}',
    ):
        assert not fits(_built("llama3_json"), text), text
    assert not fits(_built("pythonic"), '[ f(city="Paris")]')
    assert not fits(_built("phi4mini"), 'functools [{"name": "f", "arguments": {}}]')


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reasoning", [None, THINK, MISTRAL_THINK])
@pytest.mark.parametrize("tokens", [False, True], ids=["as text", "as tokens"])
def test_markers_may_be_tokens_or_text_in_the_grammar(
    form: str, reasoning: ReasoningFormat | None, tokens: bool, model: tuple[LLTokenizer, dict[str, Any]]
) -> None:
    tokenizer, content = model
    built = _built(form, opaque=grammar.find_opaque_tokens(content) if tokens else None, reasoning=reasoning)
    calls = WITH_TOKENS if tokens else CALLS
    thoughts = [""] if reasoning is None else [f"{reasoning.opening}\nHm\n{reasoning.closing}{n}" for n in ("", "\n\n")]
    encoder = Tokenizer.from_str(json.dumps(content))
    for thought in thoughts:
        for answer, allowed in (
            ("Hi!", True),
            (_call(form, '"Rome"', calls=calls), True),
            (_call(form, '"Paris"', calls=calls), False),
            ("\n" + _call(form, "1", "g", calls=calls), True),
        ):
            text = thought + answer
            written = encoder.encode(text).ids if tokens else list(text.encode())
            state = matcher(tokenizer if tokens else byte_tokenizer(), built)
            fitted = state.validate_tokens(written) == len(written) and state.consume_tokens(written)
            assert (fitted and state.is_accepting()) is allowed, text


@pytest.mark.parametrize("form", MARKED)
@pytest.mark.parametrize("tokens", [False, True], ids=["as text", "as tokens"])
def test_reasoning_may_end_with_the_answer_and_its_calls_are_bound(
    form: str, tokens: bool, model: tuple[LLTokenizer, dict[str, Any]]
) -> None:
    tokenizer, content = model
    opaque = grammar.find_opaque_tokens(content) if tokens else None
    encoder, calls = Tokenizer.from_str(json.dumps(content)), WITH_TOKENS if tokens else CALLS
    call, wrong = (_call(form, city, calls=calls) for city in ('"Rome"', '"Paris"'))

    def is_allowed(built: str, text: str) -> bool:
        written = encoder.encode(text).ids if tokens else list(text.encode())
        state = matcher(tokenizer if tokens else byte_tokenizer(), built)
        fitted = state.validate_tokens(written) == len(written) and state.consume_tokens(written)
        return fitted and state.is_accepting()

    for begun, inside in (("", True), ("<think>\n", False)):
        built = _built(form, opaque=opaque, reasoning=THINK, inside=inside)
        for thought in ("", "Hm", f"Hm\n{call}", call, f"Hm\n\n  {call}\nSo.", f"Hm\n{call}\n</think>\n\n{call}"):
            assert is_allowed(built, begun + thought), thought
        for thought in (f"Hm\n{wrong}", wrong, f"Hm\n{wrong}\n</think>\n\n{call}", f"Hm</think>{wrong}"):
            assert not is_allowed(built, begun + thought), thought
        one = _built(form, opaque=opaque, reasoning=THINK, inside=inside, parallel=False)
        assert is_allowed(one, f"{begun}Hm\n{call}\n")
        assert not is_allowed(one, f"{begun}{call}\n{call}")


@pytest.mark.parametrize("form", MARKED)
def test_a_marker_that_is_a_token_is_not_written_in_pieces(
    form: str, model: tuple[LLTokenizer, dict[str, Any]]
) -> None:
    tokenizer, content = model
    encoder, opening = Tokenizer.from_str(json.dumps(content)), TOOL_FORMATS[form].opening
    assert opening is not None
    pieces = [*encoder.encode(f"Hi {opening[:-2]}").ids, *encoder.encode(opening[-2:]).ids]
    assert encoder.token_to_id(opening) not in pieces
    state = matcher(tokenizer, _built(form, opaque=grammar.find_opaque_tokens(content)))
    assert 0 < state.validate_tokens(pieces) < len(pieces)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(FORMS),
    st.sampled_from([(None, False), (THINK, False), (THINK, True)]),
    st.lists(st.sampled_from(pieces("f")), min_size=10, max_size=120),
)
def test_parser_finds_only_valid_calls_in_allowed_text(
    form: str, thinks: tuple[ReasoningFormat | None, bool], drawn: list[str]
) -> None:
    reasoning, inside = thinks
    state, text = matcher(byte_tokenizer(), _built(form, reasoning=reasoning, inside=inside)), ""
    for piece in drawn:
        if state.validate_tokens(list(piece.encode())) == len(piece):
            state.consume_tokens(list(piece.encode()))
            text += piece
    if not state.is_accepting():
        return
    reader = parser(form, {tool.name: tool.parameters for tool in TOOLS}, reasoning=reasoning, inside=inside)
    parts = merged(stream(reader, [text]))
    for called in answer_of(parts).tool_calls:
        assert called.is_complete
        if called.name == "f":
            jsonschema.Draft202012Validator(TOOLS[0].schema).validate(json.loads(called.arguments))
