"""The constraints on answers; test_structured.py shows that answers fit them."""

from collections.abc import Collection
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.generation.output_spec import OutputSpec, chat_output_spec, structure
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.parameters.sampling_parameters import StructuredOutputs
from genai_server.grammar_checker.compiler import complaint
from genai_server.text.codec import TextCodec, load_text_codec
from tests.running_server import DEMO
from tests.text.guided import fits

pytestmark = pytest.mark.anyio

DEEP: dict[str, Any] = {}
for _ in range(2_000):
    DEEP = {"items": DEEP}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return load_text_codec(DEMO, "cpu")


def _spec(codec: TextCodec, *, best_effort: bool = True, loose: Collection[str] = (), **fields: Any) -> OutputSpec:
    body = ChatParameters.model_validate({"messages": [{"role": "user", "content": "Hello!"}], **fields})
    return chat_output_spec(body, codec, [1], best_effort=best_effort, loose=loose)


def _tool(name: str, strict: bool | None = None, **schema: Any) -> dict[str, Any]:
    function = {"name": name, "parameters": {"type": "object", **schema}}
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


def _format(schema: dict[str, Any], *, strict: bool | None = None) -> dict[str, Any]:
    named = {"name": "x", "schema": schema} | ({} if strict is None else {"strict": strict})
    return {"type": "json_schema", "json_schema": named}


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _fits(found: OutputSpec, *answers: str) -> list[bool]:
    """Which answers have the form that a spec demands."""
    assert found.grammar is not None
    return [fits(found.grammar, answer) for answer in answers]


NUMBERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
}


def test_unconstrained_request_has_no_grammar(codec: TextCodec) -> None:
    assert structure(None) is None
    assert _spec(codec).constraint is None
    assert _spec(codec, response_format={"type": "text"}).constraint is None
    assert _spec(codec, tools=[_tool("now")], tool_choice="none").constraint is None


@pytest.mark.parametrize("strict", [None, True, False], ids=str)
def test_calls_next_to_text_follow_their_schema_unless_lax(codec: TextCodec, strict: bool | None) -> None:
    found = _spec(codec, tools=[_tool("f", strict=strict, properties={"a": {"items": {"type": "integer"}}})])
    taken = ["f is a function.", "I call it. " + _call("f", '{"a": [1]}')]
    refused = [_call("g", '{"a": [1]}'), _call("f", '{"a": [1}')]
    assert _fits(found, *taken, *refused) == [True, True, False, False]
    assert _fits(found, _call("f", '{"a": ["x"]}')) == [strict is False]


def test_forced_call_precedes_the_response_format(codec: TextCodec) -> None:
    found = _spec(codec, tools=[_tool("f")], tool_choice="required", response_format=_format({"type": "object"}))
    assert _fits(found, _call("f", "{}"), "{}") == [True, False]


def test_lax_schema_is_followed_where_possible_and_reported(codec: TextCodec) -> None:
    found = _spec(codec, response_format=_format(NUMBERS))
    assert found.left_out == (("response_format.json_schema.schema", ": uniqueItems"),)
    assert _fits(found, '{"a": [1, 1]}', '{"a": ["x"]}') == [True, False]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": _format(NUMBERS, strict=True)}, "response_format.json_schema.schema"),
        ({"response_format": _format(NUMBERS), "best_effort": False}, "response_format.json_schema.schema"),
        ({"tools": [_tool("f", strict=True, **NUMBERS)]}, "tools"),
        ({"tools": [_tool("f", **NUMBERS)], "tool_choice": "required", "best_effort": False}, "tools"),
        ({"response_format": _format({"type": "strin"})}, "response_format.json_schema.schema"),
        ({"tools": [_tool("f", strict=True, items={"type": "strin"})]}, "tools"),
    ],
)
def test_strict_or_invalid_schema_is_refused(codec: TextCodec, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField, match=r"keyword uniqueItems|type must be one of .* given \"strin\"") as no:
        _spec(codec, **fields)
    assert no.value.param == param


async def _complain(grammar: str) -> str | None:
    """What the compiler in this process says."""
    return complaint(grammar)


async def _check(found: OutputSpec) -> frozenset[str]:
    assert found.constraint is not None
    return await found.constraint.check(_complain)


def test_a_tool_whose_parameters_are_no_schema_takes_anything(codec: TextCodec) -> None:
    found = _spec(codec, tools=[_tool("f", items={"type": "any"}), _tool("g", **NUMBERS)], tool_choice="required")
    assert found.left_out == (
        ("tools[0].parameters", ": the schema as a whole"),
        ("tools[1].parameters", ": uniqueItems"),
    )
    assert _fits(found, _call("f", '{"a": 1}'), _call("g", '{"a": ["x"]}')) == [True, False]


async def test_tool_with_an_uncompilable_schema_is_held_to_less(codec: TextCodec) -> None:
    twice: dict[str, Any] = {"patternProperties": {"^a": {"type": "integer"}, "^ab": {}}}
    tools = [_tool("f", **twice), _tool("g", **NUMBERS)]
    assert await _check(_spec(codec, tools=tools)) == {"f"}
    found = _spec(codec, tools=tools, loose={"f"})
    assert await _check(found) == frozenset()
    assert _fits(found, _call("f", '{"a": "x"}'), _call("g", '{"a": ["x"]}')) == [True, False]
    with pytest.raises(InvalidField, match='those of "f" are not'):
        await _check(_spec(codec, tools=[_tool("f", strict=True, **twice)]))


async def test_an_answer_keeps_the_type_of_an_uncompilable_schema(codec: TextCodec) -> None:
    response_format = _format({"type": "string", "pattern": "((("})
    loose = await _check(_spec(codec, response_format=response_format))
    found = _spec(codec, response_format=response_format, loose=loose)
    assert found.left_out == (("response_format.json_schema.schema", ": the schema as a whole"),)
    assert _fits(found, '"((("', "7") == [True, False]


@pytest.mark.parametrize("name", ["json", "regex", "choice", "grammar"])
def test_a_constraint_knows_its_field(name: str) -> None:
    given: dict[str, Any] = {"json": {}, "regex": "a", "choice": ["a"], "grammar": 'start: "a"'}
    found = structure(StructuredOutputs.model_validate({name: given[name]}))
    assert found is not None
    assert found.field == f"structured_outputs.{name}"
    refused = found.refused("why")
    assert (refused.param, refused.message) == (found.field, f"{found.field} {found.rule}: why")


def test_a_schema_that_is_nested_too_deeply_is_named() -> None:
    with pytest.raises(InvalidField, match="nested") as refused:
        structure(StructuredOutputs.model_construct(json_=DEEP, regex=None, choice=None, grammar=None))
    assert refused.value.param == "structured_outputs"
