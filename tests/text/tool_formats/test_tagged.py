"""The meaning of unquoted values by their schema."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genai_server.answer_parts import Content
from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from genai_server.text.grammars.lark import LARK
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tagged import is_any_text, meant, texts_of, types_of
from genai_server.text.tool_formats.tool_format import ANY_OBJECT, Call, Tool
from tests.text.guided import assert_answers, draw, fits, validate
from tests.text.parsing import answer_of, assert_cuts_change_nothing, call, cut_call, parse

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, '"5"'),
        (' {"a": 1}\n', {"type": "string"}, '" {\\"a\\": 1}\\n"'),
        ("5", {"type": "integer"}, "5"),
        (" -2.5e3 ", {"type": "number"}, "-2.5e3"),
        ("True", {"type": "boolean"}, "true"),
        ("{'a': [1, None]}", {"type": "object"}, '{"a": [1, null]}'),
        ('["x",\n "y"]', {"type": "array"}, '["x",\n "y"]'),
        ("soon", {"type": "integer"}, '"soon"'),
        ("null", OPTIONAL, "null"),
        ("5", OPTIONAL, '"5"'),
        ("None", OPTIONAL, '"None"'),
        ("5", {"type": ["string", "number"]}, "5"),
        ("5.5", {"type": ["string", "integer"]}, '"5.5"'),
        ('"5"', {"type": ["string", "number"]}, '"\\"5\\""'),
        ("5", {"enum": ["5", "6"]}, '"5"'),
        ("6", {"enum": ["5", 6]}, "6"),
        ("5", {"const": 5}, "5"),
        ("5", {"$ref": "#/$defs/n"}, "5"),
        ("5", {"$ref": "#/$defs/none"}, "5"),
        ("5", {"allOf": [{"type": "string"}]}, '"5"'),
        ("5", {"allOf": [{"type": "number"}, {"type": "integer"}]}, "5"),
        ("5", True, "5"),
        ("five", {}, '"five"'),
        ("", {}, '""'),
        ("", {"type": "integer"}, '""'),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("5", {"type": {"no": "type"}}, "5"),
        ("5", {"type": ["string", {}]}, '"5"'),
    ],
)
def test_a_text_stays_one_where_the_schema_allows_texts(text: str, schema: Any, value: str) -> None:
    assert meant(text, schema, {"$defs": {"n": {"type": "integer"}}}) == value


def test_references_in_a_circle_allow_everything() -> None:
    circle = {"$ref": "#/$defs/a"}
    assert "string" in types_of(circle, {"$defs": {"a": circle}})


@pytest.mark.timeout(120)
def test_a_reference_is_followed_once() -> None:
    """Following each reference separately would take 20 ** 7 steps; the test's time limit is what fails."""
    branches = {"anyOf": [{"$ref": "#/$defs/a"}, *[{"$ref": "#/$defs/b"}] * 20]}
    assert types_of(branches, {"$defs": {"a": {"type": "string"}, "b": branches}}) >= {"string", "null"}


@pytest.mark.parametrize(
    ("schema", "any_text"),
    [
        ({"type": "string", "description": "d"}, True),
        (OPTIONAL, True),
        (True, True),
        ({"type": "string", "maxLength": 3}, False),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}, False),
        ({"$ref": "#/$defs/n"}, False),
    ],
)
def test_a_schema_of_any_text_says_no_more_than_a_type(schema: Any, any_text: bool) -> None:
    assert is_any_text(schema) is any_text


def test_the_values_of_a_list_are_bare_too() -> None:
    assert texts_of({"enum": ["a", None, 1]}) == ["a", "null", "1"]
    assert texts_of({"type": "string", "const": "a"}) == ["a"]
    assert texts_of({"type": "string"}) is None
    assert texts_of({"enum": ["a"], "maxLength": 1}) is None


FUNCTIONS: dict[str, Mapping[str, Any] | None] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "array"}},
        "required": ["city"],
    },
    "now": None,
}
# A call with three arguments and one without.
CALLS = {
    "qwen3_coder": """\
<tool_call>
<function=get_weather>
<parameter=city>
New
"York" <b>
</parameter>
<parameter=days>
3
</parameter>
<parameter=more>
["a", {"b": 1}]
</parameter>
</function>
</tool_call>
<tool_call>
<function=now>
</function>
</tool_call>""",
    "glm": """\
<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>New
"York" <b></arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
<arg_key>more</arg_key>
<arg_value>["a", {"b": 1}]</arg_value>
</tool_call>
<tool_call>now
</tool_call>""",
    "minimax": """\
<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">New
"York" <b></parameter>
<parameter name="days">3</parameter>
<parameter name="more">["a", {"b": 1}]</parameter>
</invoke>
<invoke name="now">
</invoke>
</minimax:tool_call>""",
}
ARGUMENTS = '{"city": "New\\n\\"York\\" <b>", "days": 3, "more": ["a", {"b": 1}]}'
TAGGED = list(CALLS)
TOLD = [*call(0, "get_weather", ARGUMENTS), *call(1, "now", "{}")]
# One call with one argument each, up to the closing tag of the value.
UP_TO_VALUE = {
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\n{}",
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{}",
    "minimax": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">{}',
}
REST = {
    "qwen3_coder": "\n</parameter>\n</function>\n</tool_call>",
    "glm": "</arg_value>\n</tool_call>",
    "minimax": "</parameter>\n</invoke>\n</minimax:tool_call>",
}

# What ends the name of that call, and its value.
NAME_END = {"qwen3_coder": "<function=get_weather>", "glm": "get_weather\n", "minimax": '<invoke name="get_weather">'}
CLOSING = {"qwen3_coder": "</parameter>", "glm": "</arg_value>", "minimax": "</parameter>"}


@pytest.fixture(params=TAGGED)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _one(form: str, value: str) -> str:
    return UP_TO_VALUE[form].format(value) + REST[form]


def test_values_of_calls_follow_the_schema_and_text_may_stand_around_them(form: str) -> None:
    parts = parse(f"I look.\n\n{CALLS[form]}\nSo.", form, FUNCTIONS)
    assert parts == [Content("I look."), *TOLD, Content("\nSo.")]


def test_whitespace_between_tags_and_a_schema_may_be_missing_but_not_the_function(form: str) -> None:
    text = _one(form, "Oslo").replace(">\n", ">").replace("\n<", "<").replace("weather\n", "weather")
    assert parse(text, form, FUNCTIONS) == call(0, "get_weather", '{"city": "Oslo"}')
    for value, meant_value in (("3", "3"), ("Oslo", '"Oslo"')):
        assert parse(_one(form, value), form) == call(0, "get_weather", f'{{"city": {meant_value}}}')
    text = _one(form, "Oslo").replace("get_weather", "unknown")
    assert parse(f"A {text}", form, FUNCTIONS) == [Content(f"A {text}")]


def test_a_call_in_which_the_answer_ends_is_cut_wherever_it_ends(form: str) -> None:
    text = _one(form, "Oslo")
    whole = len(text) - len({"qwen3_coder": "\n</tool_call>", "glm": "", "minimax": "\n</minimax:tool_call>"}[form])
    named, valued = (text.index(found) + len(found) for found in (NAME_END[form], CLOSING[form]))
    for end in range(1, len(text) + 1):
        if end >= whole:
            expected = call(0, "get_weather", '{"city": "Oslo"}')
        elif end >= named:
            expected = cut_call(0, "get_weather", '{"city": "Oslo"' if end >= valued else "{")
        else:
            expected = [Content(text[:end])]
        assert parse(text[:end], form, FUNCTIONS) == expected


# Values that contain their own closing tag. TAG stands for it.
WITH_TAGS = [
    "a TAG b",
    "TAG",
    "TAGTAG",
    "a\nTAG\nb",
    "a\nTAG",
    "<x>\n  TAG\n</x>",
    "TAG </functions>",
    'TAG\n"a"\nTAG c',
]


@pytest.mark.parametrize("value", WITH_TAGS)
def test_value_contains_its_closing_tag_where_no_other_tag_follows(form: str, value: str) -> None:
    city = value.replace("TAG", CLOSING[form])
    written = TOOL_FORMATS[form].write_calls([Call("get_weather", {"city": city, "days": 3}), Call("now", {})])
    (first, second) = answer_of(parse(written, form, FUNCTIONS)).tool_calls
    assert (json.loads(first.arguments), second.name) == ({"city": city, "days": 3}, "now")
    assert fits(_grammar(form, FUNCTIONS["get_weather"] or {}), written)
    assert_cuts_change_nothing(written, form, FUNCTIONS)


def test_value_ends_with_its_closing_tag_at_the_end_of_the_answer(form: str) -> None:
    text = UP_TO_VALUE[form].format(f"a {CLOSING[form]} b") + CLOSING[form]
    for end in ("", "\n", "\n<", "\n</"):
        assert parse(text + end, form, FUNCTIONS) == cut_call(0, "get_weather", f'{{"city": "a {CLOSING[form]} b"')


def test_no_text_of_the_grammar_has_the_end_of_a_value_within(form: str) -> None:
    built = _grammar(form, {"properties": {"city": {"type": "string"}}, "required": ["city"]})
    tag, end = CLOSING[form], REST[form].removeprefix("\n").removeprefix(CLOSING[form])
    assert fits(built, _one(form, f"a{tag}b"))
    for value in (f"a{tag}{end}", f"{tag}\n{end}b", f"a {tag} {end.strip()} b"):
        assert not fits(built, _one(form, value)), value


@pytest.mark.parametrize("end", ["", "\n</tool_call>"])
def test_qwen_may_leave_out_the_first_tag(end: str) -> None:
    text = CALLS["qwen3_coder"].partition("\n")[2].partition("\n</tool_call>")[0]
    assert parse(f"Hm {text}{end}", "qwen3_coder", FUNCTIONS) == [Content("Hm"), *call(0, "get_weather", ARGUMENTS)]


def test_cuts_change_nothing(form: str) -> None:
    assert_cuts_change_nothing(f"Hm\n{CALLS[form]} x", form, FUNCTIONS)
    short = _one(form, "<").replace("get_weather", "now").replace("city", "a")
    assert_cuts_change_nothing(f"a{short}", form, FUNCTIONS, pairs=True)


TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "</" not in text)


@pytest.mark.parametrize("form", TAGGED)
@settings(max_examples=25)
@given(city=TEXTS, days=st.integers(), more=st.lists(st.none() | st.booleans() | st.text(), max_size=3))
def test_written_calls_are_parsed_back(form: str, city: str, days: int, more: list[Any]) -> None:
    if "</" in json.dumps(more):
        return
    calls = [Call("get_weather", {"city": city, "days": days, "more": more}), Call("now", {})]
    answer = answer_of(parse(TOOL_FORMATS[form].write_calls(calls), form, FUNCTIONS))
    assert answer.blocks == answer.tool_calls
    assert [json.loads(made.arguments) for made in answer.tool_calls] == [call.arguments for call in calls]


# Grammars


def _grammar(form: str, schema: Mapping[str, Any], *, is_promised: bool = True, beside_text: bool = False) -> str:
    tools = [Tool("get_weather", schema, is_promised=is_promised), Tool("now")]
    build = grammar.text_and_calls if beside_text else grammar.tool_calls
    built = build(TOOL_FORMATS[form], tools, parallel=True, opaque_tokens={})
    validate(built, param="tools")
    return built


@pytest.mark.parametrize("beside_text", [False, True])
def test_calls_written_by_the_template_fit_the_grammar(form: str, beside_text: bool) -> None:
    built, text = _grammar(form, FUNCTIONS["get_weather"] or {}, beside_text=beside_text), CALLS[form]
    wrong_value = text.replace(">3<", ">x<").replace("\n3\n", "\nx\n")
    wrong = [text.replace("days", "Days"), text.replace("now", "later"), wrong_value, text.replace("city", "more", 1)]
    assert_answers(built, [text], wrong)
    assert fits(built, f"Hm.\n{text}") is beside_text


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [({"enum": ["Oslo", 1]}, ["Oslo", "1"], ["Rome"]), ({"type": "integer", "minimum": 3}, ["4"], ["2"])],
    ids=["a list", "JSON"],
)
def test_values_are_bound(form: str, schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    built = _grammar(form, {"properties": {"city": schema}, "required": ["city"]})
    assert_answers(built, (_one(form, value) for value in good), (_one(form, value) for value in bad))


def test_a_required_argument_is_there_and_others_may_be(form: str) -> None:
    built = _grammar(form, {"properties": {"city": {"type": "string"}, "x": {}}, "required": ["city"]})
    both, other, none = (
        TOOL_FORMATS[form].write_calls([Call("get_weather", arguments)])
        for arguments in ({"city": "a\n<b>", "x": "1"}, {"x": "1"}, {})
    )
    assert_answers(built, [_one(form, "Oslo"), both], [other, none])


@pytest.mark.parametrize("schema", [ANY_OBJECT, {"anyOf": [{"required": ["city"]}], "properties": {"city": {}}}])
def test_argument_names_are_free_without_a_list_of_properties(form: str, schema: Mapping[str, Any]) -> None:
    call = _one(form, "Oslo")
    assert_answers(_grammar(form, schema, is_promised=False), [call], [call.replace("get_weather", "unknown")])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"city": {"type": "string", "pattern": "^O"}}}, '"city" is a text with more'),
        # of a custom tool
        ({"properties": {"city": {"type": "string", LARK: 'start: "Oslo"'}}}, '"city" is a text with more'),
        ({"anyOf": [{}], "properties": {"city": {}}}, "its parameters are not a list of properties"),
        ({"properties": {"city": {}, "a>b": {}}, "required": ["city"]}, "with plain names"),
    ],
)
def test_strict_schema_that_cannot_be_enforced_is_refused(form: str, schema: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidField, match=says):
        _grammar(form, schema)
    assert fits(_grammar(form, schema, is_promised=False), _one(form, "Rome"))


PARTS = st.sampled_from(
    [
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": ["boolean", "null"]},
        {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
        {"enum": ["Oslo", 'New\n"York"', 1, None, [2]]},
        {"type": "string", "const": "5"},
    ]
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(TAGGED),
    st.dictionaries(st.sampled_from(["a", "from", "é", "x-y"]), PARTS),
    st.sets(st.sampled_from(["a", "from"])),
    st.integers(0, 1000),
)
def test_drawn_calls_are_parsed_and_fit_the_schema(
    form: str, properties: dict[str, Any], required: set[str], seed: int
) -> None:
    schema = {
        "type": "object",
        "properties": properties,
        "required": sorted(required & properties.keys()),
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    }
    answer = draw(_grammar(form, schema), seed)
    assert answer is not None
    parts = parse(answer, form, {"get_weather": schema, "now": None})
    for made in answer_of(parts).tool_calls:
        given = json.loads(made.arguments)
        if made.name == "get_weather":
            jsonschema.Draft202012Validator(schema).validate(given)
