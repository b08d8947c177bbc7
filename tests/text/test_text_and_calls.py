"""The grammar of answers that may be text, and whose calls fit `strict` functions."""

import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genai_server.text.answers.reasoning import MISTRAL_THINK, THINK, ReasoningFormat, ReasoningState
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tool_format import ANY_OBJECT, Call, Tool
from tests.text.guided import Vocabulary, assert_answers, byte_tokenizer, byte_vocabulary, fits, matcher, validate
from tests.text.parsing import answer_of, merged, parser, pieces, stream

CITY = {"properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOLS = [Tool("f", CITY), Tool("g", ANY_OBJECT)]
# gpt-oss writes messages, for text as well: tool_formats/test_harmony.py.
FORMS = sorted(TOOL_FORMATS.keys() - {"harmony"})
# One call of a function with one argument in each format, without and with the model's own tokens.
MARKED = [form for form in FORMS if TOOL_FORMATS[form].opening is not None]
WHOLE = [form for form in FORMS if form not in MARKED]


def _call(form: str, city: object = "Oslo", name: str = "f", *, has_tokens: bool = False) -> str:
    """One call of a function with one argument, also in the form that only a model with its own tokens writes."""
    if has_tokens and form == "mistral":
        return f'[TOOL_CALLS]{name}[ARGS]{{"city": {json.dumps(city)}}}'
    before = "<|python_tag|>" if has_tokens and form == "llama3_json" else ""
    return before + TOOL_FORMATS[form].write_calls([Call(name, {"city": city})])


def _built(
    form: str,
    *,
    parallel: bool = True,
    opaque: dict[str, int] | None = None,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
) -> str:
    state, tokens = ReasoningState.INSIDE if inside else ReasoningState.BEFORE, opaque or {}
    return grammar.text_and_calls(
        TOOL_FORMATS[form], TOOLS, parallel=parallel, opaque_tokens=tokens, reasoning=reasoning, state=state
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parallel", [False, True])
def test_text_and_a_call_of_any_of_the_functions_fit(form: str, parallel: bool) -> None:
    built = _built(form, parallel=parallel)
    validate(built, param="tools")
    texts = ["", "Hi!", "é\n\n- <b> [1] {a: 2}\n", "\n{ [f] f(1)", "<tool_cal", "functools", '{"city": "Paris"}']
    calls = [*(before + _call(form) for before in ("", "\n", " ")), _call(form, [1, {"a": None}], name="g")]
    assert_answers(built, [*texts, *calls], [])


@pytest.mark.parametrize("form", FORMS)
def test_a_call_whose_arguments_do_not_fit_is_no_text_either(form: str) -> None:
    wrong = [_call(form, "Paris"), _call(form, 1), _call(form).replace("city", "town")]
    before = ["", "\n", "Hi!\n", _call(form) + "\n"]
    bad = [first + call for first in before for call in wrong]
    assert_answers(_built(form), [], [*bad, _call(form)[: -len("Oslo") - 2]])


@pytest.mark.parametrize("form", MARKED)
def test_text_may_stand_around_calls_that_are_marked(form: str) -> None:
    call = _call(form)
    texts = [f"Hi. {call}", f"{call}{call}", f"{call}\n{call}", f"a{call} b {call}c\n"]
    assert_answers(_built(form), texts, [])
    assert_answers(_built(form, parallel=False), [f"Hi. {call}"], [f"{call}\n{call}"])


@pytest.mark.parametrize("form", WHOLE)
def test_no_line_starts_as_a_call_if_calls_have_no_marker(form: str) -> None:
    call = _call(form)
    bad = [f"Hi\n{call}", f"Hi\n  {call}", f"{call}\nHi", f"<|python_tag|>{call}"]
    assert_answers(_built(form), [f"Like this: {call}"], bad)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama3_json", '{"n\\u0061me": "f", "parameters": {}}'),
        ("llama3_json", '{ "name":"f"}'),
        ("llama3_json", '{"type": "function", "name": "f"}'),
        ("llama3_json", '{"parameters": {"city": "Paris"}, "name": "f"}'),
        ("pythonic", '[ f(city="Paris")]'),
        ("phi4mini", 'functools [{"name": "f", "arguments": {}}]'),
    ],
)
def test_a_call_cannot_hide_behind_another_spelling(form: str, text: str) -> None:
    assert not fits(_built(form), text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reasoning", [None, THINK, MISTRAL_THINK])
@pytest.mark.parametrize("has_tokens", [False, True], ids=["as text", "as tokens"])
def test_markers_may_be_tokens_or_text_in_the_grammar(
    form: str, reasoning: ReasoningFormat | None, has_tokens: bool, model: Vocabulary
) -> None:
    vocabulary = model if has_tokens else byte_vocabulary()
    built = _built(form, opaque=vocabulary.opaque, reasoning=reasoning)
    thoughts = [""] if reasoning is None else [f"{reasoning.opening}\nHm\n{reasoning.closing}{n}" for n in ("", "\n\n")]
    for thought in thoughts:
        for answer, is_allowed in (
            ("Hi!", True),
            (_call(form, "Rome", has_tokens=has_tokens), True),
            (_call(form, "Paris", has_tokens=has_tokens), False),
            ("\n" + _call(form, 1, "g", has_tokens=has_tokens), True),
        ):
            assert vocabulary.allows(built, thought + answer) is is_allowed, thought + answer


@pytest.mark.parametrize("form", MARKED)
@pytest.mark.parametrize("has_tokens", [False, True], ids=["as text", "as tokens"])
def test_reasoning_may_end_with_the_answer_and_its_calls_are_bound(
    form: str, has_tokens: bool, model: Vocabulary
) -> None:
    vocabulary = model if has_tokens else byte_vocabulary()
    call, wrong = (_call(form, city, has_tokens=has_tokens) for city in ("Rome", "Paris"))
    good = ["", "Hm", f"Hm\n{call}", call, f"Hm\n\n  {call}\nSo.", f"Hm\n{call}\n</think>\n\n{call}"]
    bad = [f"Hm\n{wrong}", wrong, f"Hm\n{wrong}\n</think>\n\n{call}", f"Hm</think>{wrong}"]
    for begun, inside in (("", True), ("<think>\n", False)):
        built, one = (
            _built(form, opaque=vocabulary.opaque, reasoning=THINK, inside=inside, parallel=parallel)
            for parallel in (True, False)
        )
        assert [text for text in good if not vocabulary.allows(built, begun + text)] == []
        assert [text for text in bad if vocabulary.allows(built, begun + text)] == []
        assert vocabulary.allows(one, f"{begun}Hm\n{call}\n")
        assert not vocabulary.allows(one, f"{begun}{call}\n{call}")


@pytest.mark.parametrize("form", MARKED)
def test_a_marker_that_is_a_token_is_not_written_in_pieces(form: str, model: Vocabulary) -> None:
    opening = TOOL_FORMATS[form].opening or ""
    pieces = [*model.encode(f"Hi {opening[:-2]}"), *model.encode(opening[-2:])]
    assert model.opaque[opening] not in pieces
    state = matcher(model.tokenizer, _built(form, opaque=model.opaque))
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
    for called in answer_of(merged(stream(reader, [text]))).tool_calls:
        assert called.is_complete
        if called.name == "f":
            jsonschema.Draft202012Validator(TOOLS[0].schema).validate(json.loads(called.arguments))
