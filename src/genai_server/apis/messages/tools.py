"""Decides which tools a prompt defines at its beginning, which ones its messages introduce, and which ones the answer
may call.

A tool with `defer_loading` is not defined at the beginning, but in the message that refers to it: the result of a tool
search that the client has run, or a message that adds tools.
"""

import json
from collections.abc import Iterable, Iterator

from genai_server.apis.messages.client_tools import CLIENT_TOOLS
from genai_server.apis.messages.schemas import (
    AnthropicTool,
    Block,
    CompactionBlock,
    CountTokensRequest,
    ToolAdditionBlock,
    ToolDefinition,
    ToolName,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
)
from genai_server.apis.shared.tool_texts import introduction
from genai_server.http.json_response import JsonObject


class OfferedTools:
    """The tools that a request and its messages define, as functions: which of them the prompt defines at its
    beginning, and which ones the answer may call.
    """

    def __init__(self, body: CountTokensRequest) -> None:
        self._declared = {tool.name: tool for tool in body.tools or []}
        # All tools by name, also those that messages define.
        self._known = dict(self._declared)
        deferred = {tool.name for tool in self._declared.values() if tool.defer_loading}
        # Whether the tools are deferred although nothing else can be called, so that all are at the beginning.
        self.are_all_deferred = bool(deferred) and len(deferred) == len(self._declared)
        if self.are_all_deferred:
            deferred.clear()
        if body.tool_choice is not None:
            deferred.discard(body.tool_choice.name or "")
        self._deferred = frozenset(deferred)
        self._callable = dict.fromkeys(name for name in self._declared if name not in deferred)
        for message in body.messages:
            self._apply(message.blocks)
        if body.tool_choice is not None and body.tool_choice.name in self._known:
            self._callable[body.tool_choice.name] = None

    @property
    def listed(self) -> list[JsonObject]:
        """The functions that are defined at the beginning of the prompt."""
        return [_function(tool) for name, tool in self._declared.items() if name not in self._deferred]

    @property
    def callable(self) -> list[JsonObject]:
        """The functions that an answer may call."""
        return [_function(self._known[name]) for name in self._callable]

    def introduce(self, names: Iterable[str]) -> str:
        """The text with which a message introduces the tools with these names. A tool that is unknown, or that the
        beginning of the prompt defines, appears only by its name.
        """
        return introduction(
            _function(self._known[name]) if name in self._known and not self._is_listed(name) else {"name": name}
            for name in names
        )

    def _is_listed(self, name: str) -> bool:
        return name in self._declared and name not in self._deferred

    def _apply(self, blocks: Iterable[Block]) -> None:
        """Update the callable tools by the blocks of one message, in order."""
        for change in _changes(blocks):
            match change:
                case ToolReferenceBlock(tool_name=name) | ToolAdditionBlock(tool=ToolName(name=name)):
                    if name in self._known:
                        self._callable[name] = None
                case ToolAdditionBlock(tool=ToolDefinition(definition=definition)):
                    # A declared tool keeps its definition, which is at the beginning of the prompt.
                    self._known.setdefault(definition.name, definition)
                    self._callable[definition.name] = None
                case ToolRemovalBlock(tool=tool):
                    self._callable.pop(tool.name, None)


def _changes(blocks: Iterable[Block]) -> Iterator[ToolReferenceBlock | ToolAdditionBlock | ToolRemovalBlock]:
    for block in blocks:
        match block:
            case ToolAdditionBlock() | ToolRemovalBlock():
                yield block
            case CompactionBlock(tool_changes=list(changes)):
                yield from changes
            case ToolResultBlock(content=list(content)):
                yield from (part for part in content if isinstance(part, ToolReferenceBlock))


def _function(tool: AnthropicTool) -> JsonObject:
    """The tool as a function. Its examples are part of the description."""
    description, parameters = tool.description, tool.input_schema
    if (published := CLIENT_TOOLS.get(tool.type or "custom")) is not None:
        description, parameters = published.description, published.parameters
    if tool.max_characters is not None:
        description = f"{description} view shows at most {tool.max_characters} characters."
    if tool.input_examples:
        examples = (json.dumps(example, ensure_ascii=False) for example in tool.input_examples)
        description = "\n".join([*([description] if description else []), "Examples of its input:", *examples])
    return {"name": tool.name, "description": description, "parameters": parameters, "strict": tool.strict}
