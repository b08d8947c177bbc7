"""Other servers' names for how much a model thinks."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from genai_server.apis.chat_completions import ChatCompletionRequest
from genai_server.http.leniency import IGNORED_HEADER
from tests.running_server import RunningServer, refusal

MESSAGES = [{"role": "user", "content": "say hi"}]


def _body(**fields: Any) -> ChatCompletionRequest:
    body = ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})
    # FastAPI validates a body again.
    again = TypeAdapter(ChatCompletionRequest).validate_python(body)
    assert again.reasoning_effort == body.reasoning_effort
    return again


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
        # A given effort keeps its name.
        ({"reasoning_effort": "high", "reasoning": {"effort": "high"}, "thinking": {"type": "enabled"}}, "high", None),
        # These leave it to the template.
        ({"enable_thinking": None, "thinking": None, "reasoning": None}, None, None),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({"reasoning": {"effort": None, "enabled": None}}, None, None),
    ],
    ids=repr,
)
def test_other_names_are_an_effort(fields: dict[str, Any], effort: str | None, name: str | None) -> None:
    body = _body(**fields)
    assert (body.reasoning_effort, body.thinking_names) == (effort, {"reasoning_effort": name} if name else {})


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
    body = _body(**fields)
    assert (body.thinking_token_budget, body.thinking_names.get("thinking_token_budget")) == (budget, name)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"enable_thinking": True}, "enable_thinking"),
        ({"thinking": {"type": "enabled"}}, "thinking.type"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning_budget_tokens": 5}, "reasoning_budget_tokens"),
        ({"reasoning_budget_message": "So."}, "reasoning_budget_message"),
        # Thinking that is off is no effort to leave out.
        ({"enable_thinking": False}, None),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking_token_budget": 0}, None),
    ],
    ids=repr,
)
def test_a_model_that_does_not_think_names_the_clients_field(
    demo: RunningServer, fields: dict[str, Any], name: str | None
) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 1, **fields}
    response = demo.client.post("/v1/chat/completions", json=asked)
    assert (response.status_code, response.headers.get(IGNORED_HEADER)) == (200, name)
    if name:
        assert refusal(demo.client.post("/v1/chat", json=asked))[::2] == (400, name)
