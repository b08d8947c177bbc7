"""Fields that are removed from bodies of the Responses API, and fields that are left to be refused."""

from copy import deepcopy
from typing import Any

import pytest

from genai_server.apis.responses.leniency import LEFT_OUT

FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object"}}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
FILE = {"type": "input_file", "file_data": "AA=="}
NO_FILE = {"type": "input_text", "text": "[file left out: this model reads text only]"}


@pytest.mark.parametrize(
    ("given", "left", "names"),
    [
        ({"client_metadata": {"a": "b"}}, {}, ["client_metadata"]),
        ({"text": {"verbosity": "low"}}, {"text": {}}, ["text.verbosity"]),
        (
            {"tools": [{"type": "web_search"}, FUNCTION, {"type": "image_generation"}]},
            {"tools": [FUNCTION]},
            ["tools[0] (web_search)", "tools[2] (image_generation)"],
        ),
        (
            {"input": [{"role": "user", "content": [FILE, IMAGE]}]},
            {"input": [{"role": "user", "content": [NO_FILE, IMAGE]}]},
            ["input[0].content[0] (file)"],
        ),
        (
            {"input": [{"type": "function_call_output", "output": [FILE, IMAGE]}]},
            {"input": [{"type": "function_call_output", "output": [NO_FILE, IMAGE]}]},
            ["input[0].output[0] (file)"],
        ),
    ],
    ids=["field", "value", "server tools", "file", "file of an output"],
)
def test_ignored_fields_are_removed_and_named(given: dict[str, Any], left: dict[str, Any], names: list[str]) -> None:
    body = deepcopy(given)
    assert (LEFT_OUT.remove_from(body), body) == (names, left)


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
