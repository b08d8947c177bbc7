"""Anthropic's message, complete and as stream events
(https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/docs/build-with-claude/streaming).
"""

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallCut,
    ToolCallStart,
    WholeAnswer,
)
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.usage import Usage
from genai_server.messages.generation_request import FinishReason

# Clients drop thinking without a signature. Signatures are not verified: clients may edit the thinking they return.
_SIGNATURE = "unsigned"


class MessageBuilder:
    """Builds the message of one request, or its stream events in the order `first`, `parts`, `last`."""

    def __init__(self, id: str, model: str, max_tokens: int, *, shows_thinking: bool = True) -> None:
        self._message = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._max_tokens = max_tokens
        # Whether thinking blocks contain their text.
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: str | None = None
        # Truncated calls do not count.
        self._num_calls = 0

    def complete(
        self, answer: WholeAnswer, reason: FinishReason, usage: Usage, *, stop_string: str | None = None
    ) -> JsonObject:
        """The complete message. `stop_string` is the stop string that ended it, if any."""
        self._num_calls = len(answer.tool_calls)
        return {
            **self._message,
            "content": self._blocks(answer),
            **self._end(reason, usage, stop_string),
            "usage": _usage(usage),
        }

    def first(self, usage: Usage) -> JsonObject:
        """The first event."""
        end = {"stop_reason": None, "stop_sequence": None}
        return {"type": "message_start", "message": {**self._message, "content": [], **end, "usage": _usage(usage)}}

    def parts(self, parts: list[Part]) -> list[JsonObject]:
        """The events for the next parts of the answer."""
        events: list[JsonObject] = []
        for part in parts:
            match part:
                case Content(text):
                    events += self._within({"type": "text", "text": ""})
                    events.append(self._delta({"type": "text_delta", "text": text}))
                case Reasoning(text):
                    events += self._within({"type": "thinking", "thinking": "", "signature": ""})
                    if self._shows_thinking:
                        events.append(self._delta({"type": "thinking_delta", "thinking": text}))
                case ToolCallStart(_, id, name):
                    self._num_calls += 1
                    events += self._close()
                    events += self._within({"type": "tool_use", "id": _tool_use_id(id), "name": name, "input": {}})
                case ToolCallArguments(_, fragment):
                    events.append(self._delta({"type": "input_json_delta", "partial_json": fragment}))
                case ToolCallCut():
                    self._num_calls -= 1
        return events

    def last(self, reason: FinishReason, usage: Usage, *, stop_string: str | None = None) -> list[JsonObject]:
        """The last events."""
        end = {"type": "message_delta", "delta": self._end(reason, usage, stop_string), "usage": _usage(usage)}
        return [*self._close(), end, {"type": "message_stop"}]

    def _blocks(self, answer: WholeAnswer) -> list[JsonObject]:
        blocks: list[JsonObject] = []
        if answer.reasoning:
            thinking = answer.reasoning if self._shows_thinking else ""
            blocks.append({"type": "thinking", "thinking": thinking, "signature": _SIGNATURE})
        if answer.content:
            blocks.append({"type": "text", "text": answer.content})
        for call in answer.tool_calls:
            called = {"name": call.name, "input": call.given}
            blocks.append({"type": "tool_use", "id": _tool_use_id(call.id), **called})
        return blocks

    def _within(self, block: JsonObject) -> list[JsonObject]:
        """The events that open a block of this type; empty if it is already open."""
        if self._open == block["type"]:
            return []
        events = self._close()
        self._index += 1
        self._open = block["type"]
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[JsonObject]:
        if self._open is None:
            return []
        signs = self._open == "thinking"
        self._open = None
        signed = [self._delta({"type": "signature_delta", "signature": _SIGNATURE})] if signs else []
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    def _end(self, reason: FinishReason, usage: Usage, stop_string: str | None) -> JsonObject:
        """The stop reason, plus `genai_finish_reason` where Anthropic has no matching value."""
        if stop_string is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_string}
        match reason:
            case FinishReason.STOP:
                found = "tool_use" if self._num_calls else "end_turn"
            case FinishReason.LENGTH if usage.completion < self._max_tokens:
                found = "model_context_window_exceeded"
            case _:
                found = "max_tokens"
        end: JsonObject = {"stop_reason": found, "stop_sequence": None}
        return {**end, "genai_finish_reason": reason.value} if reason.is_interruption else end


def _tool_use_id(id: str) -> str:
    """A call's id in Anthropic's format, unless the model's template requires another one, as Mistral's does."""
    return f"toolu_{id.removeprefix('call_')}" if id.startswith("call_") else id


def _usage(usage: Usage) -> JsonObject:
    """Anthropic's usage, where `input_tokens` excludes the cached ones."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
