"""OpenAI's chat completion objects, whole and in chunks
(https://platform.openai.com/docs/api-reference/chat).
"""

from collections.abc import Sequence
from typing import Any

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallArguments,
    ToolCallStart,
    WholeAnswer,
)
from genai_server.generation import FinishReason
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.text_chunk import TextChunks
from genai_server.openai_api.usage import Usage, openai_reason

# Names of the reasoning: DeepSeek's and llama.cpp's, then vLLM's and OpenRouter's.
REASONING = ("reasoning_content", "reasoning")


class ChatCompletionBuilder:
    """Builds the objects of one request.

    With `calls_functions` a call has the form from before tools: a message has one `function_call`, without an id.
    """

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        *,
        fingerprint: str | None = None,
        has_usage: bool = False,
        has_logprobs: bool = False,
        calls_functions: bool = False,
    ) -> None:
        self._common = {"id": id, "created": created, "model": model, "system_fingerprint": fingerprint}
        # Whether each chunk has a `usage`, which is null unless one is given.
        self._has_usage = has_usage
        self._has_logprobs = has_logprobs
        self._calls_functions = calls_functions
        self._texts = TextChunks(lambda index: self.part(index, [Content("")], []), "content")

    def complete(self, choices: Sequence[Any], usage: Usage) -> JsonObject:
        """The object with all answers, each as `choice` builds it."""
        return {**self._common, "object": "chat.completion", "choices": choices, "usage": usage.to_json()}

    def first(self, num_answers: int) -> list[JsonObject]:
        """The first chunk of each answer, which has the role only."""
        return [self._chunk(index, {"role": "assistant", "content": ""}, []) for index in range(num_answers)]

    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        """The chunk with more of one answer, and the log probabilities of its tokens."""
        delta: JsonObject = {}
        for part in parts:
            _add(delta, part)
        return self._chunk(index, self._with_calls(delta), tokens, usage=usage)

    def text(self, index: int, text: str) -> bytes:
        """The chunk with more content of one answer and nothing else, as JSON."""
        return self._texts.encode(index, text)

    def last(self, index: int, reason: FinishReason, usage: Usage | None = None, *, calls_tools: bool) -> JsonObject:
        """The chunk with the finish reason of one answer."""
        return self._chunk(index, {}, [], reason=self._reason(reason, calls_tools=calls_tools), usage=usage)

    def usage(self, usage: Usage) -> JsonObject:
        """The chunk with the usage, after all others."""
        return {**self._common, "object": "chat.completion.chunk", "choices": [], "usage": usage.to_json()}

    def choice(self, index: int, answer: WholeAnswer, reason: FinishReason) -> JsonObject:
        """One whole answer."""
        return {
            "index": index,
            "message": self._with_calls(message(answer)),
            "logprobs": self._logprobs(answer.tokens, always=True),
            **self._reason(reason, calls_tools=bool(answer.tool_calls)),
        }

    def _chunk(
        self,
        index: int,
        delta: JsonObject,
        tokens: list[ScoredToken],
        *,
        reason: JsonObject | None = None,
        usage: Usage | None = None,
    ) -> JsonObject:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(tokens),
            **(reason or {"finish_reason": None}),
        }
        chunk: JsonObject = {**self._common, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": usage.to_json() if usage else None} if self._has_usage else chunk

    def _with_calls(self, found: JsonObject) -> JsonObject:
        """A message or delta, with its call in the form that the client knows."""
        if self._calls_functions and (calls := found.pop("tool_calls", None)):
            found["function_call"] = calls[0]["function"]
        return found

    def _reason(self, reason: FinishReason, *, calls_tools: bool) -> JsonObject:
        if calls_tools and self._calls_functions and reason is FinishReason.STOP:
            return {"finish_reason": "function_call"}
        return openai_reason(reason, calls_tools=calls_tools)

    def _logprobs(self, tokens: list[ScoredToken], *, always: bool = False) -> JsonObject | None:
        if not self._has_logprobs or not (tokens or always):
            return None
        return logprobs(tokens)


def message(answer: WholeAnswer) -> JsonObject:
    """The assistant's message."""
    found: JsonObject = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        found |= dict.fromkeys(REASONING, answer.reasoning)
    if answer.tool_calls:
        found["content"] = answer.content or None
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return found


def logprobs(tokens: list[ScoredToken]) -> JsonObject:
    """`logprobs` of a choice."""
    content = [{**_scored(token), "top_logprobs": [_scored(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _scored(token: ScoredToken) -> JsonObject:
    return {"token": token.text, "logprob": token.logprob, "bytes": tuple(token.data)}


def _add(delta: JsonObject, part: Part) -> None:
    match part:
        case Content(text):
            delta["content"] = delta.get("content", "") + text
        case Reasoning(text):
            delta |= dict.fromkeys(REASONING, delta.get(REASONING[0], "") + text)
        case ToolCallStart(index, id, name):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            delta.setdefault("tool_calls", []).append(call)
        case ToolCallArguments(index, fragment):
            calls = delta.setdefault("tool_calls", [])
            if calls and calls[-1]["index"] == index:
                calls[-1]["function"]["arguments"] += fragment
            else:
                calls.append({"index": index, "function": {"arguments": fragment}})
