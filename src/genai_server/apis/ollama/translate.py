"""Translates Ollama's bodies to chat or text completion parameters, and errors back."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from genai_server.apis.ollama.schemas import (
    MAX_STOP_STRINGS,
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
    Options,
)
from genai_server.apis.shared.base import JsonObject, elements
from genai_server.apis.shared.chat_messages import ChatParameters
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.sampling_parameters import StopText

_SCHEMA = "response_format.json_schema.schema"
_EFFORT = "reasoning_effort"
# Matches a field name, with its value if given, or a message.
_INNER_NAME = re.compile(
    rf"\b(?P<field>max_tokens|repeat_last_n|{_SCHEMA}|response_format|structured_outputs(\.json)?|{_EFFORT})\b"
    r'(?P<value> "\w+")?|\bmessages\[(?P<index>\d+)\](\.content)?'
)
_OUTER_NAMES = {"max_tokens": "options.num_predict", "repeat_last_n": "options.repeat_last_n", _EFFORT: "think"}
# A counter, in the length that Mistral's templates require.
_ID = "call{:05}"

Stops = StopText | Annotated[list[StopText], elements(MAX_STOP_STRINGS)] | None


class Chat(ChatParameters):
    """Chat parameters that allow more stop strings than OpenAI's."""

    stop: Stops = None


class Raw(CompletionRequest):
    """Text completion parameters that allow more stop strings and do not limit the answer by default."""

    stop: Stops = None
    default_max_tokens: ClassVar[int | None] = None


class Translation:
    """Translates a request body to `body` for the model with this id."""

    def __init__(self, body: OllamaChatRequest | GenerateRequest, model: str) -> None:
        self.body: Chat | Raw
        self._given = body
        options = {"model": model, **_sampling(body.options or Options.model_validate({}))}
        if isinstance(body, GenerateRequest) and body.is_raw:
            self.body = Raw.model_validate({**options, **_raw(body)})
            return
        messages = list(_messages(body.messages or ())) if isinstance(body, OllamaChatRequest) else _question(body)
        given = (body.tools or ()) if isinstance(body, OllamaChatRequest) else ()
        tools = [{"type": "function", "function": tool.function} for tool in given]
        self.body = Chat.model_validate({**options, "messages": messages, "tools": tools or None, **_output(body)})

    def outer_name(self, field: str) -> str:
        """The given body's name for a field of the translated one."""
        return _INNER_NAME.sub(self._outer_name, field)

    def _outer_name(self, match: re.Match[str]) -> str:
        field, value, index = match.group("field", "value", "index")
        if index is not None:
            if isinstance(self._given, OllamaChatRequest):
                return match[0]
            return "system" if self._given.system and index == "0" else "prompt"
        outer = _OUTER_NAMES.get(field, "format")
        return f"{outer} {json.dumps(self._given.think)}" if value and field == _EFFORT else outer + (value or "")


def _sampling(options: Options) -> JsonObject:
    limit, top_k, seed = options.num_predict or 0, options.top_k, options.seed
    return {
        "max_tokens": limit if limit > 0 else None,
        "temperature": options.temperature,
        "top_k": None if top_k is None else max(0, top_k),
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "repeat_last_n": options.num_penalized,
        "seed": None if seed == -1 else seed,
        "stop": options.stop or None,
    }


def _raw(body: GenerateRequest) -> JsonObject:
    found: JsonObject = {"prompt": body.prompt, "suffix": body.suffix}
    if body.logprobs:
        found["logprobs"] = body.top_logprobs or 0
    if body.format:
        schema = {"type": "object"} if body.format == "json" else body.format
        found["structured_outputs"] = {"json": schema}
    return found


def _question(body: GenerateRequest) -> list[JsonObject]:
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": body.prompt}]


def _output(body: OllamaChatRequest | GenerateRequest) -> JsonObject:
    """Reasoning effort, response format and log probabilities; the model's own effort by default."""
    found: JsonObject = {}
    if body.think is not None:
        found[_EFFORT] = body.think if isinstance(body.think, str) else "medium" if body.think else "none"
    if body.format == "json":
        found["response_format"] = {"type": "json_object"}
    elif body.format:
        found["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": body.format}}
    if body.logprobs:
        found |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return found


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[JsonObject]:
    """The messages, with ids added to calls and results that have none."""
    num_ids = 0
    # Names of the calls without a result, keyed by id.
    waiting: dict[str, str] = {}
    for message in messages:
        found: JsonObject = {"role": message.role, "content": message.content or ""}
        if message.role == "tool":
            id = message.tool_call_id or _answered(waiting, message.tool_name) or _ID.format(num_ids)
            num_ids += 1
            name = waiting.pop(id, None) or message.tool_name
            yield {**found, "tool_call_id": id, **({"name": name} if name else {})}
            continue
        if message.role == "assistant" and message.thinking:
            found["reasoning_content"] = message.thinking
        if message.tool_calls:
            waiting, calls = {}, []
            for call in message.tool_calls:
                id = call.id or _ID.format(num_ids)
                num_ids += 1
                waiting[id] = call.function.name
                arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
                function = {"name": call.function.name, "arguments": arguments}
                calls.append({"id": id, "type": "function", "function": function})
            found |= {"content": message.content or None, "tool_calls": calls}
        yield found


def _answered(waiting: dict[str, str], name: str | None) -> str | None:
    """The id of the call that a result without an id belongs to: the first call of its tool, or else the first call."""
    named = [id for id, tool in waiting.items() if tool == name]
    return next(iter(named or waiting), None)
