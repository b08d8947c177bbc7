"""The answers of the server's own chat endpoints: /v1/chat in one piece, /v1/chat/stream as events."""

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
from genai_server.openai_api.chat_completion import logprobs, message
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.usage import finish_reason


class ChatBuilder:
    """Builds the objects of one request."""

    def __init__(self, id: str, *, has_logprobs: bool = False) -> None:
        self._id = id
        self._has_logprobs = has_logprobs

    def complete(self, answer: WholeAnswer, reason: FinishReason, metrics: JsonObject) -> JsonObject:
        """The whole answer."""
        told = message(answer)
        return {
            "id": self._id,
            "content": answer.content,
            "finish_reason": finish_reason(reason, calls_tools=bool(answer.tool_calls)),
            # The client receives all tokens at once, so the time to the first has no meaning.
            "metrics": {**metrics, "ttft": None},
            **{name: told[name] for name in ("reasoning_content", "tool_calls") if name in told},
            **self._logprobs(answer.tokens),
        }

    def part(self, parts: list[Part], tokens: list[ScoredToken]) -> JsonObject:
        """The event with more of the answer. `token` is more of the content; all else stands beside it."""
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
        told = finish_reason(reason, calls_tools=calls_tools)
        return {"done": True, "token": "[DONE]", "id": self._id, "finish_reason": told, "metrics": metrics}

    def _logprobs(self, tokens: list[ScoredToken]) -> JsonObject:
        return {"logprobs": logprobs(tokens)} if self._has_logprobs else {}
