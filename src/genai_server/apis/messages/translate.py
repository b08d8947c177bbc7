"""Translates Anthropic's bodies to chat parameters, their turns and blocks to OpenAI's messages, and errors back."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from genai_server.apis.messages.schemas import (
    AnthropicMessage,
    Base64Source,
    Block,
    ContentSource,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.chat_messages import MAX_MESSAGES, ChatParameters
from genai_server.apis.shared.image_places import ImagePlace, image_names
from genai_server.apis.shared.sampling_parameters import SamplingFields
from genai_server.errors import InvalidField, ThreadUnsupported
from genai_server.quoted_values import quoted

_CONTINUE = "continue_final_message"
_FORMAT = "response_format"
_SCHEMA = f"{_FORMAT}.json_schema"
_PARALLEL = "parallel_tool_calls"
_EFFORT = "reasoning_effort"
# Matches a field name, with its value if given, or a message.
_INNER_NAME = re.compile(
    rf"\b(?P<field>chat_template_kwargs\.{_CONTINUE}|chat_template_kwargs|{_CONTINUE}|{_SCHEMA}|{_FORMAT}|{_PARALLEL}|{_EFFORT})\b"
    r'(?P<value> "\w+")?|\bmessages\[(?P<index>\d+)\](?P<part>\.content\[\d+\](\.image_url\.url)?)?'
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
                # The model continues an assistant message at the end.
                "chat_template_kwargs": {_CONTINUE: True} if body.messages[-1].role == "assistant" else None,
            }
        )
        self._images = image_names(self.chat.messages, _image_places(body))

    def outer_name(self, field: str) -> str:
        """The body's name for a field of the chat parameters."""
        return _INNER_NAME.sub(self._outer_name, field)

    def _outer_name(self, match: re.Match[str]) -> str:
        field, value, index, part = match.group("field", "value", "index", "part")
        if index is not None:
            return self._images.get(match[0]) or self._places[int(index)] + (part or "")
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


def chat_messages(body: CountTokensRequest) -> Iterator[tuple[str, JsonObject]]:
    """The messages, each with the location in the body that it comes from.

    Adjacent messages of one role form one turn, as in Anthropic's API. The texts of a turn are joined by newlines, and
    each tool result becomes a message. Raises InvalidField for the result of an unknown call.
    """
    called: dict[str, str] = {}
    for role, group in groupby(_places(body), key=lambda one: one[1].role):
        messages = list(group)
        blocks = [(place, index, block) for place, message in messages for index, block in enumerate(message.blocks)]
        if role == "assistant":
            called |= {block.id: block.name for *_, block in blocks if isinstance(block, ToolUseBlock)}
            yield messages[0][0], _assistant([block for *_, block in blocks])
            continue
        for is_result, run in groupby(blocks, key=lambda one: isinstance(one[2], ToolResultBlock)):
            found = list(run)
            if not is_result:
                yield found[0][0], {"role": role, "content": _content([block for *_, block in found])}
                continue
            for place, index, block in found:
                yield f"{place}.content[{index}]", _result(block, f"{place}.content[{index}]", called)


def _places(body: CountTokensRequest) -> list[tuple[str, AnthropicMessage]]:
    given = [(f"messages[{index}]", message) for index, message in enumerate(body.messages)]
    if not body.system:
        return given
    content: str | list[Block] = body.system if isinstance(body.system, str) else [*body.system]
    return [("system", AnthropicMessage(role="system", content=content)), *given]


def _assistant(blocks: Sequence[Block]) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": _content(blocks)}
    if thoughts := [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls := [block for block in blocks if isinstance(block, ToolUseBlock)]:
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.input, ensure_ascii=False)},
            }
            for call in calls
        ]
    return message


def _result(block: Block, place: str, called: dict[str, str]) -> JsonObject:
    assert isinstance(block, ToolResultBlock)
    id = block.tool_use_id
    if id not in called:
        field = f"{place}.tool_use_id"
        raise InvalidField(f"{field} must be the id of an earlier tool_use block; given {quoted(id)}", param=field)
    content = block.content if isinstance(block.content, str) else _content(block.content or [])
    if block.is_error:
        content = f"Error: {content}" if isinstance(content, str) else [{"type": "text", "text": "Error: "}, *content]
    return {"role": "tool", "tool_call_id": id, "name": called[id], "content": content}


def _content(blocks: Sequence[Block]) -> str | list[JsonObject]:
    """The texts, joined by newlines; with images, parts in which those between two images are joined."""
    flat: list[Block] = []
    for block in blocks:
        flat += block.blocks if isinstance(block, DocumentBlock) else [block]
    if not any(isinstance(block, ImageBlock) for block in flat):
        return _text(flat)
    parts: list[JsonObject] = []
    for is_image, run in groupby(flat, key=lambda block: isinstance(block, ImageBlock)):
        given = list(run)
        if is_image:
            sources = [block.source for block in given if isinstance(block, ImageBlock)]
            parts += [{"type": "image_url", "image_url": {"url": _url(source)}} for source in sources]
        elif text := _text(given):
            parts.append({"type": "text", "text": text})
    return parts


def _url(source: Base64Source | UrlSource) -> str:
    return source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _image_places(body: CountTokensRequest) -> Iterator[ImagePlace]:
    """Where the body has its images, in order."""
    for number, message in enumerate(body.messages):
        yield from _places_of_images(message.blocks, f"messages[{number}].content")


def _places_of_images(blocks: Sequence[Block], path: str) -> Iterator[ImagePlace]:
    for index, block in enumerate(blocks):
        place = f"{path}[{index}]"
        match block:
            case ImageBlock():
                yield place, f"{place}.source.{'data' if block.source.type == 'base64' else 'url'}"
            case ToolResultBlock(content=list(content)):
                yield from _places_of_images(content, f"{place}.content")
            case DocumentBlock(source=ContentSource(content=list(content))):
                yield from _places_of_images(content, f"{place}.source.content")
