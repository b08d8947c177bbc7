"""Tools of type mcp, which this server runs: finds the tools of the tool servers that a request names, and converts
their calls and approvals.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from genai_server.apis.responses.response import McpToolList
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.responses.tools import McpFunction, McpTool
from genai_server.config.tool_servers import NAME_RULE, is_name
from genai_server.errors import InvalidField, quoted
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.tool_loop import (
    Selection,
    ServedTool,
    ServedTools,
    address_of,
    find_tools,
    usable_servers,
)
from genai_server.http.json_response import JsonObject
from genai_server.messages.supervisor_protocol import ServerAddress

_NOT_APPROVED = "Error: the user has not approved this call"


@dataclass(frozen=True)
class McpTools:
    """The tools of the tool servers that a request names and may use. A label is the name that the request gives to a
    tool server.
    """

    tools: Sequence[ServedTool] = ()
    # The labels of the servers that the request may use.
    labels: frozenset[str] = frozenset()
    # The servers' own descriptions in the request, by label.
    descriptions: Mapping[str, str | None] = field(default_factory=dict)

    def functions(self, label: str) -> list[McpFunction]:
        """The tools of the tool server with this label, as functions."""
        return [
            McpFunction.model_validate(
                {
                    "type": "function",
                    "name": tool.info.name,
                    "namespace": label,
                    "namespace_description": self.descriptions.get(label),
                    "description": tool.info.description or None,
                    "parameters": msgspec.json.decode(tool.info.parameters),
                    "needs_approval": tool.needs_approval,
                }
            )
            for tool in self.tools
            if tool.server == label
        ]

    def instead(self, body: ResponsesRequest) -> ResponsesRequest:
        """A copy of the request in which each tool of type mcp, which names a tool server, is replaced by the functions
        of this tool server. Raises InvalidField if `tool_choice` requires a tool and there is none.
        """
        if not any(isinstance(tool, McpTool) for tool in body.tools or ()):
            return body
        tools = [
            replacement
            for tool in body.tools or ()
            for replacement in (self.functions(tool.server_label) if isinstance(tool, McpTool) else [tool])
        ]
        if not tools and body.tool_choice not in (None, "none", "auto"):
            raise InvalidField("tool_choice", "is only allowed with tools")
        return body.model_copy(update={"tools": tools or None})

    def served(self, approved: Collection[str]) -> ServedTools:
        """The tools that the server runs while it generates the answer. `approved` are the ids of calls that the client
        has approved.
        """
        return ServedTools({tool.name: tool for tool in self.tools}, frozenset(approved))

    def lists(self, conversation: Sequence[JsonObject]) -> list[McpToolList]:
        """An output item `mcp_list_tools` for each tool server whose tools the conversation does not list yet."""
        listed_labels = {item.get("server_label") for item in conversation if item["type"] == "mcp_list_tools"}
        return [
            McpToolList(label, [_listed(tool) for tool in self.tools if tool.server == label])
            for label in sorted(self.labels - listed_labels)
        ]


def _listed(tool: ServedTool) -> JsonObject:
    return {
        "annotations": {"read_only": tool.info.is_read_only},
        "description": tool.info.description,
        "input_schema": msgspec.json.decode(tool.info.parameters),
        "name": tool.info.name,
    }


async def find_mcp_tools(body: ResponsesRequest, services: Services, context: RequestContext) -> McpTools:
    """Find the tools of the tool servers that a request names. Servers that the request may not use are left out and
    reported.

    Raises InvalidField, ToolServerUnavailable, ClientLeft and DeadlinePassed.
    """
    named = [(index, tool) for index, tool in enumerate(body.tools or ()) if isinstance(tool, McpTool)]
    if not named:
        return McpTools()
    usable = usable_servers(services, context)
    by_label: dict[str, McpTool] = {}
    selected: list[Selection] = []
    for index, tool in named:
        if tool.server_label in by_label:
            raise InvalidField(f"tools[{index}].server_label", "must be unique", given=tool.server_label)
        at = None if tool.server_label in usable else _address(tool, index, services)
        if tool.server_label in usable or at is not None:
            by_label[tool.server_label] = tool
            selected.append(Selection(tool.server_label, tool.allows, tool.wants_approval, at))
            for name in tool.without_effect(has_address=at is not None):
                if not context.leniency.leave_out(f"tools[{index}].{name}"):
                    raise InvalidField(f"tools[{index}].{name}", "has no effect: the server's configuration has it")
        elif not context.leniency.leave_out(f"tools[{index}]", " (mcp)"):
            rule = (
                "must be the name of a tool server that this request may use ([mcp.NAME] in the configuration file), "
                "unless server_url has a host that the operator allows (GENAI_MCP_HOSTS)"
            )
            raise InvalidField(f"tools[{index}].server_label", rule, given=tool.server_label)
    listed = await find_tools(services, context, body.model, selected) if selected else []
    # Functions of the request with the name of a server's tool replace it.
    own_names = {tool.full_name for tool in body.tools or ()}
    tools = [tool for tool in listed if tool.name not in own_names]
    return McpTools(tools, frozenset(by_label), {label: tool.server_description for label, tool in by_label.items()})


def _address(tool: McpTool, index: int, services: Services) -> ServerAddress | None:
    """The address of a tool server that the request names by URL, in the entry `index` of `tools`; None if the operator
    does not allow this host.

    Raises InvalidField for invalid headers or an invalid name.
    """
    try:
        address = address_of(services, tool.server_url, tool.authorization, tool.headers)
    except ValueError as error:
        raise InvalidField(f"tools[{index}].headers", str(error)) from None
    if address is not None and not is_name(tool.server_label):
        raise InvalidField(f"tools[{index}].server_label", NAME_RULE, given=tool.server_label)
    return address


@dataclass(frozen=True)
class ServedHistory:
    """A conversation in which items about tools of tool servers are replaced by function calls and their outputs, and
    the approvals in it.
    """

    items: list[JsonObject]
    # The approval requests of the calls that the client has approved, keyed by the calls' ids.
    approved: Mapping[str, str]


def with_calls(conversation: Sequence[JsonObject], labels: Collection[str]) -> ServedHistory:
    """Replace the items about tools of the tool servers with these labels by function calls and outputs. Items of other
    tool servers stay, and the model reads them as notes.

    Raises InvalidField for an approval of a call that the conversation does not contain.
    """
    if not labels:
        return ServedHistory([*conversation], {})
    answers = _approvals(conversation)
    done = {item.get("approval_request_id") for item in conversation if item["type"] == "mcp_call"}
    converted: list[JsonObject] = []
    approved: dict[str, str] = {}
    for number, item in enumerate(conversation):
        kind = item["type"]
        if kind == "mcp_approval_response" or (kind.startswith("mcp_") and item.get("server_label") in labels):
            call_id = f"call{number:05}"  # Mistral's templates require ids of this length
            if kind == "mcp_call":
                converted += [_call(item, call_id), _output(item, call_id, _result(item))]
            elif kind == "mcp_approval_request" and item["id"] not in done:
                converted.append(_call(item, call_id))
                answer = answers.get(item["id"], {})
                if answer.get("approve"):
                    approved[call_id] = item["id"]
                else:
                    reason = answer.get("reason")
                    converted.append(_output(item, call_id, f"{_NOT_APPROVED}: {reason}" if reason else _NOT_APPROVED))
        else:
            converted.append(item)
    return ServedHistory(converted, approved)


def _approvals(conversation: Sequence[JsonObject]) -> dict[object, JsonObject]:
    """The items with which the client approves or declines calls, by the id of the item that asked for the approval."""
    requests = {item["id"] for item in conversation if item["type"] == "mcp_approval_request"}
    answers: dict[object, JsonObject] = {}
    for item in conversation:
        if item["type"] == "mcp_approval_response":
            request_id = item.get("approval_request_id")
            if not isinstance(request_id, str) or request_id not in requests:
                raise InvalidField("input", f"has an approval of {quoted(request_id)}, which it does not request")
            if not isinstance(item.get("approve"), bool):
                raise InvalidField("input", f"has an approval of {request_id} whose approve is not true or false")
            answers[request_id] = item
    return answers


def _call(item: JsonObject, call_id: str) -> JsonObject:
    fields = {"name": _text(item, "name"), "namespace": item["server_label"], "arguments": _text(item, "arguments")}
    return {"id": item["id"], "type": "function_call", "status": "completed", "call_id": call_id, **fields}


def _output(item: JsonObject, call_id: str, text: str) -> JsonObject:
    return {"id": item["id"], "type": "function_call_output", "call_id": call_id, "output": text}


def _result(item: JsonObject) -> str:
    """The text that the model reads as the result of a call."""
    match item.get("error"):
        case {"content": [{"text": str(text)}, *_]} | {"message": str(text)} | str(text):
            return f"Error: {text}"
    output = item.get("output")
    return output if isinstance(output, str) else "Error: the call was not completed"


def _text(item: JsonObject, field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise InvalidField("input", f"has an item of type {item['type']} without a text in {field}")
    return value
