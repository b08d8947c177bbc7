"""Finish reasons and usage in OpenAI's terms."""

import pytest

from genai_server.apis.shared.usage import Usage, openai_reason
from genai_server.messages.generation_request import FinishReason


@pytest.mark.parametrize("reason", ["terminated", "timeout", "cancelled"])
def test_interrupted_answer_is_a_length_with_its_own_reason(reason: str) -> None:
    assert openai_reason(FinishReason(reason)) == {"finish_reason": "length", "genai_finish_reason": reason}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_openais_own_reasons_stand_alone(reason: FinishReason) -> None:
    assert openai_reason(reason) == {"finish_reason": reason.value}


def test_answer_with_calls_ends_with_tool_calls_unless_cut() -> None:
    assert openai_reason(FinishReason.STOP, calls_tools=True) == {"finish_reason": "tool_calls"}
    assert openai_reason(FinishReason.LENGTH, calls_tools=True) == {"finish_reason": "length"}


def test_usage_adds_up() -> None:
    assert Usage(3, 4, 2, 1, accepted=3, rejected=5).to_json() == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 1,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 5,
        },
    }
