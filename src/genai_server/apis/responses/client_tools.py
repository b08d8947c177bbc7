"""Tools that the client runs and that the Responses API defines by their type, such as apply_patch and shell.

A model sees each as a function. The function's name is the tool's type, and its parameters are the fields that OpenAI
publishes for the tool's calls. Calls and outputs of these tools are items of their own types.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, get_args

from genai_server.apis.responses.tool_schemas import (
    ApplyPatchTool,
    LocalShellTool,
    NamespacedTool,
    ShellTool,
    ToolSearchTool,
    TypedTool,
)
from genai_server.http.json_response import JsonObject

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
        paths = {one.namespace or one.name: one.namespace_description or one.description for one in deferred}
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
