"""Grammars for answers, followed by llguidance over bytes or the demo model's tokenizer."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from genai_server.answer_parts import Content, ToolCallStart
from genai_server.errors import InvalidField
from genai_server.text.answers.reasoning import MISTRAL_THINK, THINK, ReasoningFormat, ReasoningState
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tagged import Tagged
from genai_server.text.tool_formats.tool_format import Call, Tool
from tests.text.guided import Vocabulary, assert_answers, draw, fits, validate
from tests.text.parsing import answer_of, merged, parser, stream

KEYS = st.sampled_from(["a", "b", "from", "é", "x-y"])
SEEDS = st.integers(0, 1_000)
# Larger numbers are refused if they are not doubles.
INTEGERS = st.integers(-(2**53), 2**53)
# Control characters are accepted only where no object may have keys outside its schema.
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]))
# tool_formats/test_tagged.py draws the others.
JSON_FORMATS = sorted(name for name, form in TOOL_FORMATS.items() if not isinstance(form, Tagged))
# Reproducible: a random failure would probably be the library's.
drawn = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def objects(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of objects whose properties have the given schemas."""
    return st.builds(
        lambda properties, required, more: {
            "type": "object",
            "properties": properties,
            "required": sorted(set(properties) & required),
            **more,
        },
        st.dictionaries(KEYS, schemas, max_size=3),
        st.sets(KEYS),
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "integer"}}]),
    )


def limits(low: str, high: str) -> st.SearchStrategy[dict[str, int]]:
    return st.tuples(st.integers(0, 2), st.integers(3, 9)).map(lambda two: {low: two[0], high: two[1]})


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}, {"type": "string"}]),
        st.sampled_from([{"type": "string", "pattern": "^[a-z]{2,4}$"}, {"type": "string", "format": "date"}]),
        limits("minLength", "maxLength").map(lambda some: {"type": "string", **some}),
        limits("minimum", "maximum").map(lambda some: {"type": "integer", **some}),
        limits("exclusiveMinimum", "maximum").map(lambda some: {"type": "number", **some}),
        st.lists(st.none() | st.booleans() | INTEGERS | TEXTS, min_size=1).map(lambda some: {"enum": some}),
        TEXTS.map(lambda text: {"const": {"k": [text]}}),
    ),
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda some, items: {"type": "array", "items": items, **some}, limits("minItems", "maxItems"), inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=6,
)


@drawn
@given(SCHEMAS, SEEDS)
def test_drawn_answers_fit_the_schema(schema: dict[str, Any], seed: int) -> None:
    built = grammar.json_schema(schema)
    validate(built, param="response_format")
    answer = draw(built, seed)
    assume(answer is not None)
    jsonschema.Draft202012Validator(schema).validate(json.loads(answer or ""))


@drawn
@given(st.sampled_from(JSON_FORMATS), st.lists(objects(SCHEMAS), min_size=1, max_size=3), st.booleans(), SEEDS)
def test_forced_calls_are_read_and_their_arguments_fit(
    form: str, schemas: list[dict[str, Any]], parallel: bool, seed: int
) -> None:
    tools = [Tool(f"tool_{number}", schema) for number, schema in enumerate(schemas)]
    answer = draw(_calls(form, *tools, parallel=parallel), seed)
    assume(answer is not None)
    made = answer_of(merged(stream(parser(form, [tool.name for tool in tools]), [answer or ""])))
    assert len(made.tool_calls) == 1 or parallel
    assert made.blocks == made.tool_calls
    for called in made.tool_calls:
        assert called.is_complete
        schema = tools[int(called.name.removeprefix("tool_"))].schema
        jsonschema.Draft202012Validator(schema).validate(json.loads(called.arguments))


def test_json_is_on_one_line_with_single_spaces_whatever_a_schema_says() -> None:
    built = grammar.json_object()
    bad = ('{"a":1}', '{ "a": 1}', '{"a": 1 }', '{"a": 1,\n"b": 2}', '{"a":  1}', "[1]", "{}\n")
    assert_answers(built, ['{"a": [1, 2, {"b": " \\n "}], "c": {}}'], bad)
    assert not fits(grammar.json_schema({"type": "object", "x-guidance": {"whitespace_flexible": True}}), '{ "a": 1}')


@drawn
@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
@example(["a\x7f", "\x00\x1f"])
def test_a_choice_allows_its_texts_and_nothing_else(options: list[str]) -> None:
    built = grammar.choice(options)
    validate(built, param="choice")
    assert_answers(built, options, ["".join(options) + "!"])


def test_a_regular_expression_matches_as_a_whole() -> None:
    assert_answers(grammar.regex(r"[a/]+\n\d{2}|\p{Lu}"), ["a/\n12", "Ü"], ["a/\n123"])


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (grammar.json_schema({"patternProperties": {"^a": {}, "^ab": {}}}), "are not disjoint"),
        (grammar.regex("(?=a)b"), "look-around"),
        (grammar.regex("("), "unclosed group"),
        (grammar.lark("start: nowhere"), "nowhere"),
        (grammar.lark("nothing"), "nothing"),
    ],
)
def test_compilers_message_is_quoted(built: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words) as error:
        validate(built, param="response_format")
    assert error.value.param == "response_format"
    assert error.value.message.startswith("response_format cannot be used: ")
    assert len(error.value.message) < 600


def test_a_grammar_or_schema_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"at most 262144 characters; given 300\d\d\d"):
        validate(grammar.choice(["x" * 300_000]), param="choice")
    schema: dict[str, Any] = {}
    for _ in range(2_000):
        schema = {"items": schema}
    with pytest.raises(InvalidField, match="nested"):
        grammar.json_schema(schema)
    schema = {"type": "array", "items": {"type": "object", "properties": {f"p{n}": {} for n in range(1001)}}}
    with pytest.raises(InvalidField, match="at most 1000 properties; given 1001"):
        grammar.json_schema(schema)


def _calls(form: str, *tools: Tool, parallel: bool = False, opaque: dict[str, int] | None = None) -> str:
    return grammar.tool_calls(TOOL_FORMATS[form], tools, parallel=parallel, opaque_tokens=opaque or {})


def test_parameters_that_are_not_an_object_are_refused() -> None:
    with pytest.raises(InvalidField, match="must have objects as their parameters, unlike .*f.*; given .string"):
        _calls("hermes", Tool("f", {"type": "string"}))


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS))
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": []},
        {"properties": {"a": 1}},
        {"properties": {"a": {}}, "required": 1},
        {"properties": {"a": {}}, "required": [[]]},
        {"properties": {"a": {"type": "text"}}},
    ],
)
def test_parameters_that_are_not_a_schema_are_refused(form: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidField):
        validate(_calls(form, Tool("f", parameters)), param="tools")


@pytest.mark.parametrize(
    ("parameters", "call"),
    [
        ({"properties": {"": {"type": "null"}}, "required": [""]}, '[f(**{"": null})]'),
        ({"properties": {"a": {"$ref": "#"}}}, '[f(**{"a": {"a": {}}})]'),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "null"}}}, "[f(a=null)]"),
        ({"required": ["a"]}, '[f(**{"a": 1})]'),
        ({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]}, "[f(b=null)]"),
        ({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["a"]}, "[f(a=null)]"),
        ({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, "[f()]"),
    ],
)
def test_pythonic_arguments_are_keywords_if_the_schema_splits(parameters: dict[str, Any], call: str) -> None:
    assert fits(_calls("pythonic", Tool("f", parameters)), call)


@pytest.mark.parametrize(
    ("parameters", "is_allowed"),
    [
        ({"properties": {"a": {}}}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, True),
        ({}, True),
        (None, False),
    ],
)
def test_arguments_are_limited_to_properties_unless_opened(parameters: dict[str, Any] | None, is_allowed: bool) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>'
    assert fits(_calls("hermes", Tool("f", parameters)), text) is is_allowed


def test_only_one_call_is_allowed_unless_parallel() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for parallel in (False, True):
        built = _calls("hermes", Tool("now"), parallel=parallel)
        assert_answers(built, [call], ["", f"Hm.\n{call}"])
        assert fits(built, f"{call}\n{call}") is parallel


@pytest.mark.parametrize("form", [THINK, MISTRAL_THINK])
def test_reasoning_may_come_before_what_fits(form: ReasoningFormat) -> None:
    inside, outside = (
        grammar.after_reasoning(grammar.json_object(), form, state, {})
        for state in (ReasoningState.INSIDE, ReasoningState.BEFORE)
    )
    rest = f"\nHm < b\n{form.closing}\n\n{{}}"
    assert_answers(inside, [rest], ["{}", f"Hm{form.closing}", f"Hm{form.closing}no"])
    assert_answers(outside, [form.opening + rest, "{}"], ["Hm{}"])


def test_a_grammar_of_several_keeps_them_all_after_reasoning() -> None:
    pair = json.dumps({"grammars": [{"lark_grammar": "start: @b"}, {"name": "b", "lark_grammar": 'start: "b"'}]})
    assert fits(grammar.after_reasoning(pair, THINK, ReasoningState.INSIDE, {}), "Hm</think>b")


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS.keys() - {"harmony"}))
@pytest.mark.parametrize("reasoning", [None, THINK, MISTRAL_THINK])
def test_calls_written_with_the_models_tokens_are_allowed(
    form: str, reasoning: ReasoningFormat | None, model: Vocabulary
) -> None:
    parameters = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
    built = _calls(form, Tool("f", parameters), Tool("now"), parallel=True, opaque=model.opaque)
    text = TOOL_FORMATS[form].write_calls([Call("f", {"city": "Oslo <b>", "days": 3}), Call("now", {})])
    if form == "mistral":
        text = '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}'
    elif form == "llama3_json":
        text = f"<|python_tag|>{text}"
    if reasoning is not None:
        built = grammar.after_reasoning(built, reasoning, ReasoningState.BEFORE, model.opaque)
        text = f"{reasoning.opening}\nHm </th\n{reasoning.closing}\n{text}"
    validate(built, param="tools")
    assert model.allows(built, text)
    parts = merged(stream(parser(form, ["f", "now"], reasoning=reasoning), [text]))
    assert [part.name for part in parts if isinstance(part, ToolCallStart)] == ["f", "now"]
    assert not any(isinstance(part, Content) for part in parts)


def test_tokens_that_are_special_or_in_angle_brackets_are_opaque() -> None:
    tokens = [("<a>", False), ("[b]", True), ("[c]", False), ("<d", False)]
    content = {"added_tokens": [{"id": id, "content": text, "special": flag} for id, (text, flag) in enumerate(tokens)]}
    assert grammar.find_opaque_tokens(content) == {"<a>": 0, "[b]": 1}


HOSTILE_SCHEMAS: dict[str, dict[str, Any]] = {
    "a large prime": {"type": "integer", "multipleOf": 999983},
    "a small part of one": {"type": "number", "multipleOf": 0.0999983},
    "several for one number": {"allOf": [{"type": "integer", "multipleOf": number} for number in (97, 89, 83)]},
    "by reference": {"$ref": "#/$defs/a", "multipleOf": 991, "$defs": {"a": {"type": "integer", "multipleOf": 997}}},
}


@pytest.mark.parametrize("name", HOSTILE_SCHEMAS)
@pytest.mark.parametrize("within", ["schema", "lark"])
def test_multiples_whose_compilation_would_not_end_are_refused(name: str, within: str) -> None:
    schema = HOSTILE_SCHEMAS[name]
    built = grammar.json_schema(schema) if within == "schema" else grammar.lark(f"start: %json {json.dumps(schema)}")
    with pytest.raises(InvalidField, match="multipleOf may be, .* at most 10000; given [0-9]+"):
        validate(built, param="x")


def test_a_schema_within_lark_cannot_hide_a_multiple() -> None:
    built = grammar.lark('start: %json {"type": "integer", "\\u006dultipleOf": 999983}')
    with pytest.raises(InvalidField, match="without"):
        validate(built, param="x")


@pytest.mark.parametrize("schema", [{"type": "integer", "multipleOf": 5000}, {"type": "number", "multipleOf": 0.01}])
def test_usual_multiples_are_taken(schema: dict[str, Any]) -> None:
    properties = {f"p{n}": schema | {"title": str(n)} for n in range(9)}
    validate(grammar.json_schema({"type": "object", "properties": properties}), param="x")


def _pattern(number: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(a|b)*a(a|b){{{number}}}b(a|b)*$"}


def _chain(links: list[Any], last: Any) -> dict[str, Any]:
    """Definitions each of which contains the following one in place of "next"."""
    texts = [json.dumps(link).replace('"next"', f'"#/$defs/a{n + 1}"') for n, link in enumerate(links)]
    found = {f"a{n}": json.loads(text) for n, text in enumerate(texts)}
    return {"$ref": "#/$defs/a0", "$defs": {**found, f"a{len(links)}": last}}


JOINED = {
    "all of them": {"allOf": [_pattern(n) for n in range(24)]},
    "one after another": _chain([{"$ref": "next", **_pattern(n)} for n in range(24)], {}),
    "in properties": {"allOf": [{"properties": {"a": _pattern(n)}} for n in range(24)]},
    "again and again": _chain([{"allOf": [{"$ref": "next"}] * 3}] * 20, {"type": "string"}),
    "far away": _chain([{"$ref": "next"}] * 300, {}),
    "by a name": {"allOf": [{"$ref": "#b"}] * 2, "$defs": {"b": {"$anchor": "b"}}},
    "elsewhere": {"$ref": "https://example.com/schema"},
}


@pytest.mark.parametrize("name", JOINED)
def test_schema_that_is_too_expensive_to_join_is_refused(name: str) -> None:
    words = "combine|references|is not a reference"
    with pytest.raises(InvalidField, match=words):
        grammar.json_schema(JOINED[name])
    with pytest.raises(InvalidField, match=words) as caught:
        grammar.check_lark(f"start: a\na: %json {json.dumps(JOINED[name])}", param="g")
    assert caught.value.param == "g"


def test_separate_patterns_and_recursion_are_accepted() -> None:
    node = {"type": "object", "properties": {str(n): _pattern(n % 7) | {"maxLength": n} for n in range(99)}}
    node["properties"]["next"] = {"$ref": "#/$defs/node"}  # type: ignore[index]
    schema = {"$ref": "#/$defs/node", "title": "Node", "$defs": {"node": node}}
    validate(grammar.json_schema(schema), param="g")
    grammar.check_lark(f"start: %json {json.dumps(schema)}", param="g")


def test_unparsable_schema_in_lark_is_refused() -> None:
    for schema in ('{"allOf": [], "allOf": []}', '{"a": '):
        with pytest.raises(InvalidField, match="must be JSON without doubles"):
            grammar.check_lark(f"start: %json {schema}", param="g")


@pytest.mark.parametrize("source", ['start: "a"', 'start: "a"\n%llguidance {"no_forcing": false}', 'start: "a" // c'])
def test_grammar_of_a_request_disables_forced_tokens(source: str) -> None:
    built = grammar.request_grammar(source, param="g")
    validate(built, param="g")
    assert json.loads(built)["grammars"][0]["lark_grammar"].endswith('\n%llguidance {"no_forcing": true}')
