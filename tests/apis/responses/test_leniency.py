"""Fields that are removed from bodies of the Responses API, and fields that are left to be refused."""

from typing import Any

import pytest

from genai_server.apis.responses.leniency import LEFT_OUT

FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def test_namespace_is_replaced_by_its_functions_with_its_name() -> None:
    body = {"tools": [{"type": "namespace", "name": "math", "tools": [FUNCTION]}, FUNCTION]}
    assert LEFT_OUT.remove_from(body) == []
    assert body == {"tools": [{**FUNCTION, "namespace": "math"}, FUNCTION]}


def test_a_function_keeps_its_namespaces_description() -> None:
    functions: list[Any] = [{**FUNCTION, "description": "Adds."}, 5]
    body: Any = {"tools": [{"type": "namespace", "name": "math", "description": "Numbers.", "tools": functions}]}
    assert LEFT_OUT.remove_from(body) == []
    assert body["tools"] == [{**functions[0], "namespace": "math", "namespace_description": "Numbers."}, 5]


@pytest.mark.parametrize(
    "body",
    [
        {"unknown": 1},
        {"text": {"verbosity": "loud"}, "reasoning": {"summary": "auto"}},
        {"tools": [{"type": "custom", "name": "patch"}, {"type": "namespace", "name": "a"}, {"type": []}, 5]},
        {"background": True, "truncation": "auto", "conversation": "c"},
        {"input": "x", "tools": 5},
        [],
        None,
    ],
)
def test_all_else_stays(body: Any) -> None:
    before = repr(body)
    assert LEFT_OUT.remove_from(body) == []
    assert repr(body) == before
