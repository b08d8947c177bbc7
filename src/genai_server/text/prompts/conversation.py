"""Converts OpenAI messages to the forms that chat templates accept."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted
from genai_server.text.tool_formats.tool_format import Call, ToolFormat

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


def conversation_forms(
    messages: Sequence[Message], *, knows_developer: bool, knows_calls: bool = True, reads_thinking: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """The forms that templates accept, the most common one first.

    In the most common form, tool call arguments are objects rather than JSON text, and a message without content has
    None. Some templates concatenate either of them to a text, and therefore need a text. Templates without tool calls
    do not concatenate arguments. Other fields that are null or an empty list are omitted. Content parts are joined by
    line breaks. The role developer becomes system unless the template knows it. With `reads_thinking`, reasoning is
    also in the field `thinking`, which gpt-oss's template requires; it refuses both reasoning and content next to
    calls.

    Raises InvalidField, naming the field, for arguments that are not a JSON object and for parts that are not text.
    """
    plain = [_plain(message, f"messages[{n}]", knows_developer) for n, message in enumerate(messages)]
    if reads_thinking:
        plain = [_with_thinking(message) for message in plain]
    usual = [_with_objects(message, f"messages[{n}]") for n, message in enumerate(plain)]
    forms = [usual] if usual == plain or not knows_calls else [usual, plain]
    yield from forms
    if any(message["content"] is None for message in plain):
        for form in forms:
            yield [{**message, "content": message["content"] or ""} for message in form]


def with_tools(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> Iterator[list[dict[str, Any]]]:
    """The messages with the tools in the first one, a system message, in the forms that templates accept.

    These are the tools unchanged and, for templates that concatenate them to a text, the functions as JSON.
    """
    first, *others = messages if messages[0]["role"] == "system" else [{"role": "system", "content": ""}, *messages]
    functions = [tool.get("function", tool) for tool in tools]
    for given in (list(tools), json.dumps(functions, ensure_ascii=False)):
        yield [{**first, "tools": given}, *others]


def with_calls_as_content(message: dict[str, Any], tool_format: ToolFormat, result_role: str) -> dict[str, Any]:
    """A message, whose arguments are objects, for a template without tool calls.

    Tool calls become the text that the model would write. A result gets the given role.
    """
    if message["role"] == "tool":
        return {**message, "role": result_role}
    given = [call["function"] for call in message.get("tool_calls", [])]
    if not given:
        return message
    text = tool_format.write_calls([Call(one["name"], one["arguments"]) for one in given])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {**message, "content": content}


def _plain(message: Message, place: str, knows_developer: bool) -> dict[str, Any]:
    # Some templates check whether a message has a field, not its value.
    plain = {name: value for name, value in message.items() if value is not None and value != []}
    plain.setdefault("content", None)
    if isinstance(plain["content"], list):
        plain["content"] = "\n".join(_text_of(part, f"{place}.content[{n}]") for n, part in enumerate(plain["content"]))
    if plain.get("role") == "developer" and not knows_developer:
        plain["role"] = "system"
    return plain


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    thought = message.get("reasoning_content")
    if thought is None or (message["content"] and "tool_calls" in message):
        return message
    return {**message, "thinking": thought}


def _text_of(part: Any, place: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidField(f"{place} must be a part of type text; this model supports no other type", param=place)
    return text


def _with_objects(message: dict[str, Any], place: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call, f"{place}.tool_calls[{n}]") for n, call in enumerate(calls)]}


def _with_object(call: Any, place: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    param = f"{place}.function.arguments"
    try:
        # Some models write an empty text for no arguments, and their clients send it back.
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidField(f"{param} must be JSON: {error}", param=param) from None
    if not isinstance(arguments, dict):
        raise InvalidField(f"{param} must be a JSON object; given {quoted(function['arguments'])}", param=param)
    return {**call, "function": {**function, "arguments": arguments}}
