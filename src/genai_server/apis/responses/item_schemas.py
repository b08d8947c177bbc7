"""Input items of OpenAI's Responses API: one class for each type that this server supports, and one class for all
others.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from genai_server.apis.responses.tools import ItemTool
from genai_server.generation.parameters.base import (
    NonEmptyText,
    StrictModel,
    TaggedUnion,
    Text,
    elements,
    field_error,
    members,
    missing_error,
    writable,
)
from genai_server.generation.parameters.chat_messages import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, ImageDetail, InputAudio
from genai_server.http.json_response import JsonObject

# A chat message may correspond to several items: reasoning, text and tool calls.
MAX_ITEMS = 4 * MAX_MESSAGES
# Environment variables of a shell call.
_MAX_VARIABLES = 1024
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(StrictModel):
    """A text in a message or in the output of a tool."""

    type: Literal["input_text"]
    text: Text
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")


class InputImage(StrictModel):
    """An image in a message or in the output of a tool, for models that take images."""

    type: Literal["input_image"]
    image_url: NonEmptyText | None = Field(
        None, description="A data URL, such as data:image/png;base64,…, or the address of an image on an allowed host."
    )
    detail: ImageDetail | None = None
    file_id: Any = Field(None, description="Not supported: this server stores no files.")
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")

    @model_validator(mode="after")
    def _has_a_url(self) -> Self:
        if self.file_id is not None:
            raise field_error(
                "file_id", "is not supported: this server stores no files; send the image as a data URL in image_url"
            )
        if self.image_url is None:
            raise missing_error("image_url", "with type input_image")
        return self


class InputAudioPart(StrictModel):
    """Audio in a message or in the output of a tool, for models that take audio."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class OutputText(StrictModel):
    """A part of a text that the model has written."""

    type: Literal["output_text"]
    text: Text
    annotations: Any = Field(None, description="No effect: not part of the prompt.")
    logprobs: Any = Field(None, description="No effect: not part of the prompt.")


InputPart = Annotated[InputText | InputImage | InputAudioPart, TaggedUnion("part")]
MessagePart = Annotated[InputText | InputImage | InputAudioPart | OutputText, TaggedUnion("part")]


class ReasoningText(StrictModel):
    """A part of the model's reasoning, or of a summary of the reasoning. Other servers use other values of `type`."""

    type: NonEmptyText
    text: Text


Thoughts = Annotated[list[ReasoningText], elements(MAX_PARTS)]


class Item(StrictModel):
    """Fields of all items. Unknown fields that are null are ignored, because OpenAI's client sends null for each field
    of its types that is not set.
    """

    type: str
    id: NonEmptyText | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        field_names = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in item.items() if value is not None or name in field_names}


class ItemWithStatus(Item):
    """Fields of items that have a status."""

    status: Status | None = None


class MessageItem(ItemWithStatus):
    """A message of the conversation. With role assistant, it is a text that the model has written."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Annotated[list[MessagePart], elements(MAX_PARTS)] | None = None
    phase: Any = Field(None, description="No effect: not part of the prompt.")

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default_type(cls, value: Any) -> Any:
        return {**value, "type": "message"} if isinstance(value, dict) and value.get("type") is None else value

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise missing_error("content", f"with role {self.role}")
        return self


class CallItem(ItemWithStatus):
    """Fields of all types of calls of tools that the client runs."""

    call_id: NonEmptyText
    async_: Any = Field(None, alias="async", description="No effect: not part of the prompt.")
    caller: Any = Field(None, description="No effect: not part of the prompt.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class CallOutputItem(Item):
    """Fields of all types of outputs of tools that the client runs."""

    caller: Any = Field(None, description="No effect: not part of the prompt.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class FunctionCallItem(CallItem):
    """A function call that the model has made. `arguments` is the text of a JSON object, unless the call was cut off or
    invalid.
    """

    type: Literal["function_call"]
    name: NonEmptyText
    arguments: Text
    namespace: NonEmptyText | None = Field(None, description="Namespace of the function.")


class FunctionCallOutputItem(CallOutputItem):
    """The output of the function call with this `call_id`."""

    type: Literal["function_call_output"]
    call_id: NonEmptyText | None = None
    output: Text | Annotated[list[InputPart], elements(MAX_PARTS)]
    name: NonEmptyText | None = None
    namespace: NonEmptyText | None = Field(None, description="No effect: the call has it.")
    status: Status | None = None


class CustomToolCallItem(CallItem):
    """A call of a custom tool that the model has made."""

    type: Literal["custom_tool_call"]
    name: NonEmptyText
    input: Text
    namespace: NonEmptyText | None = Field(None, description="Namespace of the tool.")


class CustomToolCallOutputItem(CallOutputItem):
    """The output of the custom tool call with this `call_id`."""

    type: Literal["custom_tool_call_output"]
    call_id: NonEmptyText
    output: Text | Annotated[list[InputPart], elements(MAX_PARTS)]
    name: NonEmptyText | None = None
    status: Status | None = None


class PatchOperation(StrictModel):
    """The change of one file by a patch."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: NonEmptyText
    diff: Text | None = Field(None, description="The change in V4A format; not allowed with type delete_file.")

    @model_validator(mode="after")
    def _has_a_diff(self) -> Self:
        if (self.diff is None) != (self.type == "delete_file"):
            rule = "is only allowed with type create_file or update_file"
            raise missing_error("diff", f"with type {self.type}") if self.diff is None else field_error("diff", rule)
        return self


class ApplyPatchCallItem(CallItem):
    """A call of apply_patch that the model has made."""

    type: Literal["apply_patch_call"]
    operation: PatchOperation


class ApplyPatchCallOutputItem(CallOutputItem):
    """The output of the apply_patch call with this `call_id`."""

    type: Literal["apply_patch_call_output"]
    call_id: NonEmptyText
    status: Literal["completed", "failed"]
    output: Text | None = None


class ShellAction(StrictModel):
    """The commands of a shell call, and their limits."""

    commands: Annotated[list[Text], elements(MAX_PARTS)]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCallItem(CallItem):
    """A call of shell that the model has made."""

    type: Literal["shell_call"]
    action: ShellAction
    environment: Any = Field(None, description="No effect: not part of the prompt.")


class ShellOutcome(StrictModel):
    """How a command ended."""

    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class ShellOutput(StrictModel):
    """The output of one command, and how the command ended."""

    stdout: Text
    stderr: Text
    outcome: ShellOutcome
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class ShellCallOutputItem(CallOutputItem):
    """The output of the shell call with this `call_id`."""

    type: Literal["shell_call_output"]
    call_id: NonEmptyText
    output: Annotated[list[ShellOutput], elements(MAX_PARTS)]
    max_output_length: int | None = Field(None, description="No effect: the client has cut the output.")
    status: Status | Literal["failed"] | None = None


class LocalShellAction(StrictModel):
    """The command of a local_shell call."""

    type: Literal["exec"]
    command: Annotated[list[Text], elements(MAX_PARTS)]
    env: Annotated[dict[str, Text], Field(max_length=_MAX_VARIABLES), members(_MAX_VARIABLES)] | None = None
    timeout_ms: int | None = None
    user: Text | None = None
    working_directory: Text | None = None


class LocalShellCallItem(CallItem):
    """A call of local_shell that the model has made."""

    type: Literal["local_shell_call"]
    action: LocalShellAction


class LocalShellCallOutputItem(CallOutputItem):
    """The output of a local_shell call. The id of the call is in `id` in OpenAI's API, and in `call_id` in agents'
    requests.
    """

    type: Literal["local_shell_call_output"]
    call_id: NonEmptyText | None = None
    output: Text
    status: Status | None = None

    @model_validator(mode="after")
    def _has_an_id(self) -> Self:
        self.call_id = self.call_id or self.id
        if self.call_id is None:
            raise missing_error("call_id", "with type local_shell_call_output")
        return self


class ToolSearchCallItem(CallItem):
    """A search for tools that the model has requested and the client runs."""

    type: Literal["tool_search_call"]
    arguments: Annotated[Any, AfterValidator(writable)] = None
    execution: Literal["server", "client"] | None = None


class ToolSearchOutputItem(CallOutputItem):
    """The tools that a tool search has found. From this item on, the model may call them."""

    type: Literal["tool_search_output"]
    call_id: NonEmptyText
    tools: Annotated[list[ItemTool], elements(MAX_TOOLS)]
    execution: Literal["server", "client"] | None = None
    status: Status | None = None


class AdditionalToolsItem(Item):
    """Further tools. From this item on, the model may call them."""

    type: Literal["additional_tools"]
    role: Any = Field(None, description="No effect: not part of the prompt.")
    tools: Annotated[list[ItemTool], elements(MAX_TOOLS)]


class CompactionItem(ItemWithStatus):
    """A summary that replaces earlier turns, made by /v1/responses/compact."""

    type: Literal["compaction"]
    encrypted_content: Text = Field(description="Value returned by this server, unchanged.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class ReasoningItem(ItemWithStatus):
    """Reasoning of an earlier turn. The prompt contains `content`, or else `encrypted_content`, or else `summary`."""

    type: Literal["reasoning"]
    summary: Thoughts | None = None
    content: Thoughts | None = None
    encrypted_content: Text | None = Field(None, description="Value returned by this server, unchanged.")


class ItemReference(StrictModel):
    """Refers to an input or output item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: NonEmptyText


# Types of the items above. All others are items of other providers.
KNOWN_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "shell_call",
    "shell_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "reasoning",
    "compaction",
    "item_reference",
)
_SEARCHES = ("tool_search_call", "tool_search_output")


class ForeignItem(BaseModel):
    """An item of any other type, such as a call of a tool that only another provider has. The model reads a note with
    the item's fields.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    type: NonEmptyText = Field(json_schema_extra={"not": {"enum": list(KNOWN_TYPES)}})
    id: NonEmptyText | None = None

    @model_validator(mode="after")
    def _is_writable(self) -> Self:
        writable(self.fields)
        return self

    @property
    def fields(self) -> JsonObject:
        """All fields of the item except the id."""
        return {"type": self.type, **(self.model_extra or {})}


def _form_of(value: Any) -> str | None:
    """ "text" or "items", the two forms of an input; None for anything else."""
    return "text" if isinstance(value, str) else "items" if isinstance(value, list) else None


def _type_of(item: Any) -> str | None:
    """The tag that selects the class of an item in the union `InputItem`; None if the value is not an item."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference"
    if not isinstance(kind, str):
        return None
    # A search that another provider ran has no id of a call.
    if kind not in KNOWN_TYPES or (kind in _SEARCHES and item.get("call_id") is None):
        return "foreign"
    return kind


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[CustomToolCallItem, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ApplyPatchCallItem, Tag("apply_patch_call")]
    | Annotated[ApplyPatchCallOutputItem, Tag("apply_patch_call_output")]
    | Annotated[ShellCallItem, Tag("shell_call")]
    | Annotated[ShellCallOutputItem, Tag("shell_call_output")]
    | Annotated[LocalShellCallItem, Tag("local_shell_call")]
    | Annotated[LocalShellCallOutputItem, Tag("local_shell_call_output")]
    | Annotated[ToolSearchCallItem, Tag("tool_search_call")]
    | Annotated[ToolSearchOutputItem, Tag("tool_search_output")]
    | Annotated[AdditionalToolsItem, Tag("additional_tools")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[ForeignItem, Tag("foreign")],
    Discriminator(
        _type_of, custom_error_type="item", custom_error_message="must be an item: an object with a type or a role"
    ),
]
Input = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[InputItem], elements(MAX_ITEMS, min_length=1), Tag("items")],
    Discriminator(_form_of, custom_error_type="input", custom_error_message="must be a text or a list of items"),
]
