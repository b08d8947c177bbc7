"""Tools of type mcp in a request to the Responses API. Such an entry names an MCP tool server, whose tools this server
lists and runs itself.

`find_mcp_tools` finds the tools of all such servers of a request. `with_calls` converts earlier calls of these tools,
and the client's approvals of calls, to function calls and outputs, which the prompt can contain.
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
    """The tools of all MCP tool servers that a request names and may use, with the labels of these servers. A label is
    the name that the request gives to a server. Created by `find_mcp_tools` for each request.
    """

    tools: Sequence[ServedTool] = ()
    # The labels of the servers that the request may use.
    labels: frozenset[str] = frozenset()
    # The servers' own descriptions in the request, by label.
    descriptions: Mapping[str, str | None] = field(default_factory=dict)

    def functions(self, label: str) -> list[McpFunction]:
        """Return the tools of the MCP tool server with the label `label` in the form in which prompts define them:
        functions whose namespace is the label.
        """
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
        """Return a copy of the request in which each entry of `tools` that names an MCP tool server is replaced by
        functions, one for each tool of the named server. A request without such entries is returned itself.

        Raises InvalidField if `tool_choice` requires a tool and no tool is left.
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
        """Return these tools as ServedTools, the form in which the code that generates the answer takes the tools that
        it runs between the model's turns. `approved` are the ids of the calls in the conversation that the client has
        approved, so that they are run, too.
        """
        return ServedTools({tool.name: tool for tool in self.tools}, frozenset(approved))

    def lists(self, conversation: Sequence[JsonObject]) -> list[McpToolList]:
        """Return an output item `mcp_list_tools` for each MCP tool server whose tools are not listed yet by an item of
        the conversation. The response begins with these items.
        """
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
    """Find the tools of the MCP tool servers that a request names in its field `tools`. Servers that do not run yet are
    started. Servers that the request may not use are left out and reported to the client or, with the setting
    GENAI_STRICT, refused.

    Raises InvalidField if an entry is invalid or refused, and the errors of `tool_loop.find_tools`, which asks the
    servers, such as ToolServerUnavailable, ModelNotFound, ClientLeft and DeadlinePassed.
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
    """Return the address of an MCP tool server that a request names by its URL and not by its name in the
    configuration. `tool` is the entry at the position `index` of the request's field `tools`. None if it has no URL, or
    if the operator does not allow the URL's host.

    Raises InvalidField if the headers or the label of the server are invalid.
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
    """A conversation for the prompt, made by `with_calls`: in `items`, calls of MCP tools and requests for their
    approval are function calls with outputs. `approved` says which of the calls the client has approved; they have no
    output yet.
    """

    items: list[JsonObject]
    # The approval requests of the calls that the client has approved, keyed by the calls' ids.
    approved: Mapping[str, str]


def with_calls(conversation: Sequence[JsonObject], labels: Collection[str]) -> ServedHistory:
    """Convert the items of a conversation that concern MCP tools so that the prompt can contain them: calls, and
    requests for approval with the client's answers, become function calls and their outputs. An approved call gets no
    output, because it has yet to be run.

    `labels` are the labels of the MCP tool servers that the request may use. Calls of tools on other servers stay as
    they are, and the model reads them as notes. Raises InvalidField if the conversation has an approval of a call that
    it does not contain.
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
    """Return the items of a conversation with which the client has approved or declined calls of MCP tools, keyed by
    the id of the `mcp_approval_request` item that each answers. Raises InvalidField if an answer is invalid or answers
    no such item.
    """
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
    """Return the text that the model reads as the result of an `mcp_call` item: the output, or a text that begins with
    "Error: " if the call has failed or was not completed.
    """
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
