"""The tokens of a batch's results, as their responses count them."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from genai_server.apis.shared.base import JsonObject


class _Usage(msgspec.Struct):
    """The tokens of a response, in the words of any endpoint."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: dict[str, int | None] | None = None
    output_tokens_details: dict[str, int | None] | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body | None = None


class _Line(msgspec.Struct):
    response: _Response | None = None


@dataclass
class ResultTokens:
    """Tokens of all results."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def add(self, line: bytes) -> None:
        """Add those of a result, if it has any."""
        try:
            response = msgspec.json.decode(line, type=_Line).response
        except msgspec.DecodeError:
            return
        if response is None or response.body is None or (usage := response.body.usage) is None:
            return
        self.prompt += usage.prompt_tokens + usage.input_tokens
        self.output += usage.completion_tokens + usage.output_tokens
        self.cached += _part(usage.prompt_tokens_details or usage.input_tokens_details, "cached_tokens")
        self.reasoning += _part(usage.completion_tokens_details or usage.output_tokens_details, "reasoning_tokens")

    def to_json(self) -> JsonObject:
        """The sums in OpenAI's format."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.output,
        }


def _part(details: Mapping[str, int | None] | None, name: str) -> int:
    return (details or {}).get(name) or 0
