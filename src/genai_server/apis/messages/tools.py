"""The tools of a request to Anthropic's Messages API.

`CLIENT_TOOLS` has the definitions of Anthropic's own shell, text editor and memory tools, which a request names only by
a dated type, such as bash_20250124. Anthropic has published their parameters, and its models know them; other models
get a description and a schema. The client runs these tools.

`OfferedTools` decides which tools the prompt defines at its beginning, and which ones the answer may call. A tool with
`defer_loading` is not defined at the beginning, but in the message that refers to it: the result of a tool search that
the client has run, or a message that adds tools. `find_server_tools` finds the tools of MCP tool servers, which this
server runs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genai_server.apis.messages.schemas import (
    AnthropicTool,
    Block,
    CompactionBlock,
    CountTokensRequest,
    McpServer,
    McpToolset,
    ToolAdditionBlock,
    ToolDefinition,
    ToolName,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
)
from genai_server.apis.shared.chat_history import introduction
from genai_server.config.tool_servers import NAME_RULE, is_name
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.tool_loop import Selection, ServedTool, address_of, find_tools, usable_servers
from genai_server.http.json_response import JsonObject
from genai_server.messages.supervisor_protocol import ServerAddress, ToolInfo


@dataclass(frozen=True)
class ClientTool:
    """The definition of one of Anthropic's own tools for models that do not know it: the description and the JSON
    schema of the parameters.
    """

    description: str
    parameters: JsonObject


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _parameters(properties: Mapping[str, Any], *required: str) -> JsonObject:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


def _commands(*names: str) -> JsonObject:
    return {"type": "string", "enum": [*names], "description": "What to do."}


_BASH = ClientTool(
    "Runs a command in a bash session that keeps its state between calls: working directory, variables, functions. "
    "The result has the command's output and errors.",
    _parameters(
        {
            "command": _text("The command to run. Required unless restart is true."),
            "restart": {"type": "boolean", "description": "true: end the session and start a new one."},
        }
    ),
)
_LINE_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "With view of a file: the first and the last line to show, counted from 1. A last line of -1 is the "
    "end of the file.",
}
_INSERT_LINE = {
    "type": "integer",
    "minimum": 0,
    "description": "Required with insert: the number of the line after which the text is inserted; 0 is the beginning.",
}
_FILE_TEXT = _text("Required with create: the complete text of the new file.")
_OLD_TEXT = _text(
    "Required with str_replace: the text to replace. It must be in the file exactly once, with the same whitespace."
)


def _editor(description: str, *commands: str, inserted: str) -> ClientTool:
    """Return the definition of a version of Anthropic's text editor tool, with the description `description`. It has
    the commands view, create, str_replace and insert, and those in `commands`. `inserted` is the name of the parameter
    that has the text for the command insert.
    """
    new_text = "With str_replace: the text to put in its place; without it, the old text is removed."
    texts = {"new_str": _text(new_text)}
    if inserted == "new_str":
        texts["new_str"] = _text(f"{new_text} Required with insert: the text to insert.")
    else:
        texts[inserted] = _text("Required with insert: the text to insert.")
    return ClientTool(
        description,
        _parameters(
            {
                "command": _commands("view", "create", "str_replace", "insert", *commands),
                "path": _text("The absolute path of a file or, with view, a directory."),
                "file_text": _FILE_TEXT,
                "old_str": _OLD_TEXT,
                **texts,
                "insert_line": _INSERT_LINE,
                "view_range": _LINE_RANGE,
            },
            "command",
            "path",
        ),
    )


_EDITS = (
    "Shows and edits text files. view shows a file with line numbers, or what a directory contains; create writes a "
    "new file; str_replace replaces one text of a file; insert adds text after a line"
)
_EDITOR_WITH_UNDO = _editor(f"{_EDITS}; undo_edit takes back the last edit of a file.", "undo_edit", inserted="new_str")
_EDITOR = _editor(f"{_EDITS}.", inserted="insert_text")
_MEMORY = ClientTool(
    "Files in the directory /memories, which stay when the conversation ends. Look there for what is known before you "
    "begin, and write down what is worth knowing later. view shows a file or what a directory contains; create writes "
    "a file; str_replace replaces one text of a file; insert adds text after a line; delete removes a file or "
    "directory; rename moves one.",
    _parameters(
        {
            "command": _commands("view", "create", "str_replace", "insert", "delete", "rename"),
            "path": _text("Required except with rename: the path of a file or directory, such as /memories/notes.md."),
            "file_text": _FILE_TEXT,
            "old_str": _OLD_TEXT,
            "new_str": _text("Required with str_replace: the text to put in its place."),
            "insert_line": _INSERT_LINE,
            "insert_text": _text("Required with insert: the text to insert."),
            "view_range": _LINE_RANGE,
            "old_path": _text("Required with rename: the present path."),
            "new_path": _text("Required with rename: the new path."),
        },
        "command",
    ),
)
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _EDITOR_WITH_UNDO,
    "text_editor_20250124": _EDITOR_WITH_UNDO,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}


class OfferedTools:
    """The tools that a request and its messages define: `listed` are the functions that the prompt defines at its
    beginning, and `callable` are those that the answer may call after all additions and removals in the messages.
    Created for each request; MCP tools are not among them.
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
        """Return the definitions of the tools that the prompt defines at its beginning, as functions."""
        return [_function(tool) for name, tool in self._declared.items() if name not in self._deferred]

    @property
    def callable(self) -> list[JsonObject]:
        """Return the definitions of the tools that the answer may call, as functions."""
        return [_function(self._known[name]) for name in self._callable]

    def introduce(self, names: Iterable[str]) -> str:
        """Return the text that defines the tools with the names `names` within a message that adds them. A tool that
        the request does not define, or that is defined at the beginning of the prompt, appears only by its name.
        """
        return introduction(
            _function(self._known[name]) if name in self._known and not self._is_listed(name) else {"name": name}
            for name in names
        )

    def _is_listed(self, name: str) -> bool:
        return name in self._declared and name not in self._deferred

    def _apply(self, blocks: Iterable[Block]) -> None:
        """Change the set of tools that the answer may call by the blocks of one message, in their order: references to
        tools, additions and removals.
        """
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
    """Return the definition of a tool as a function, the form that prompts have: name, description and JSON schema of
    the parameters. Examples of inputs become part of the description.
    """
    description, parameters = tool.description, tool.input_schema
    if (published := CLIENT_TOOLS.get(tool.type or "custom")) is not None:
        description, parameters = published.description, published.parameters
    if tool.max_characters is not None:
        description = f"{description} view shows at most {tool.max_characters} characters."
    if tool.input_examples:
        examples = (json.dumps(example, ensure_ascii=False) for example in tool.input_examples)
        description = "\n".join([*([description] if description else []), "Examples of its input:", *examples])
    return {"name": tool.name, "description": description, "parameters": parameters, "strict": tool.strict}


async def find_server_tools(
    body: CountTokensRequest, services: Services, context: RequestContext
) -> Mapping[str, Sequence[ServedTool]]:
    """Find the tools of the MCP tool servers that a request names, and return them keyed by the name of the server.
    Servers that do not run yet are started.

    Servers that the request may not use are left out and reported to the client or, with the setting GENAI_STRICT,
    refused. Tools whose calls the client would have to approve are always left out and reported, because Anthropic's
    API has no form for approvals. Raises InvalidField if an entry is invalid or refused, and the errors of
    `tool_loop.find_tools`, which asks the servers, such as ToolServerUnavailable, ModelNotFound, ClientLeft and
    DeadlinePassed.
    """
    usable = usable_servers(services, context)
    toolsets = {entry.mcp_server_name: entry for entry in body.mcp_toolsets or ()}
    names = [entry.name for entry in body.mcp_servers or ()]
    for name in toolsets:
        if name not in names and not context.leniency.leave_out("tools", " (mcp_toolset)"):
            raise InvalidField("tools", "has an mcp_toolset of a server that is not in mcp_servers", given=name)
    selected: dict[str, Selection] = {}
    for index, server in enumerate(body.mcp_servers or ()):
        at = None if server.name in usable else _address(server, index, services)
        if server.name in usable or at is not None:
            allows = _Allowed(server, toolsets.get(server.name))
            selected[server.name] = Selection(server.name, allows, address=at)
            if server.authorization_token and at is None:
                _leave_out(context, f"mcp_servers[{index}].authorization_token", "", server.name)
        else:
            _leave_out(context, f"mcp_servers[{index}]", "", server.name)
    tools = await find_tools(services, context, body.model, list(selected.values())) if selected else []
    for tool in tools:
        if tool.needs_approval:
            context.leniency.note([f"mcp_servers ({tool.server}: {tool.info.name} needs an approval)"])
    return {name: [tool for tool in tools if tool.server == name and not tool.needs_approval] for name in selected}


def _address(server: McpServer, index: int, services: Services) -> ServerAddress | None:
    """Return the address of an MCP tool server that a request names by its URL and not by its name in the
    configuration. `server` is the entry at the position `index` of the field `mcp_servers`. None if it has no URL, or
    if the operator does not allow the URL's host.

    Raises InvalidField if the name or the token of the server is invalid.
    """
    try:
        address = address_of(services, server.url, server.authorization_token)
    except ValueError as error:
        raise InvalidField(f"mcp_servers[{index}].authorization_token", str(error)) from None
    if address is not None and not is_name(server.name):
        raise InvalidField(f"mcp_servers[{index}].name", NAME_RULE, given=server.name)
    return address


def _leave_out(context: RequestContext, path: str, remark: str, name: str) -> None:
    if not context.leniency.leave_out(path, remark):
        rule = (
            "must be of a tool server that this request may use ([mcp.NAME] in the configuration file), or at a host "
            "that the operator allows (GENAI_MCP_HOSTS)"
        )
        raise InvalidField(path, rule, given=name)


class _Allowed:
    """Tells which tools of one MCP tool server the model may call: calling the object with a tool returns True or
    False. The request decides this by its entry for the server and by a toolset, if there is one; both must allow the
    tool.
    """

    def __init__(self, server: McpServer, toolset: McpToolset | None) -> None:
        self._older = server.tool_configuration
        self._toolset = toolset

    def __call__(self, tool: ToolInfo) -> bool:
        if self._older is not None:
            allowed = self._older.allowed_tools
            if self._older.enabled is False or (allowed is not None and tool.name not in allowed):
                return False
        return self._toolset is None or self._toolset.allows(tool.name)
