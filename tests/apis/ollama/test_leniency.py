"""Fields that are removed from bodies of Ollama's API, and fields that are left to be refused."""

from copy import deepcopy
from typing import Any

import pytest

from genai_server.apis.ollama.leniency import OPTIONS_WITHOUT_EFFECT, leave_out
from genai_server.apis.ollama.schemas import Options


@pytest.mark.parametrize(
    ("given", "left", "names"),
    [
        ({"options": {"num_ctx": 4096, "top_k": 3}}, {"options": {"top_k": 3}}, ["options.num_ctx"]),
        ({"options": {"num_ctx": None}}, {"options": {}}, []),
        ({"truncate": True, "shift": True}, {}, ["truncate", "shift"]),
        ({"truncate": False}, {"truncate": False}, []),
        ({"tools": [{"items": {}, "function": {}}]}, {"tools": [{"function": {}}]}, ["tools[0].items"]),
        (
            {"messages": [{"images": ["AA=="]}], "images": ["AA=="]},
            {"messages": [{"images": ["AA=="]}], "images": ["AA=="]},
            [],
        ),
        ({"messages": [{"content": "a", "images": []}]}, {"messages": [{"content": "a", "images": []}]}, []),
    ],
    ids=["option", "null", "cuts", "no cut", "items", "images", "no images"],
)
def test_ignored_fields_are_removed_and_named(given: dict[str, Any], left: dict[str, Any], names: list[str]) -> None:
    body = deepcopy(given)
    assert (leave_out(body), body) == (names, left)


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {"options": 1}, {"messages": 1}, {"messages": [1]}, {"images": 1}, {"prompt": 1, "images": [1]}],
)
def test_a_body_of_another_form_stays_as_it_is(body: Any) -> None:
    given = deepcopy(body)
    assert (leave_out(body), body) == ([], given)


def test_no_option_is_both_honoured_and_left_out() -> None:
    assert not set(Options.model_fields) & set(OPTIONS_WITHOUT_EFFECT)
