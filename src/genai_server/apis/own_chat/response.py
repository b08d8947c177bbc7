"""Responses of the server's own chat endpoints: /v1/chat and, as events, /v1/chat/stream."""

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallArguments,
    ToolCallStart,
    WholeAnswer,
)
from genai_server.apis.chat_completions.response import logprobs, message
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.usage import finish_reason
from genai_server.messages.generation_request import FinishReason


class ChatBuilder:
    """Builds the response or the events of one request."""

    def __init__(self, id: str, *, has_logprobs: bool = False) -> None:
        self._id = id
        self._has_logprobs = has_logprobs

    def complete(self, answer: WholeAnswer, reason: FinishReason, metrics: JsonObject) -> JsonObject:
        """The complete answer."""
        fields = message(answer)
        return {
            "id": self._id,
            "content": answer.content,
            "finish_reason": finish_reason(reason, calls_tools=bool(answer.tool_calls)),
            # The client receives all tokens at once, so there is no time to the first token.
            "metrics": {**metrics, "ttft": None},
            **{name: fields[name] for name in ("reasoning_content", "tool_calls") if name in fields},
            **self._logprobs(answer.tokens),
        }

    def part(self, parts: list[Part], tokens: list[ScoredToken]) -> JsonObject:
        """The event with the next part of the answer: content in `token`, everything else in fields of its own."""
        event: JsonObject = {"token": ""}
        for part in parts:
            match part:
                case Content(text):
                    event["token"] += text
                case Reasoning(text):
                    event["reasoning"] = event.get("reasoning", "") + text
                case ToolCallStart(index, id, name):
                    event.setdefault("tool_calls", []).append({"index": index, "id": id, "name": name})
                case ToolCallArguments(index, fragment):
                    event.setdefault("tool_calls", []).append({"index": index, "arguments": fragment})
        return {**event, **self._logprobs(tokens)}

    def last(self, reason: FinishReason, metrics: JsonObject, *, calls_tools: bool) -> JsonObject:
        """The event with the finish reason."""
        ended = finish_reason(reason, calls_tools=calls_tools)
        return {"done": True, "token": "[DONE]", "id": self._id, "finish_reason": ended, "metrics": metrics}

    def _logprobs(self, tokens: list[ScoredToken]) -> JsonObject:
        return {"logprobs": logprobs(tokens)} if self._has_logprobs else {}
