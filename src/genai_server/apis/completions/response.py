"""OpenAI's text completion objects, complete and in chunks
(https://platform.openai.com/docs/api-reference/completions).
"""

from genai_server.answer_parts import Part, ScoredToken, WholeAnswer
from genai_server.apis.chat_completions.choices import ChoicesBuilder
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.usage import Usage, openai_reason
from genai_server.messages.generation_request import FinishReason


class CompletionBuilder(ChoicesBuilder):
    """Builds the objects of a text completion."""

    complete_object = chunk_object = "text_completion"
    text_key = "text"

    def choice(self, index: int, answer: WholeAnswer, reason: FinishReason | None) -> JsonObject:
        """One answer or the next part of it; `reason` is None until it has ended."""
        ended = openai_reason(reason) if reason else {"finish_reason": None}
        return {"index": index, "text": answer.content, "logprobs": self._logprobs(answer.tokens), **ended}

    def first(self, num_answers: int) -> list[JsonObject]:
        return []

    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        more = WholeAnswer(tokens=tokens)
        for part in parts:
            more.add(part)
        return self._chunk(self.choice(index, more, None), usage)

    def last(
        self, index: int, reason: FinishReason, usage: Usage | None = None, *, calls_tools: bool = False
    ) -> JsonObject:
        return self._chunk(self.choice(index, WholeAnswer(), reason), usage)

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
