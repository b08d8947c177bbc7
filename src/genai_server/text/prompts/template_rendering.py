"""Renders converted conversations: protects special tokens, and rewrites as text what a template does not read."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.prompts.message_content import MEDIA, Message
from genai_server.text.prompts.special_tokens import SpecialTokenGuard
from genai_server.text.prompts.template_traits import CallForm, TemplateTraits, ToolsPlace
from genai_server.text.tool_formats.tool_format import Call, ToolFormat

Tool = Mapping[str, Any]
# The following characters are lone surrogates: neither valid text nor used by special_tokens.py.
# Marks the end of a final message that the answer continues.
END = "\ud800"
# Marks the position of an image or audio clip, for templates that take only texts.
_MEDIUM = "\ud801"
# Marks a message's reasoning, to see whether a template writes it: the message's number in two characters.
_REASONING = re.compile("[\ud900-\ud9ff][\uda00-\udaff]")
# Finds a position within a word. Marks are inserted there because templates trim reasoning and split it at tags and
# line breaks, which changes nothing within a word.
_WITHIN_WORD = re.compile(r"(?<=\w)(?=\w)")


class Rendered(NamedTuple):
    """A template's output, in which special tokens of messages are still replaced, and the indexes of the messages
    whose reasoning the output contains.
    """

    text: str
    with_reasoning: set[int]


class TemplateRendering:
    """Renders conversations with one template.

    Tool calls that the template cannot write are written in `tool_format`.
    """

    def __init__(
        self, template: ChatTemplate, guard: SpecialTokenGuard, tool_format: ToolFormat | None, image_marker: str
    ) -> None:
        self.template = template
        self._guard = guard
        self._tool_format = tool_format
        self._image_marker = image_marker

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: Mapping[str, Any],
        traits: TemplateTraits,
        *,
        suffix: str = "",
    ) -> Rendered:
        """Render messages that conversation.py has converted, with `suffix` appended to the content of the last
        message.

        `traits` says in which form the template reads calls, tools and reasoning. Raises InvalidField if a value cannot
        be rendered, and TemplateRefusal if the template refuses the messages.
        """
        num_given = len(messages)
        if tools:
            messages = _with_tools(messages, tools, traits.tools_place)
        covered = self._guard.cover_messages(messages, "messages")
        covered = [_with_types_of_parts(message, original) for message, original in zip(covered, messages, strict=True)]
        covered = [_with_marks(message, self.template.constants) for message in covered]
        if traits.calls is CallForm.IN_CONTENT and self._tool_format is not None:
            role = "tool" if "tool" in self.template.constants else self._tool_format.result_role
            # Added after covering, because the format's markers are genuine special tokens.
            covered = [_with_calls_as_content(message, self._tool_format, role) for message in covered]
        is_marked = _mark_reasoning(covered, traits.reasoning_field)
        if suffix:
            covered[-1]["content"] += suffix
        text = self.template.render({**variables, "messages": covered})
        with_reasoning = set()
        if is_marked:
            num_added = len(messages) - num_given
            with_reasoning = {_marked_message(mark) - num_added for mark in _REASONING.findall(text)}
            text = _REASONING.sub("", text)
        return Rendered(text.replace(_MEDIUM, self._image_marker), with_reasoning)


def _with_tools(messages: Sequence[Message], tools: Sequence[Tool], position: ToolsPlace) -> Sequence[Message]:
    """Return the messages with the tools in a first system message, if the template reads the tools there."""
    if position is ToolsPlace.VARIABLE:
        return messages
    value: Any = list(tools)
    if position is ToolsPlace.JSON_IN_MESSAGE:
        value = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    has_system = messages and messages[0]["role"] == "system"
    first, *others = messages if has_system else [{"role": "system", "content": ""}, *messages]
    return [{**first, "tools": value}, *others]


def _with_calls_as_content(message: dict[str, Any], tool_format: ToolFormat, result_role: str) -> dict[str, Any]:
    """Return a message for a template that cannot write tool calls. Arguments of calls must be objects.

    Tool calls become text in `tool_format`, as the model would write them. A tool result gets the role `result_role`.
    """
    if message["role"] == "tool":
        return {**message, "role": result_role}
    functions = [call["function"] for call in message.get("tool_calls", [])]
    if not functions:
        return message
    text = tool_format.write_calls([Call(one["name"], one["arguments"]) for one in functions])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}


def _with_types_of_parts(covered: dict[str, Any], original: Message) -> dict[str, Any]:
    """Return a message, whose special tokens have been replaced, with the `type`s that the content parts of `original`
    have.

    Templates compare types, so these must not be replaced.
    """
    if not isinstance(parts := original["content"], list):
        return covered
    types = [part["type"] for part in parts]
    return {
        **covered,
        "content": [{**part, "type": type} for part, type in zip(covered["content"], types, strict=True)],
    }


def _with_marks(message: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return a message whose content is one text, with a mark in place of each image and audio clip.

    A message is unchanged if its content is not a list of parts, or if the template supports images or audio, which its
    constants `known` show.
    """
    if not isinstance(parts := message["content"], list):
        return message
    if any(name in known for part in parts for name in MEDIA.get(part["type"], ())):
        return message
    return {**message, "content": "\n".join(part.get("text", _MEDIUM) for part in parts)}


def _mark_reasoning(messages: Sequence[dict[str, Any]], field: str) -> bool:
    """Insert a mark into the reasoning of each message, in place. Returns whether any message has reasoning.

    `field` is the field with the reasoning. The mark contains the index of the message.
    """
    is_marked = False
    for number, message in enumerate(messages):
        if not isinstance(text := message.get(field), str) or not text.strip():
            continue
        is_marked = True
        mark = chr(0xD900 + (number >> 8 & 0xFF)) + chr(0xDA00 + (number & 0xFF))
        match = _WITHIN_WORD.search(text)
        position = match.start() if match else len(text.rstrip())
        message[field] = text[:position] + mark + text[position:]
    return is_marked


def _marked_message(mark: str) -> int:
    return (ord(mark[0]) - 0xD900 << 8) + ord(mark[1]) - 0xDA00
