"""Converts Anthropic's turns and blocks to OpenAI's messages, the format of chat templates."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from genai_server.apis.messages.schemas import (
    AnthropicMessage,
    Block,
    CountTokensRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from genai_server.apis.shared.base import JsonObject
from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted


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
                yield found[0][0], {"role": role, "content": _text([block for *_, block in found])}
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
    message: JsonObject = {"role": "assistant", "content": _text(blocks)}
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
    text = block.content if isinstance(block.content, str) else _text(block.content or [])
    content = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": id, "name": called[id], "content": content}


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
