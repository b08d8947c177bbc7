"""Decides which tools a prompt defines at its beginning, which ones items of the conversation introduce, and which ones
the answer may call.

A tool with `defer_loading` is not defined at the beginning, but at the item that adds it: the output of a tool search
that the client has run, or an item of type `additional_tools`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from pydantic import TypeAdapter

from genai_server.apis.responses.client_tools import CLIENT_TOOLS
from genai_server.apis.responses.items import is_call, is_foreign
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.responses.tool_schemas import (
    CustomTool,
    FunctionTool,
    ItemTool,
    McpTool,
    NamespacedTool,
    ResponseTool,
    flattened,
    full_name,
)
from genai_server.apis.shared.tool_texts import introduction
from genai_server.errors import InvalidField
from genai_server.generation.parameters import custom_tools
from genai_server.generation.parameters.chat_messages import MAX_TOOLS
from genai_server.http.json_response import JsonObject

_BRINGING = ("additional_tools", "tool_search_output")
_TOOL: TypeAdapter[ItemTool] = TypeAdapter(ItemTool)


class OfferedTools:
    """The tools that a request and the conversation that it continues define: which of them the prompt defines at its
    beginning (`listed`), and which ones the answer may call (`callable`).

    Raises InvalidField if there are too many tools.
    """

    def __init__(self, body: ResponsesRequest, conversation: Sequence[JsonObject]) -> None:
        own = list(body.tools or [])
        self._deferred = [tool for tool in own if isinstance(tool, NamespacedTool) and tool.defer_loading]
        hidden = {tool.full_name for tool in self._deferred} - set(body.chosen_names())
        brought = {tool.full_name: tool for tool in chain.from_iterable(map(_brought, conversation))}
        self.listed = [tool for tool in own if tool.full_name not in hidden]
        shown = brought.keys() | _called(conversation) | {tool.full_name for tool in self.listed}
        # What an answer may call: tools of the request have precedence over those of the same name that items bring.
        self.callable = [tool for tool in own if tool.full_name in shown]
        names = {tool.full_name for tool in self.callable}
        self.callable += [tool for name, tool in brought.items() if name not in names]
        if len(self.callable) > MAX_TOOLS:
            raise InvalidField("input", f"may bring tools until there are {MAX_TOOLS}", given=len(self.callable))
        if not self.listed:  # a model that knows of no tool does not know how to call one
            self.listed = self.callable
        self._defined = {tool.full_name for tool in self.listed}

    def by_name(self) -> dict[str, ResponseTool]:
        """The tools that the answer may call, by their names in the prompt."""
        return {tool.full_name: tool for tool in self.callable}

    def function(self, tool: ResponseTool) -> JsonObject:
        """The tool as a function for the chat parameters."""
        if isinstance(tool, FunctionTool):
            fields = {"description": tool.full_description, "parameters": tool.parameters, "strict": tool.strict}
            return {"name": tool.full_name} | {name: value for name, value in fields.items() if value is not None}
        if isinstance(tool, CustomTool):
            form = tool.format
            grammar = (None, None) if form is None else (form.syntax, form.definition)
            return custom_tools.function_of(tool.full_name, tool.full_description, *grammar)
        assert not isinstance(tool, McpTool), "its functions are in its place"
        return CLIENT_TOOLS[tool.type].function(tool, self._deferred)

    def introduce(self, item: JsonObject) -> str:
        """The text with which the prompt introduces the tools that an item adds; "" if the beginning of the prompt
        defines all of them.
        """
        tools = list(_brought(item))
        if item["type"] == "additional_tools" and all(tool.full_name in self._defined for tool in tools):
            return ""
        known = self.by_name()
        return introduction(
            {"name": tool.full_name} if tool.full_name in self._defined else self.function(known[tool.full_name])
            for tool in tools
        )


def _brought(item: JsonObject) -> Iterator[ResponseTool]:
    """The tools that an item adds to those that the model may call."""
    if item["type"] in _BRINGING and not is_foreign(item):
        yield from flattened(map(_TOOL.validate_python, item["tools"]))


def _called(conversation: Sequence[JsonObject]) -> set[str]:
    """The names of the functions and custom tools whose calls are in the conversation."""
    calls = (item for item in conversation if is_call(item) and "name" in item)
    return {full_name(call["name"], call.get("namespace")) for call in calls}
