"""OpenAI's Responses API on top of the chat: what a request asks for, and what its response repeats
(https://platform.openai.com/docs/api-reference/responses).
"""

import re
from collections.abc import Sequence
from typing import Any

from genai_server.errors import GenaiServerError, InvalidField
from genai_server.generation import Sampling
from genai_server.openai_api.response_items import new_id, to_messages
from genai_server.openai_api.schemas.base import JsonObject, WithoutEffect
from genai_server.openai_api.schemas.chat import MOST_MESSAGES, ChatMessage, ChatParameters
from genai_server.openai_api.schemas.response_items import full_name
from genai_server.openai_api.schemas.responses import (
    LOGPROBS,
    AllowedTools,
    FunctionTool,
    NamedFunction,
    ResponsesRequest,
)
from genai_server.openai_api.schemas.sampling import GenerationFields

_SAME = (set(GenerationFields.model_fields) - set(WithoutEffect.model_fields) - {"max_tokens"}) | {
    "chat_template_kwargs",
    "parallel_tool_calls",
}
# A chat's fields that have other names here.
_NAMES = {
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
_OTHER = re.compile(rf"\b({'|'.join(map(re.escape, _NAMES))})\b")
_MESSAGE = re.compile(r"\bmessages\[\d+\]\.?([\w.\[\]]*)")


def to_chat(body: ResponsesRequest, conversation: Sequence[JsonObject]) -> ChatParameters:
    """The chat whose answer is the response.

    Raises InvalidField for the output of a call that was not made, and for a conversation of too many messages.
    """
    messages = to_messages(conversation)
    if body.instructions is not None:
        messages.insert(0, ChatMessage.model_validate({"role": "system", "content": body.instructions}))
    if len(messages) > MOST_MESSAGES:
        raise InvalidField(
            f"input must make at most {MOST_MESSAGES} messages, with instructions and all turns before; "
            f"given {len(messages)}",
            param="input",
        )
    fields: dict[str, Any] = {name: getattr(body, name) for name in _SAME} | _tools(body)
    if LOGPROBS in (body.include or []):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = {"type": body.text.format.type}
        if schema := body.text.format.model_dump(exclude={"type"}, exclude_none=True, by_alias=True):
            fields["response_format"]["json_schema"] = schema
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    return ChatParameters(messages=messages, max_tokens=body.max_output_tokens, **fields)


def _tools(body: ResponsesRequest) -> JsonObject:
    functions = [
        tool.model_dump(exclude={"type", "namespace"}, exclude_none=True)
        | {"name": full_name(tool.name, tool.namespace)}
        for tool in body.tools or []
    ]
    told: Any = body.tool_choice
    chosen = body.chosen_names()
    if isinstance(told, AllowedTools):
        allowed = set(chosen)
        functions, told = [function for function in functions if function["name"] in allowed], told.mode
    elif isinstance(told, NamedFunction):
        told = {"type": "function", "function": {"name": chosen[0]}}
    return {
        "tools": [{"type": "function", "function": function} for function in functions] or None,
        "tool_choice": told,
    }


def outer_error(error: GenaiServerError) -> GenaiServerError:
    """An error of the chat as one of the response, which names the client's own field."""

    def place(inner: re.Match[str]) -> str:
        return f"input ({inner[1]})" if inner[1] else "input"

    if error.param is None:
        return error
    if error.param.startswith("messages"):
        return error.reworded(_MESSAGE.sub(place, error.message), param="input")
    return error.reworded(outer_name(error.message), param=outer_name(error.param))


def outer_name(text: str) -> str:
    """A text with the response's names for the chat's fields."""
    return _OTHER.sub(lambda inner: _NAMES[inner[0]], text)


def new_response(
    body: ResponsesRequest, *, model: str, sampling: Sampling, created: int, is_stored: bool
) -> JsonObject:
    """A response at its beginning, with the request's fields and the values in effect. `created` is in seconds since
    1970.
    """
    asked = body.model_dump(include={"reasoning", "text", "tool_choice"}, exclude_none=True, by_alias=True)
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        "background": False,
        "frequency_penalty": sampling.frequency_penalty,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": sampling.presence_penalty,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": _given_text(body.prompt_cache_key),
        "reasoning": {"effort": None, "summary": None, **asked.get("reasoning", {})},
        "safety_identifier": _given_text(body.safety_identifier),
        "service_tier": "default",
        "store": is_stored,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **asked.get("text", {})},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": [_repeated(tool) for tool in body.tools or []],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": _given_text(body.user),
    }


def namespaces(body: ResponsesRequest) -> dict[str, tuple[str, str]]:
    """Name and namespace of each function within one, by what the model calls it."""
    return {
        full_name(tool.name, tool.namespace): (tool.name, tool.namespace) for tool in body.tools or [] if tool.namespace
    }


def _repeated(tool: FunctionTool) -> JsonObject:
    return tool.model_dump(exclude=None if tool.namespace else {"namespace"})


def _given_text(value: Any) -> str | None:
    """The value if it is a string: clients read nothing else."""
    return value if isinstance(value, str) else None
