"""Tools of OpenAI's Responses API that the model may call: one class for each type, and how the model and the client
see those that the client runs, such as apply_patch and shell. Tools of type mcp are run by the server
(served_tools.py).

A model sees each tool of the client as a function. The function's name is the tool's type, and its parameters are the
fields that OpenAI publishes for the tool's calls. Calls and outputs of these tools are items of their own types.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from genai_server.generation.parameters.base import (
    NonEmptyText,
    StrictModel,
    TaggedUnion,
    Text,
    WritableObject,
    check_with_type,
    elements,
    field_error,
    members,
)
from genai_server.generation.parameters.chat_messages import MAX_NAME_LENGTH, MAX_TOOLS, FunctionName
from genai_server.http.json_response import JsonObject
from genai_server.messages.supervisor_protocol import ToolInfo

# Headers for a tool server.
_MAX_HEADERS = 128


def full_name(name: str, namespace: str | None) -> str:
    """The name of a function in the prompt. It contains the namespace, because functions in different namespaces may
    have the same name.
    """
    return f"{namespace}__{name}" if namespace else name


def _check_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        rule = f"and name, with __ between them, may have at most {MAX_NAME_LENGTH} characters; given {len(name)}"
        raise field_error("namespace", rule)


def _with_direct(callers: list[str]) -> list[str]:
    if callers and "direct" not in callers:
        raise ValueError("must have direct: this server runs no programs that call tools")
    return callers


AllowedCallers = Annotated[list[Literal["direct", "programmatic"]], elements(8), AfterValidator(_with_direct)]


class NamespacedTool(StrictModel):
    """Fields of tools that have a name, and may have a namespace."""

    name: FunctionName
    description: Text | None = None
    allowed_callers: AllowedCallers | None = None
    defer_loading: bool | None = Field(
        None, description="Show the tool to the model only once a tool_search has found it."
    )
    namespace: FunctionName | None = Field(None, description="Namespace of the tool; calls of the tool have it, too.")
    namespace_description: Text | None = Field(None, description="Text placed before the tool's own description.")

    @model_validator(mode="after")
    def _has_a_name_that_fits(self) -> Self:
        _check_length(self.full_name)
        return self

    @property
    def full_name(self) -> str:
        """The tool's name in the prompt."""
        return full_name(self.name, self.namespace)

    @property
    def full_description(self) -> str | None:
        """The tool's description in the prompt, which begins with that of its namespace; None if there is neither."""
        texts = [text for text in (self.namespace_description, self.description) if text is not None]
        return "\n".join(texts) if texts else None


class FunctionTool(NamespacedTool):
    """A function that the model may call. `parameters` is a JSON schema."""

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(
        None,
        description="true: follow the schema exactly, or refuse the request. false: enforce as much of it as possible.",
    )


class ToolGrammar(StrictModel):
    """The format of the text with which a custom tool is called."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: NonEmptyText | None = None

    @model_validator(mode="after")
    def _has_a_grammar(self) -> Self:
        check_with_type(self.type, "grammar", syntax=self.syntax, definition=self.definition)
        return self


class CustomTool(NamespacedTool):
    """A tool that the model calls with a text instead of JSON arguments."""

    type: Literal["custom"]
    format: ToolGrammar | None = Field(None, description="Format of the tool's input; by default any text.")


class TypedTool(StrictModel):
    """Fields of tools that the API defines by their type, which is also their name in the prompt."""

    type: str
    allowed_callers: AllowedCallers | None = None

    @property
    def full_name(self) -> str:
        """The tool's name in the prompt."""
        return self.type


class ApplyPatchTool(TypedTool):
    """OpenAI's tool for creating, updating and deleting files. The client applies the patches."""

    type: Literal["apply_patch"]


class LocalSkill(StrictModel):
    """A folder with instructions that the model may read with the shell."""

    name: Text
    description: Text
    path: Text


class LocalEnvironment(StrictModel):
    """The environment of shell commands: the client's own machine."""

    type: Literal["local"]
    skills: Annotated[list[LocalSkill], elements(MAX_TOOLS)] | None = None


class ShellTool(TypedTool):
    """OpenAI's tool for shell commands. The client runs them."""

    type: Literal["shell"]
    environment: LocalEnvironment | None = Field(None, description="Only local: this server has no containers.")


class LocalShellTool(TypedTool):
    """OpenAI's older tool for shell commands. The client runs them."""

    type: Literal["local_shell"]


class ToolSearchTool(TypedTool):
    """OpenAI's tool for finding tools with `defer_loading`. The client searches."""

    type: Literal["tool_search"]
    execution: Literal["client"]
    description: Text | None = None
    parameters: WritableObject | None = Field(None, description="JSON schema of a search; by default paths of tools.")


class McpFilter(StrictModel):
    """Selects tools of a tool server by name, by whether the server calls them read-only, or by both."""

    tool_names: Annotated[list[NonEmptyText], elements(MAX_TOOLS)] | None = None
    read_only: bool | None = None

    def matches(self, tool: ToolInfo) -> bool:
        """Whether the filter selects this tool."""
        is_named = self.tool_names is None or tool.name in self.tool_names
        return is_named and (self.read_only is None or tool.is_read_only == self.read_only)


class McpApproval(StrictModel):
    """Selects the tools whose calls need an approval, or those whose calls need none."""

    always: McpFilter | None = None
    never: McpFilter | None = None


class McpTool(StrictModel):
    """A tool server whose tools this server runs: one from the server's configuration, or one at an allowed host."""

    type: Literal["mcp"]
    server_label: NonEmptyText = Field(
        description="The name of the tool server in this server's configuration; any name with a server_url."
    )
    allowed_tools: Annotated[list[NonEmptyText], elements(MAX_TOOLS)] | McpFilter | None = None
    require_approval: Literal["always", "never"] | McpApproval | None = Field(
        None, description="always by default, as in OpenAI's API. The operator may demand it for more tools."
    )
    allowed_callers: AllowedCallers | None = None
    server_description: Text | None = Field(None, description="Placed before the descriptions of the tools.")
    server_url: Text | None = Field(
        None, description="Address of a server that the configuration does not have, at a host of GENAI_MCP_HOSTS."
    )
    authorization: Text | None = Field(None, description="OAuth token for server_url.")
    headers: Annotated[dict[str, Text], Field(max_length=_MAX_HEADERS), members(_MAX_HEADERS)] | None = Field(
        None, description="Headers of the requests to server_url."
    )
    connector_id: Text | None = Field(None, description="No effect.")
    tunnel_id: Text | None = Field(None, description="No effect.")
    defer_loading: bool | None = Field(None, description="No effect: all tools are shown to the model.")

    @property
    def full_name(self) -> str:
        """A name for the tool server as a whole that no tool in a prompt has. Its tools have names of their own."""
        return f"mcp:{self.server_label}"

    def allows(self, tool: ToolInfo) -> bool:
        """Whether the request lets the model call this tool."""
        allowed = self.allowed_tools
        if isinstance(allowed, McpFilter):
            return allowed.matches(tool)
        return allowed is None or tool.name in allowed

    def wants_approval(self, tool: ToolInfo) -> bool:
        """Whether the request wants the client to approve each call of this tool."""
        rule = self.require_approval
        if isinstance(rule, McpApproval):
            if rule.never is not None and rule.never.matches(tool):
                return False
            return rule.always is None or rule.always.matches(tool)
        return rule != "never"

    def without_effect(self, *, has_address: bool) -> list[str]:
        """The names of the fields in this request that have no effect. `has_address` says whether the tools are those
        of the server at `server_url`, not those of a configured tool server.
        """
        address_fields = () if has_address else ("server_url", "authorization", "headers")
        return [
            field for field in (*address_fields, "connector_id", "tunnel_id", "defer_loading") if getattr(self, field)
        ]


class McpFunction(FunctionTool):
    """A tool of a tool server as a function. Its namespace is the name of the tool server."""

    needs_approval: bool = False


ResponseTool = Annotated[
    FunctionTool | CustomTool | ApplyPatchTool | ShellTool | LocalShellTool | ToolSearchTool | McpTool,
    TaggedUnion("tool"),
]


class NamespaceTool(StrictModel):
    """Functions and custom tools with a common namespace."""

    type: Literal["namespace"]
    name: FunctionName
    description: Text | None = None
    tools: Annotated[list[Annotated[FunctionTool | CustomTool, TaggedUnion("tool")]], elements(MAX_TOOLS)]

    @model_validator(mode="after")
    def _has_names_that_fit(self) -> Self:
        for tool in self.tools:
            _check_length(full_name(tool.name, self.name))
        return self


# A tool that an item of the conversation brings.
ItemTool = Annotated[
    FunctionTool | CustomTool | ApplyPatchTool | ShellTool | LocalShellTool | ToolSearchTool | NamespaceTool,
    TaggedUnion("tool"),
]


def flattened(tools: "Iterable[ResponseTool | NamespaceTool]") -> Iterator[ResponseTool]:
    """The tools, with each namespace replaced by its tools."""
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            space = {"namespace": tool.name, "namespace_description": tool.description}
            yield from (inner.model_copy(update=space) for inner in tool.tools)
        else:
            yield tool


# Gives the text in the place of an item that brings tools.
Introduce = Callable[[JsonObject], str]


class ClientTool(ABC):
    """Translates one type of tools that clients run. To the model such a tool is a function. The subclasses convert the
    tool to this function, the model's function call to an item of the response, and items of the conversation back to
    calls and texts for the prompt.
    """

    tool: ClassVar[type[TypedTool]]
    # The types of the call's and the output's items.
    call: ClassVar[str]
    output: ClassVar[str]

    @property
    def name(self) -> str:
        """The name of the function that stands for the tool."""
        return str(get_args(self.tool.model_fields["type"].annotation)[0])

    @abstractmethod
    def function(self, tool: Any, deferred: Sequence[NamespacedTool]) -> JsonObject:
        """The function that stands for the tool. `deferred` are the tools of the request that the model sees only after
        a tool search has found them.
        """

    @abstractmethod
    def fields(self, arguments: Any) -> JsonObject:
        """The fields of a call item, made from the arguments with which the model has called the function."""

    @abstractmethod
    def arguments(self, item: JsonObject) -> Any:
        """The arguments of the function, made from a call item."""

    @abstractmethod
    def result(self, item: JsonObject, introduce: Introduce) -> str:
        """The text that the model reads for an output item. `introduce` returns the text with the definitions of the
        tools that an item adds.
        """


class _ApplyPatch(ClientTool):
    tool = ApplyPatchTool
    call, output = "apply_patch_call", "apply_patch_call_output"

    def function(self, tool: ApplyPatchTool, deferred: Sequence[NamespacedTool]) -> JsonObject:
        return {
            "name": self.name,
            "description": "Create, update or delete a file by a patch in the V4A format. In the diff of a new file "
            "each line begins with +. The diff of an update has a section for each place: first a line @@, followed by "
            "a line of the file above the place if one is needed to find it, then lines that begin with a space (kept),"
            " - (removed) or + (added). The diff of delete_file is empty.",
            "parameters": _object(
                ["type", "path", "diff"],
                type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                path={"type": "string", "minLength": 1, "description": "Relative to the root of the workspace."},
                diff={"type": "string"},
            ),
            "strict": True,
        }

    def fields(self, arguments: JsonObject) -> JsonObject:
        has_diff = arguments["type"] != "delete_file"
        return {"operation": {name: value for name, value in arguments.items() if name != "diff" or has_diff}}

    def arguments(self, item: JsonObject) -> JsonObject:
        return {"diff": "", **item["operation"]}

    def result(self, item: JsonObject, introduce: Introduce) -> str:
        text: str = item.get("output") or item["status"]
        return text if item["status"] == "completed" else f"Error: {text}"


class _Shell(ClientTool):
    tool = ShellTool
    call, output = "shell_call", "shell_call_output"

    def function(self, tool: ShellTool, deferred: Sequence[NamespacedTool]) -> JsonObject:
        texts = ["Run shell commands, one after another, and return what each has written."]
        if tool.environment is not None and tool.environment.skills:
            texts.append("Skills, which are folders with instructions to read before a task that they are for:")
            texts += [f"- {skill.name} ({skill.path}): {skill.description}" for skill in tool.environment.skills]
        return {
            "name": self.name,
            "description": "\n".join(texts),
            "parameters": _object(
                ["commands"],
                commands={"type": "array", "items": {"type": "string"}, "minItems": 1},
                timeout_ms={"type": "integer", "minimum": 1, "description": "Milliseconds that the commands may take."},
                max_output_length={
                    "type": "integer",
                    "minimum": 1,
                    "description": "Characters of output to return of each command.",
                },
            ),
            "strict": True,
        }

    def fields(self, arguments: JsonObject) -> JsonObject:
        return {"action": arguments}

    def arguments(self, item: JsonObject) -> JsonObject:
        action: JsonObject = item["action"]
        return action

    def result(self, item: JsonObject, introduce: Introduce) -> str:
        return "\n".join(map(_written, item["output"])) or str(item.get("status") or "completed")


class _LocalShell(ClientTool):
    tool = LocalShellTool
    call, output = "local_shell_call", "local_shell_call_output"

    def function(self, tool: LocalShellTool, deferred: Sequence[NamespacedTool]) -> JsonObject:
        return {
            "name": self.name,
            "description": "Run a command on the local machine and return what it has written.",
            "parameters": _object(
                ["command"],
                command={
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "description": "The program and its arguments; a shell only if it is the program.",
                },
                working_directory={"type": "string"},
                timeout_ms={"type": "integer", "minimum": 1, "description": "Milliseconds that the command may take."},
                env={"type": "object", "additionalProperties": {"type": "string"}},
                user={"type": "string", "description": "The user who runs the command."},
            ),
            "strict": True,
        }

    def fields(self, arguments: JsonObject) -> JsonObject:
        return {"action": {"type": "exec", "env": {}, **arguments}}

    def arguments(self, item: JsonObject) -> JsonObject:
        return {name: value for name, value in item["action"].items() if name != "type" and value != {}}

    def result(self, item: JsonObject, introduce: Introduce) -> str:
        text: str = item["output"]
        return text


class _ToolSearch(ClientTool):
    tool = ToolSearchTool
    call, output = "tool_search_call", "tool_search_output"

    def function(self, tool: ToolSearchTool, deferred: Sequence[NamespacedTool]) -> JsonObject:
        """The function that stands for a tool search. If the request does not define its parameters, its parameter is a
        list of paths: names of tools or namespaces in `deferred`.
        """
        paths = {
            candidate.namespace or candidate.name: candidate.namespace_description or candidate.description
            for candidate in deferred
        }
        description = tool.description or "Load more tools, which can be called afterwards."
        if paths:
            lines = [f"- {path}: {text}" if text else f"- {path}" for path, text in paths.items()]
            description = "\n".join([description, "What can be loaded:", *lines])
        path = {"type": "string", **({"enum": list(paths)} if paths else {})}
        by_paths = _object(["paths"], paths={"type": "array", "items": path, "minItems": 1})
        return {"name": self.name, "description": description, "parameters": tool.parameters or by_paths}

    def fields(self, arguments: Any) -> JsonObject:
        return {"arguments": arguments, "execution": "client"}

    def arguments(self, item: JsonObject) -> Any:
        return item.get("arguments") or {}

    def result(self, item: JsonObject, introduce: Introduce) -> str:
        return introduce(item) if item["tools"] else "No tools were found."


# By the type of the tool, of a call's item and of an output's item.
CLIENT_TOOLS: dict[str, ClientTool] = {
    kind: tool
    for tool in (_ApplyPatch(), _Shell(), _LocalShell(), _ToolSearch())
    for kind in (tool.name, tool.call, tool.output)
}


def _object(required: list[str], **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _written(output: JsonObject) -> str:
    """The text that the model reads for the output of a shell command. It ends with the exit code if the command failed
    or wrote nothing.
    """
    outcome = output["outcome"]
    ended = "timed out" if outcome["type"] == "timeout" else f"exit code {outcome.get('exit_code', 0)}"
    texts = [output["stdout"], f"stderr:\n{output['stderr']}" if output["stderr"] else ""]
    is_told = ended != "exit code 0" or not any(texts)
    return "\n".join(text for text in (*texts, ended if is_told else "") if text)


def parsed_arguments(text: str) -> Any:
    """The arguments of a call as JSON; the text itself if it is not JSON, which is possible for a tool search without a
    strict schema.
    """
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text
