"""Answers of the server's own chat endpoints."""

from typing import Any

import pytest

from genai_server.answer_parts import Content, ScoredToken
from genai_server.apis.own_chat.routes import ChatBuilder
from genai_server.generation.answers import Ending
from genai_server.messages.generation_request import FinishReason
from tests.answer_parts import PARTS, whole

METRICS = {"ttft": 0.5, "model": "m"}


def test_complete_answer_has_calls_and_reasoning_next_to_content() -> None:
    built = ChatBuilder("id1").complete(whole(PARTS), Ending(calls_tools=True), METRICS)
    assert (built["id"], built["content"], built["reasoning_content"]) == ("id1", "Hello", "so be it")
    assert [call["function"]["name"] for call in built["tool_calls"]] == ["add", "sub"]
    assert built["finish_reason"] == "tool_calls"
    assert built["metrics"] == {"ttft": None, "model": "m"}


@pytest.mark.parametrize("reason", FinishReason)
def test_plain_text_ends_for_its_true_reason(reason: FinishReason) -> None:
    built = ChatBuilder("id1").complete(whole([Content("x")]), Ending(reason), METRICS)
    assert set(built) == {"id", "content", "finish_reason", "metrics"}
    assert built["finish_reason"] == reason.value
    last = ChatBuilder("id1").last(Ending(reason), METRICS)
    assert last == {"done": True, "token": "[DONE]", "id": "id1", "finish_reason": reason.value, "metrics": METRICS}


@pytest.mark.parametrize("has_logprobs", [False, True])
def test_the_events_together_are_the_whole_answer(has_logprobs: bool) -> None:
    build = ChatBuilder("id1", has_logprobs=has_logprobs)
    events: list[dict[str, Any]] = [build.part([part], [ScoredToken(b"x", -0.5)]) for part in PARTS]
    assert "".join(event["token"] for event in events) == "Hello"
    assert "".join(event.get("reasoning", "") for event in events) == "so be it"
    calls = [call for event in events for call in event.get("tool_calls", [])]
    assert "".join(call.get("arguments", "") for call in calls if call["index"] == 0) == '{"a": 1}'
    assert all(("logprobs" in event) is has_logprobs for event in events)
