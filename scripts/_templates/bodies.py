"""Conversations as bodies of each API. None where an API cannot express one."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

from .shapes import Shape, Turn

Body = dict[str, Any]

_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_NAMED = {"name": "get_weather", "description": "Looks."}
_FUNCTION = {"type": "function", "function": {**_NAMED, "parameters": _PARAMETERS}}
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def chat_completions(shape: Shape, *, has_tools: bool) -> Body | None:
    """A body of /v1/chat/completions."""
    messages = [chat_message(turn) for turn in shape.turns]
    body: Body = {"messages": messages, **({"tools": [_FUNCTION]} if has_tools else {})}
    return {**body, "chat_template_kwargs": {"continue_final_message": True}} if shape.continues else body


def chat_message(turn: Turn) -> Body:
    """A message of chat completions."""
    message: Body = {"role": turn.role, "content": turn.text}
    if turn.has_image:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PIXEL}"}}
        message["content"] = [{"type": "text", "text": turn.text}, image]
    if turn.role == "tool":
        message["tool_call_id"] = turn.id
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["content"] = turn.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    return message


def responses(shape: Shape, *, has_tools: bool) -> Body | None:
    """A body of /v1/responses."""
    turns = list(shape.turns)
    body: Body = {}
    if shape.continues:
        return None
    if turns[0].role == "system":
        body["instructions"] = turns.pop(0).text
    body["input"] = [item for turn in turns for item in _items(turn)]
    if not body["input"]:
        return None
    tool = {"type": "function", **_NAMED, "parameters": _PARAMETERS, "strict": False}
    return {**body, **({"tools": [tool]} if has_tools else {}), "store": False}


def _items(turn: Turn) -> list[Body]:
    if turn.role == "tool":
        return [{"type": "function_call_output", "call_id": turn.id, "output": turn.text}]
    items: list[Body] = []
    if turn.reasoning:
        content = [{"type": "reasoning_text", "text": turn.reasoning}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": content})
    if turn.text or not turn.calls:
        kind = "output_text" if turn.role == "assistant" else "input_text"
        content = [{"type": kind, "text": turn.text}]
        if turn.has_image:
            content.append({"type": "input_image", "image_url": f"data:image/png;base64,{_PIXEL}"})
        items.append({"type": "message", "role": turn.role, "content": content})
    for call in turn.calls:
        items.append({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
    return items


def messages(shape: Shape, *, has_tools: bool) -> Body | None:
    """A body of /v1/messages."""
    turns = list(shape.turns)
    body: Body = {"max_tokens": 100}
    system = []
    while turns and turns[0].role == "system":
        system.append({"type": "text", "text": turns.pop(0).text})
    if not turns or any(turn.role == "developer" for turn in turns):
        return None
    if system:
        body["system"] = system
    body["messages"] = []
    for role, group in groupby(turns, key=lambda turn: "user" if turn.role == "tool" else turn.role):
        blocks = [_blocks(turn) for turn in group]
        if None in blocks:
            return None
        content = [block for some in blocks for block in some or ()]
        if content or role == "assistant":
            body["messages"].append({"role": role, "content": content})
    tool = {**_NAMED, "input_schema": _PARAMETERS}
    return {**body, **({"tools": [tool]} if has_tools else {})}


def _blocks(turn: Turn) -> list[Body] | None:
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.id, "content": turn.text}]
    blocks: list[Body] = []
    if turn.reasoning:
        blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": "x"})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    if turn.has_image:
        blocks.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}})
    for call in turn.calls:
        arguments = _object(call.arguments)
        if arguments is None:
            return None
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def ollama(shape: Shape, *, has_tools: bool) -> Body | None:
    """A body of /api/chat."""
    if shape.continues or any(turn.role == "developer" for turn in shape.turns):
        return None
    found = []
    for turn in shape.turns:
        message: Body = {"role": turn.role, "content": turn.text}
        if turn.has_image:
            message["images"] = [_PIXEL]
        if turn.reasoning:
            message["thinking"] = turn.reasoning
        if turn.calls:
            calls = [(call.name, _object(call.arguments)) for call in turn.calls]
            if any(arguments is None for _, arguments in calls):
                return None
            message["tool_calls"] = [{"function": {"name": name, "arguments": given}} for name, given in calls]
        if turn.role == "tool":
            message["tool_name"] = "get_weather"
        found.append(message)
    return {"messages": found, **({"tools": [_FUNCTION]} if has_tools else {})}


def _object(arguments: str) -> Body | None:
    try:
        value = json.loads(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# The function that makes a body, by path.
APIS: dict[str, Callable[..., Body | None]] = {
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/api/chat": ollama,
}
