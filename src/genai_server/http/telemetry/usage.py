"""Token counts of a response, in OpenAI's formats."""

from dataclasses import dataclass, fields

from genai_server.http.json_response import JsonObject


@dataclass(frozen=True)
class Usage:
    """The token counts of a response."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    # Drafted tokens that became part of the answer, and those that did not.
    accepted: int = 0
    rejected: int = 0
    # Tokens of the prompt that stand for images, and for audio.
    images: int = 0
    audio: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """The sum of each token count of the two."""
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> JsonObject:
        """The object `usage` of OpenAI's chat completions."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {
                "audio_tokens": self.audio,
                "cached_tokens": self.cached,
                "image_tokens": self.images,
            },
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }

    def to_response_json(self) -> JsonObject:
        """The object `usage` of OpenAI's Responses API. `cache_write_tokens` is always 0, because cache writes are not
        billed.
        """
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }
