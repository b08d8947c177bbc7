"""Ollama's error format, and its response objects, complete and as the lines of a stream
(https://docs.ollama.com/api/chat).
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from genai_server.answer_parts import Part, ScoredToken, WholeAnswer, WholeToolCall
from genai_server.apis.ollama.schemas import nanoseconds
from genai_server.http.error_wording import Dialect
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.usage import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.timing import Breakdown


def ending(reason: FinishReason, usage: Usage, total: float, breakdown: Breakdown | None) -> JsonObject:
    """The fields that only the last line of an answer has: finish reason, durations and token counts; and
    `genai_finish_reason` where Ollama has no matching value.

    `total` is the time since the request's first byte, in seconds. `breakdown` divides it into phases; without one, the
    durations of the phases are reported as 1 ns, the minimum.
    """
    is_cut = reason.is_own
    return {
        "done": True,
        "done_reason": "length" if is_cut else reason.value,
        **({"genai_finish_reason": reason.value} if is_cut else {}),
        "total_duration": nanoseconds(total),
        "load_duration": nanoseconds(breakdown.load if breakdown else 0.0),
        "prompt_eval_count": usage.prompt,
        "prompt_eval_duration": nanoseconds(breakdown.prefill if breakdown else 0.0),
        "eval_count": usage.completion,
        "eval_duration": nanoseconds(breakdown.decode if breakdown else 0.0),
    }


class AnswerBuilder:
    """Builds the complete response to one request, or the lines of its stream."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        # The name given in the request.
        self._model = model
        # Whether the answer is a chat message instead of a text.
        self._is_chat = is_chat
        self._num_calls = 0

    def complete(self, answer: WholeAnswer, end: JsonObject) -> JsonObject:
        """The complete response object. `end` has the fields that the function `ending` returns."""
        calls = [self._call(call) for call in answer.tool_calls]
        return self._line(answer.content, answer.reasoning, calls, answer.tokens) | end

    def part(self, parts: Sequence[Part], tokens: Sequence[ScoredToken] = ()) -> JsonObject:
        """The line of a stream with the next parts of the answer. All tool calls in it are complete. `tokens` are the
        tokens of the parts with their log probabilities, if the request asks for them.
        """
        more = WholeAnswer(tokens=list(tokens))
        for part in parts:
            more.add(part)
        return self.complete(more, {})

    def last(self, end: JsonObject) -> JsonObject:
        """The last line of the stream, without text. `end` has the fields that the function `ending` returns."""
        return self._line("", "") | end

    def nothing(self, reason: str) -> JsonObject:
        """The response to a request that only loads or unloads the model. `reason` is the value of `done_reason`:
        "load" or "unload".
        """
        return self._line("", "") | {"done": True, "done_reason": reason}

    def _line(
        self, content: str, thinking: str, calls: Sequence[JsonObject] = (), tokens: Sequence[ScoredToken] = ()
    ) -> JsonObject:
        message: JsonObject = {"thinking": thinking} if thinking else {}
        if calls:
            message["tool_calls"] = calls
        answer = (
            {"message": {"role": "assistant", "content": content, **message}}
            if self._is_chat
            else {"response": content, **message}
        )
        scored = {"logprobs": [_scored(token) for token in tokens]} if tokens else {}
        return {"model": self._model, "created_at": timestamp(datetime.now(UTC)), **answer, "done": False, **scored}

    def _call(self, call: WholeToolCall) -> JsonObject:
        function = {"index": self._num_calls, "name": call.name, "arguments": call.given}
        self._num_calls += 1
        return {"id": call.id, "function": function}


def timestamp(time: datetime) -> str:
    """A time, given in UTC, in Ollama's format."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _scored(token: ScoredToken) -> JsonObject:
    found: JsonObject = {"token": token.text, "logprob": token.logprob, "bytes": tuple(token.data)}
    return {**found, "top_logprobs": [_scored(other) for other in token.top]} if token.top else found


# Excludes LM Studio's model lists, whose errors have OpenAI's format.
_PATH = re.compile(r"/api/(?!v[01]/).*", re.DOTALL)

OLLAMA = Dialect(
    lambda scope: _PATH.fullmatch(scope["path"]) is not None,
    lambda error: {"error": error.message},
    words={
        "context_length_exceeded": "the input length exceeds the context length: it has {tokens} tokens, and prompt "
        "and answer together may have {limit} ({limited_by})",
        "model_not_found": "model {name} not found, try pulling it first: {message}",
    },
)
