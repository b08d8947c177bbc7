"""Finish reasons and token counts in OpenAI's words."""

from dataclasses import dataclass

from genai_server.generation import FinishReason
from genai_server.openai_api.schemas.base import JsonObject


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    # Drafted tokens that the answer has, and those that it does not have.
    accepted: int = 0
    rejected: int = 0

    def to_json(self) -> JsonObject:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }

    def to_response_json(self) -> JsonObject:
        """The usage object of OpenAI's Responses API. Cache writes are 0: they are not billed."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }


def openai_reason(reason: FinishReason, *, calls_tools: bool = False) -> JsonObject:
    """`finish_reason` of a choice, with the true reason beside it where OpenAI has no word for it."""
    if reason.is_interruption:  # the answer is cut, as with "length"
        return {"finish_reason": "length", "genai_finish_reason": reason.value}
    return {"finish_reason": finish_reason(reason, calls_tools=calls_tools)}


def finish_reason(reason: FinishReason, *, calls_tools: bool = False) -> str:
    """The true reason, in OpenAI's word where it has one."""
    return "tool_calls" if calls_tools and reason is FinishReason.STOP else reason.value
