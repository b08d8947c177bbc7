"""Translates Anthropic's bodies to chat parameters, and errors back."""

import re

from genai_server.apis.messages.conversation import chat_messages
from genai_server.apis.messages.schemas import CountTokensRequest, MessagesRequest
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.chat_body import MAX_MESSAGES, ChatParameters
from genai_server.apis.shared.sampling_parameters import SamplingFields
from genai_server.errors import InvalidField, RequestError, ThreadUnsupported

_CONTINUE = "continue_final_message"
_FORMAT = "response_format"
_SCHEMA = f"{_FORMAT}.json_schema"
_PARALLEL = "parallel_tool_calls"
_EFFORT = "reasoning_effort"
# Matches a field name, with its value if given, or a message.
_INNER_NAME = re.compile(
    rf"\b(?P<field>chat_template_kwargs\.{_CONTINUE}|chat_template_kwargs|{_CONTINUE}|{_SCHEMA}|{_FORMAT}|{_PARALLEL}|{_EFFORT})\b"
    r'(?P<value> "\w+")?|\bmessages\[(?P<index>\d+)\]'
)


class Translation:
    """Translates a body to the chat parameters `chat`.

    Raises ThreadUnsupported, and InvalidField for errors that concern the entire conversation.
    """

    def __init__(self, body: CountTokensRequest) -> None:
        if isinstance(body, MessagesRequest) and body.thread is not None:
            raise ThreadUnsupported(
                "thread is not supported: this server does not store Anthropic conversations", param="thread"
            )
        self._body = body
        turns = list(chat_messages(body))
        self._places = [place for place, _ in turns]
        if len(turns) > MAX_MESSAGES:
            raise InvalidField(
                f"messages may have at most {MAX_MESSAGES} turns, counting system and each tool result; "
                f"given {len(turns)}",
                param="messages",
            )
        self.chat = ChatParameters.model_validate(
            {
                "model": body.model,
                "messages": [message for _, message in turns],
                **_tools(body),
                **_output(body),
                **(_generation(body) if isinstance(body, MessagesRequest) else {}),
                **(_continuation() if body.messages[-1].role == "assistant" else {}),
            }
        )

    def outer(self, error: RequestError) -> RequestError:
        """An error about the chat parameters with the body's field names."""
        param = error.param and _INNER_NAME.sub(self._outer_name, error.param)
        return error.reworded(_INNER_NAME.sub(self._outer_name, error.message), param=param)

    def outer_name(self, field: str) -> str:
        """The body's name for a field of the chat parameters."""
        return _INNER_NAME.sub(self._outer_name, field)

    def _outer_name(self, match: re.Match[str]) -> str:
        field, value, index = match.group("field", "value", "index")
        if index is not None:
            return self._places[int(index)]
        config = self._body.output_config
        if field == _EFFORT and (config is None or config.effort is None):
            return 'thinking.type "enabled"' if value else "thinking.type"
        outer = {
            _EFFORT: "output_config.effort",
            _FORMAT: "output_config.format",
            _SCHEMA: "output_config.format",
            _PARALLEL: "tool_choice.disable_parallel_tool_use",
        }.get(field, self._places[-1])
        return outer + (value or "")


def _continuation() -> JsonObject:
    """The model continues an assistant message at the end."""
    return {"chat_template_kwargs": {_CONTINUE: True}}


def _generation(body: MessagesRequest) -> JsonObject:
    sampling = {name: getattr(body, name) for name in SamplingFields.model_fields}
    more = {"max_tokens": body.max_tokens, "device": body.device, "stop": body.stop_sequences or None}
    return {**sampling, **more}


def _tools(body: CountTokensRequest) -> JsonObject:
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
        for tool in body.tools or []
    ]
    found: JsonObject = {"tools": [{"type": "function", "function": function} for function in functions] or None}
    choice = body.tool_choice
    if choice is None:
        return found
    if choice.disable_parallel_tool_use:
        found[_PARALLEL] = False
    if choice.name is not None:
        return {**found, "tool_choice": {"type": "function", "function": {"name": choice.name}}}
    return {**found, "tool_choice": {"any": "required"}.get(choice.type, choice.type)}


def _output(body: CountTokensRequest) -> JsonObject:
    """Reasoning effort and response format. By default the model's own effort is used, or "high" if thinking is
    enabled, as in Anthropic's API.
    """
    thinking = body.thinking.type if body.thinking is not None else None
    config = body.output_config
    effort: str | None = config.effort if config is not None else None
    if thinking == "disabled":
        effort = "none"
    elif thinking == "enabled":
        effort = effort or "high"
    found: JsonObject = {_EFFORT: effort}
    if config is not None and config.format is not None:
        schema = {"name": "output", "schema": config.format.schema_}
        found[_FORMAT] = {"type": "json_schema", "json_schema": schema}
    return found
