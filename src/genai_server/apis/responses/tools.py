"""Schemas of the tools of OpenAI's Responses API, one class for each type of tool, and the conversion of the tools that
clients run.

The model sees each tool as a function. For OpenAI's own tools, such as apply_patch and shell, the name of this function
is the type of the tool, and its parameters are those that OpenAI publishes. Calls and outputs of these tools are items
of their own types, and the subclasses of `ClientTool` convert between such items and calls of the function;
`CLIENT_TOOLS` has them by type. Tools of MCP tool servers, of type mcp, are run by this server (served_tools.py).
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
    """Return the name that the tool `name` has in the prompt: NAMESPACE__NAME or, if `namespace` is None, its own name.
    Tools in different namespaces may have the same name.
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
    """Base class of functions and custom tools, which the client names and describes. A tool may belong to a namespace,
    a named group of tools, and its name and description in the prompt then begin with those of the namespace.
    """

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
        """Return the name that the tool has in the prompt. It begins with the name of the tool's namespace, if there is
        one.
        """
        return full_name(self.name, self.namespace)

    @property
    def full_description(self) -> str | None:
        """Return the description that the tool has in the prompt: the description of its namespace, a named group of
        tools, and then its own, as far as they exist. None if there is neither.
        """
        texts = [text for text in (self.namespace_description, self.description) if text is not None]
        return "\n".join(texts) if texts else None


class FunctionTool(NamespacedTool):
    """A function that the model may call and the client runs. `parameters` is the JSON schema of the function's
    arguments.
    """

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(
        None,
        description="true: follow the schema exactly, or refuse the request. false: enforce as much of it as possible.",
    )


class ToolGrammar(StrictModel):
    """The format of the text that a custom tool takes: any text, or a text that matches a grammar, which is given as
    `definition` in the syntax of Lark or as a regular expression.
    """

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: NonEmptyText | None = None

    @model_validator(mode="after")
    def _has_a_grammar(self) -> Self:
        check_with_type(self.type, "grammar", syntax=self.syntax, definition=self.definition)
        return self


class CustomTool(NamespacedTool):
    """A tool that the model calls with a text instead of JSON arguments, for example with source code. The client runs
    it.
    """

    type: Literal["custom"]
    format: ToolGrammar | None = Field(None, description="Format of the tool's input; by default any text.")


class TypedTool(StrictModel):
    """Base class of OpenAI's own tools, which a request names only by their type. The type is also the name of the tool
    in the prompt.
    """

    type: str
    allowed_callers: AllowedCallers | None = None

    @property
    def full_name(self) -> str:
        """Return the name that the tool has in the prompt, which is its type."""
        return self.type


class ApplyPatchTool(TypedTool):
    """OpenAI's tool apply_patch, with which the model creates, updates and deletes files. The client applies the
    patches.
    """

    type: Literal["apply_patch"]


class LocalSkill(StrictModel):
    """A skill of the shell tool: a folder on the client's machine with instructions for some task. The model learns its
    name, description and path from the prompt, and reads it by shell commands.
    """

    name: Text
    description: Text
    path: Text


class LocalEnvironment(StrictModel):
    """The environment in which commands of the shell tool run: the client's own machine, with its skills."""

    type: Literal["local"]
    skills: Annotated[list[LocalSkill], elements(MAX_TOOLS)] | None = None


class ShellTool(TypedTool):
    """OpenAI's tool shell, with which the model runs shell commands on the client's machine."""

    type: Literal["shell"]
    environment: LocalEnvironment | None = Field(None, description="Only local: this server has no containers.")


class LocalShellTool(TypedTool):
    """OpenAI's older tool local_shell, with which the model runs one program at a time on the client's machine."""

    type: Literal["local_shell"]


class ToolSearchTool(TypedTool):
    """OpenAI's tool tool_search, with which the model finds tools that the prompt does not define at its beginning,
    those with `defer_loading`. The client searches and answers with definitions of tools.
    """

    type: Literal["tool_search"]
    execution: Literal["client"]
    description: Text | None = None
    parameters: WritableObject | None = Field(None, description="JSON schema of a search; by default paths of tools.")


class McpFilter(StrictModel):
    """Selects tools of an MCP tool server: by their names, by whether the tool server declares them read-only, or by
    both. A condition that is not given is met by all tools.
    """

    tool_names: Annotated[list[NonEmptyText], elements(MAX_TOOLS)] | None = None
    read_only: bool | None = None

    def matches(self, tool: ToolInfo) -> bool:
        """Return whether the filter selects `tool`."""
        is_named = self.tool_names is None or tool.name in self.tool_names
        return is_named and (self.read_only is None or tool.is_read_only == self.read_only)


class McpApproval(StrictModel):
    """Selects the tools of an MCP tool server whose calls the client wants to approve (`always`), and those whose calls
    it need not approve (`never`). `never` has precedence. For tools that neither selects, an approval is needed unless
    `always` is given.
    """

    always: McpFilter | None = None
    never: McpFilter | None = None


class McpTool(StrictModel):
    """An entry of a request's `tools` that names an MCP tool server. The model may call the server's tools, and this
    server runs the calls. The tool server is one of this server's configuration or, with `server_url`, one at a host
    that the operator allows.
    """

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
        """Return a name for this entry that no tool in a prompt can have, so that it can be compared with those of
        other tools. The tools of the MCP tool server have names of their own.
        """
        return f"mcp:{self.server_label}"

    def allows(self, tool: ToolInfo) -> bool:
        """Return whether the request lets the model call `tool`, a tool of this MCP tool server."""
        allowed = self.allowed_tools
        if isinstance(allowed, McpFilter):
            return allowed.matches(tool)
        return allowed is None or tool.name in allowed

    def wants_approval(self, tool: ToolInfo) -> bool:
        """Return whether the request wants the client to approve each call of `tool` before it is run."""
        rule = self.require_approval
        if isinstance(rule, McpApproval):
            if rule.never is not None and rule.never.matches(tool):
                return False
            return rule.always is None or rule.always.matches(tool)
        return rule != "never"

    def without_effect(self, *, has_address: bool) -> list[str]:
        """Return the names of the fields that are given in this entry but have no effect. `has_address` says that the
        tool server is the one at `server_url`; otherwise it is one of the configuration, and the fields for the URL
        have no effect, either.
        """
        address_fields = () if has_address else ("server_url", "authorization", "headers")
        return [
            field for field in (*address_fields, "connector_id", "tunnel_id", "defer_loading") if getattr(self, field)
        ]


class McpFunction(FunctionTool):
    """A tool of an MCP tool server, as the function that the model sees. This server creates it; requests do not
    contain it. Its namespace is the label of the tool server. With `needs_approval`, the client must approve each call.
    """

    needs_approval: bool = False


ResponseTool = Annotated[
    FunctionTool | CustomTool | ApplyPatchTool | ShellTool | LocalShellTool | ToolSearchTool | McpTool,
    TaggedUnion("tool"),
]


class NamespaceTool(StrictModel):
    """An entry of a request's `tools` that is a namespace: a named group of functions and custom tools."""

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
    """Yield all tools one by one. Each namespace, which is a named group of tools, is replaced by copies of its tools,
    to which its name and description are added.
    """
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            space = {"namespace": tool.name, "namespace_description": tool.description}
            yield from (inner.model_copy(update=space) for inner in tool.tools)
        else:
            yield tool


# Gives the text in the place of an item that brings tools.
Introduce = Callable[[JsonObject], str]


class ClientTool(ABC):
    """Converts one of OpenAI's own tools that clients run, such as shell, which the model sees as a function. There is
    one object of each subclass, in `CLIENT_TOOLS`.

    A subclass converts in three directions: the tool of a request to the function in the prompt, the model's call of
    this function to an item of the response, and items of earlier turns back to calls and results for the prompt.
    """

    tool: ClassVar[type[TypedTool]]
    # The types of the call's and the output's items.
    call: ClassVar[str]
    output: ClassVar[str]

    @property
    def name(self) -> str:
        """Return the name of the function that stands for the tool in the prompt, which is the type of the tool."""
        return str(get_args(self.tool.model_fields["type"].annotation)[0])

    @abstractmethod
    def function(self, tool: Any, deferred: Sequence[NamespacedTool]) -> JsonObject:
        """Return the definition of the function that stands for `tool` in the prompt: name, description and JSON schema
        of the parameters. `deferred` are the tools of the request that the model sees only after a tool search has
        found them; only the definition of tool_search uses them.
        """

    @abstractmethod
    def fields(self, arguments: Any) -> JsonObject:
        """Return the fields of the item for a call, made from `arguments`, the decoded arguments with which the model
        has called the function.
        """

    @abstractmethod
    def arguments(self, item: JsonObject) -> Any:
        """Return the arguments of the function for a call in an earlier turn, made from `item`, the item of the call.
        It is the inverse of `fields`.
        """

    @abstractmethod
    def result(self, item: JsonObject, introduce: Introduce) -> str:
        """Return the text that the model reads as the result of a call. `item` is the item with the tool's output.
        `introduce` returns the text that defines the tools which an item adds; only the result of tool_search uses it.
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
        """Return the definition of the function that stands for tool_search in the prompt. Its parameters are those
        that the request defines or, by default, a list of paths: names of tools or namespaces among `deferred`, the
        tools that can be found.
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
    """Return the text that the model reads for the output of one shell command: what it wrote to stdout and stderr, and
    the exit code or "timed out" if the command failed or wrote nothing.
    """
    outcome = output["outcome"]
    ended = "timed out" if outcome["type"] == "timeout" else f"exit code {outcome.get('exit_code', 0)}"
    texts = [output["stdout"], f"stderr:\n{output['stderr']}" if output["stderr"] else ""]
    is_told = ended != "exit code 0" or not any(texts)
    return "\n".join(text for text in (*texts, ended if is_told else "") if text)


def parsed_arguments(text: str) -> Any:
    """Decode the arguments of a call, a JSON text that the model has written. The text itself is returned if it is not
    JSON, which is possible for a tool search whose schema is not strict. An empty text stands for no arguments.
    """
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text
