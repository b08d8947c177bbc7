"""The tree of errors and their codes."""

from typing import Any

import pytest

from genai_server import errors
from genai_server.errors import ALL_ERRORS, AsIs, GenaiServerError, InvalidField, PromptTooLong, rule_of


def test_all_errors_holds_each_error_of_the_module_once_with_a_code_of_its_own() -> None:
    defined = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, GenaiServerError)]
    assert sorted(ALL_ERRORS, key=str) == sorted(defined, key=str)
    assert len({error.code for error in ALL_ERRORS}) == len(ALL_ERRORS)


def test_quoted_client_text_can_be_encoded() -> None:
    error = errors.UnknownField("a\ud800", "is no field, ü is")
    assert (error.message, error.param) == (r"a\ud800 is no field, ü is", r"a\ud800")
    assert str(error) == error.message


def test_the_message_of_a_field_has_its_parts_in_order() -> None:
    error = InvalidField("top_k", "must be at most", limit=5, limited_by="GENAI_X", given="x" * 500)
    assert error.message.startswith('top_k must be at most 5 (GENAI_X); given "xxx')
    assert (error.limit, len(error.message)) == (5, 142)
    assert InvalidField("a", "cannot be combined with", other="b", given=AsIs("1 s")).message == (
        "a cannot be combined with b; given 1 s"
    )


def test_an_error_within_a_field_becomes_one_of_the_field() -> None:
    inner = PromptTooLong(None, "the schema has too many keys:", limit=3, given=4)
    error = inner.at("tools", "must have supported schemas")
    assert (type(error), error.param) == (PromptTooLong, "tools")
    assert error.message == "tools must have supported schemas: the schema has too many keys: 3; given 4"
    forbidden = errors.AdminForbidden("no key").at("keep_alive")
    assert (forbidden.message, forbidden.param) == ("keep_alive: no key", "keep_alive")


@pytest.mark.parametrize(
    ("finding", "rule"),
    [
        ({"type": "int_type", "msg": ""}, "must be an integer"),
        ({"type": "less_than_equal", "msg": "", "ctx": {"le": 5}}, "must be at most 5"),
        ({"type": "too_short", "msg": "", "ctx": {"min_length": 1}}, "must not be empty"),
        ({"type": "literal_error", "msg": "", "ctx": {"expected": "'a' or True"}}, 'must be "a" or true'),
        ({"type": "value_error", "msg": "Value error, must be even"}, "must be even"),
    ],
)
def test_rules_of_pydantic_have_words(finding: dict[str, Any], rule: str) -> None:
    assert rule_of(finding) == rule
