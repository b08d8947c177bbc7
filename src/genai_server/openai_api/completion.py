"""OpenAI's text completion objects, whole and in chunks
(https://platform.openai.com/docs/api-reference/completions).
"""

from collections.abc import Sequence
from typing import Any

from genai_server.answer_parts import Part, ScoredToken, WholeAnswer
from genai_server.generation import FinishReason
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.text_chunk import TextChunks
from genai_server.openai_api.usage import Usage, openai_reason


class CompletionBuilder:
    """Builds the objects of one request, each a `text_completion`."""

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        *,
        fingerprint: str | None = None,
        has_usage: bool = False,
        has_logprobs: bool = False,
    ) -> None:
        self._common = {
            "id": id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        # Whether each chunk has a `usage`, which is null unless one is given.
        self._has_usage = has_usage
        self._has_logprobs = has_logprobs
        self._texts = TextChunks(lambda index: self.part(index, [], []), "text")

    def complete(self, choices: Sequence[Any], usage: Usage) -> JsonObject:
        """The object with all answers, each as `choice` builds it."""
        return {**self._common, "choices": choices, "usage": usage.to_json()}

    def choice(self, index: int, answer: WholeAnswer, reason: FinishReason | None) -> JsonObject:
        """One answer, or more of it; without a reason it has not ended."""
        ended = openai_reason(reason) if reason else {"finish_reason": None}
        return {"index": index, "text": answer.content, "logprobs": self._logprobs(answer.tokens), **ended}

    def first(self, num_answers: int) -> list[JsonObject]:
        """The chunks before all others; there are none."""
        return []

    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        """The chunk with more of one answer, and the log probabilities of its tokens."""
        more = WholeAnswer(tokens=tokens)
        for part in parts:
            more.add(part)
        return self._chunk(self.choice(index, more, None), usage)

    def text(self, index: int, text: str) -> bytes:
        """The chunk with more text of one answer and nothing else, as JSON."""
        return self._texts.encode(index, text)

    def last(
        self, index: int, reason: FinishReason, usage: Usage | None = None, *, calls_tools: bool = False
    ) -> JsonObject:
        """The chunk with the finish reason of one answer."""
        return self._chunk(self.choice(index, WholeAnswer(), reason), usage)

    def usage(self, usage: Usage) -> JsonObject:
        """The chunk with the usage, after all others."""
        return {**self._common, "choices": [], "usage": usage.to_json()}

    def _chunk(self, choice: JsonObject, usage: Usage | None) -> JsonObject:
        chunk = {**self._common, "choices": [choice]}
        return {**chunk, "usage": usage.to_json() if usage else None} if self._has_usage else chunk

    def _logprobs(self, tokens: list[ScoredToken]) -> JsonObject | None:
        if not self._has_logprobs:
            return None
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                None if token.logprob is None else {other.text: other.logprob for other in reversed(token.top)}
                for token in tokens
            ],
            "text_offset": [token.offset for token in tokens],
        }
