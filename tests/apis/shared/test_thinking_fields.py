"""Other servers' names for how much a model thinks."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from genai_server.apis.chat_completions import ChatCompletionRequest
from genai_server.http.leniency import IGNORED_HEADER
from tests.running_server import RunningServer

MESSAGES = [{"role": "user", "content": "say hi"}]


def _effort(**fields: Any) -> tuple[str | None, dict[str, str]]:
    body = ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})
    # FastAPI validates a body again.
    again = TypeAdapter(ChatCompletionRequest).validate_python(body)
    assert again.reasoning_effort == body.reasoning_effort
    return again.reasoning_effort, again.thinking_names


@pytest.mark.parametrize(
    ("fields", "effort", "name"),
    [
        ({"reasoning": {"effort": "high"}}, "high", "reasoning.effort"),
        ({"reasoning": {"enabled": True}}, "medium", "reasoning.enabled"),
        ({"reasoning": {"enabled": False, "exclude": False, "summary": "auto"}}, "none", "reasoning.enabled"),
        ({"thinking": {"type": "disabled"}}, "none", "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "medium", "thinking.type"),
        ({"enable_thinking": False}, "none", "enable_thinking"),
        ({"enable_thinking": True}, "medium", "enable_thinking"),
        ({"enable_thinking": True, "reasoning": {"effort": "low"}}, "low", "reasoning.effort"),
        ({"enable_thinking": False, "thinking": {"type": "disabled"}}, "none", "thinking.type"),
    ],
    ids=repr,
)
def test_other_names_are_an_effort(fields: dict[str, Any], effort: str, name: str) -> None:
    assert _effort(**fields) == (effort, {"reasoning_effort": name})


@pytest.mark.parametrize(
    ("fields", "budget", "name"),
    [
        ({"thinking_token_budget": 5}, 5, None),
        ({"thinking_budget_tokens": 5}, 5, "thinking_budget_tokens"),
        ({"reasoning_budget_tokens": -1}, -1, "reasoning_budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, 2000, "thinking.budget_tokens"),
        ({"reasoning": {"max_tokens": 0}}, 0, "reasoning.max_tokens"),
        ({"thinking_token_budget": 0, "reasoning_budget_tokens": 0}, 0, None),
        ({"reasoning_budget_tokens": 7, "reasoning": {"max_tokens": 7}}, 7, "reasoning_budget_tokens"),
        ({"thinking_token_budget": None, "thinking_budget_tokens": None}, None, None),
    ],
    ids=repr,
)
def test_other_names_are_a_budget(fields: dict[str, Any], budget: int | None, name: str | None) -> None:
    body = ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})
    again = TypeAdapter(ChatCompletionRequest).validate_python(body)
    assert again.thinking_token_budget == budget
    assert again.thinking_names.get("thinking_token_budget") == name


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": None, "thinking": None, "reasoning": None},
        {"thinking": {"type": "adaptive"}},
        {"reasoning": {"effort": None, "enabled": None}},
    ],
    ids=repr,
)
def test_fields_that_leave_it_to_the_template_are_no_effort(fields: dict[str, Any]) -> None:
    assert _effort(**fields) == (None, {})


def test_a_given_effort_keeps_its_name() -> None:
    fields = {"reasoning": {"effort": "high"}, "thinking": {"type": "enabled"}}
    assert _effort(reasoning_effort="high", **fields) == ("high", {})


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"enable_thinking": True}, "enable_thinking"),
        ({"thinking": {"type": "enabled"}}, "thinking.type"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning_budget_tokens": 5}, "reasoning_budget_tokens"),
        ({"reasoning_budget_message": "So."}, "reasoning_budget_message"),
    ],
    ids=repr,
)
def test_a_model_that_does_not_think_names_the_clients_field(
    demo: RunningServer, fields: dict[str, Any], name: str
) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 1, **fields}
    response = demo.client.post("/v1/chat/completions", json=asked)
    assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, name)
    refused = demo.client.post("/v1/chat", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_thinking_that_is_off_is_no_effort_to_leave_out(demo: RunningServer) -> None:
    for fields in ({"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"thinking_token_budget": 0}):
        response = demo.client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1, **fields})
        assert (response.status_code, IGNORED_HEADER in response.headers) == (200, False)
