"""Why an answer ended and what it took, in OpenAI's words."""

import pytest

from genai_server.generation import FinishReason
from genai_server.openai_api.usage import Usage, openai_reason


@pytest.mark.parametrize("reason", ["terminated", "timeout", "cancelled"])
def test_an_answer_that_was_ended_from_outside_is_cut_in_openais_words_and_true_in_ours(reason: str) -> None:
    assert openai_reason(FinishReason(reason)) == {"finish_reason": "length", "genai_finish_reason": reason}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_openais_own_reasons_stand_alone(reason: FinishReason) -> None:
    assert openai_reason(reason) == {"finish_reason": reason.value}


def test_an_answer_that_calls_tools_ends_for_them_unless_it_was_cut() -> None:
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
