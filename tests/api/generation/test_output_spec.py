"""What answers must fit; that they do is shown in test_structured.py."""

from typing import Any

import pytest

from genai_server.api.generation.output_spec import Constraint, chat_constraint, structure
from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.chat import ChatParameters
from genai_server.openai_api.schemas.sampling import StructuredOutputs
from genai_server.text.codec import TextCodec, load_text_codec
from tests.running_server import DEMO

DEEP: dict[str, Any] = {}
for _ in range(2_000):
    DEEP = {"items": DEEP}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return load_text_codec(DEMO, "cpu")


def _chat(codec: TextCodec, **fields: Any) -> Constraint | None:
    body = ChatParameters.model_validate({"messages": [{"role": "user", "content": "Hello!"}], **fields})
    return chat_constraint(body, body.tools or [], codec, starts_inside=False)


def test_what_asks_for_nothing_binds_nothing(codec: TextCodec) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    assert structure(None) is None
    assert _chat(codec) is None
    assert _chat(codec, tools=[tool], response_format={"type": "text"}) is None


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


def test_two_fields_that_both_bind_the_answer_are_refused(codec: TextCodec) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    with pytest.raises(InvalidField, match="tool_choice") as refused:
        _chat(codec, tools=[tool], tool_choice="required", structured_outputs={"regex": "a"})
    assert refused.value.param == "structured_outputs"
    with pytest.raises(InvalidField, match="give either response_format or structured_outputs"):
        _chat(codec, response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
