"""Schemas of the input items of OpenAI's Responses API, with which request bodies are validated: messages, reasoning,
calls of tools and their outputs, summaries, and references to stored items.

Each type of item that this server supports has a class of its own. `ForeignItem` stands for all other types.
`InputItem` is the union of these classes, and `Input` is the type of a request's field `input`: a text or a list of
items.
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
    """A content part with a text that the model did not write, in a message or in the output of a tool."""

    type: Literal["input_text"]
    text: Text
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")


class InputImage(StrictModel):
    """A content part with an image, in a message or in the output of a tool, for models that take images. `image_url`
    is required; the reference `file_id` to a stored file is refused.
    """

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
    """A content part with audio, in a message or in the output of a tool, for models that take audio."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class OutputText(StrictModel):
    """A content part with a text that the model has written, in an earlier message of the assistant."""

    type: Literal["output_text"]
    text: Text
    annotations: Any = Field(None, description="No effect: not part of the prompt.")
    logprobs: Any = Field(None, description="No effect: not part of the prompt.")


InputPart = Annotated[InputText | InputImage | InputAudioPart, TaggedUnion("part")]
MessagePart = Annotated[InputText | InputImage | InputAudioPart | OutputText, TaggedUnion("part")]


class ReasoningText(StrictModel):
    """A part of an earlier reasoning item: a text of the model's reasoning, or of a summary of it. `type` may be any
    text, because other servers name such parts differently than OpenAI.
    """

    type: NonEmptyText
    text: Text


Thoughts = Annotated[list[ReasoningText], elements(MAX_PARTS)]


class Item(StrictModel):
    """Base class of all items that have a class of their own. It has their common fields `type` and `id`.

    Unknown fields of an item are refused, except that unknown fields with the value null are ignored, because OpenAI's
    client sends null for each field of its own types that is not set.
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
    """Base class of items with the optional field `status`: in_progress, completed or incomplete."""

    status: Status | None = None


class MessageItem(ItemWithStatus):
    """A message of the conversation: a role, and as content a text or a list of content parts. A message with the role
    assistant is a text that the model has written, and only such a message may have no content.
    """

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
    """Base class of items that are calls of tools which the client runs. `call_id` connects a call with its output."""

    call_id: NonEmptyText
    async_: Any = Field(None, alias="async", description="No effect: not part of the prompt.")
    caller: Any = Field(None, description="No effect: not part of the prompt.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class CallOutputItem(Item):
    """Base class of items that are outputs of tools which the client has run. It has fields that OpenAI's API defines
    for all such items and that have no effect here.
    """

    caller: Any = Field(None, description="No effect: not part of the prompt.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class FunctionCallItem(CallItem):
    """A function call that the model has made in an earlier turn. `arguments` is the text of a JSON object, or any
    other text if the call was cut off or invalid.
    """

    type: Literal["function_call"]
    name: NonEmptyText
    arguments: Text
    namespace: NonEmptyText | None = Field(None, description="Namespace of the function.")


class FunctionCallOutputItem(CallOutputItem):
    """What a function has returned to the client: a text or a list of content parts. `call_id` is that of the
    FunctionCallItem, the call of the function.
    """

    type: Literal["function_call_output"]
    call_id: NonEmptyText | None = None
    output: Text | Annotated[list[InputPart], elements(MAX_PARTS)]
    name: NonEmptyText | None = None
    namespace: NonEmptyText | None = Field(None, description="No effect: the call has it.")
    status: Status | None = None


class CustomToolCallItem(CallItem):
    """A call of a custom tool that the model has made in an earlier turn. A custom tool takes a text, `input`, and not
    JSON arguments.
    """

    type: Literal["custom_tool_call"]
    name: NonEmptyText
    input: Text
    namespace: NonEmptyText | None = Field(None, description="Namespace of the tool.")


class CustomToolCallOutputItem(CallOutputItem):
    """What a custom tool has returned to the client: a text or a list of content parts. `call_id` is that of the
    CustomToolCallItem, the call of the tool.
    """

    type: Literal["custom_tool_call_output"]
    call_id: NonEmptyText
    output: Text | Annotated[list[InputPart], elements(MAX_PARTS)]
    name: NonEmptyText | None = None
    status: Status | None = None


class PatchOperation(StrictModel):
    """What a call of the tool apply_patch does: it creates, updates or deletes the file `path`. `diff` is required
    except for a deletion, which must not have it.
    """

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
    """A call of OpenAI's tool apply_patch, which changes one file, made by the model in an earlier turn."""

    type: Literal["apply_patch_call"]
    operation: PatchOperation


class ApplyPatchCallOutputItem(CallOutputItem):
    """The client's report about an apply_patch call: whether the patch was applied, and an optional text for the model.
    `call_id` is that of the call.
    """

    type: Literal["apply_patch_call_output"]
    call_id: NonEmptyText
    status: Literal["completed", "failed"]
    output: Text | None = None


class ShellAction(StrictModel):
    """What a call of the tool shell runs: commands, how many milliseconds they may take, and how many characters of the
    output of each command the model wants. Both limits are optional.
    """

    commands: Annotated[list[Text], elements(MAX_PARTS)]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCallItem(CallItem):
    """A call of OpenAI's tool shell, made by the model in an earlier turn. The client runs its commands."""

    type: Literal["shell_call"]
    action: ShellAction
    environment: Any = Field(None, description="No effect: not part of the prompt.")


class ShellOutcome(StrictModel):
    """How a shell command ended: it exited with `exit_code`, or it was stopped because it took too long (`timeout`)."""

    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class ShellOutput(StrictModel):
    """The result of one command of a shell call: what the command wrote to stdout and stderr, and how it ended."""

    stdout: Text
    stderr: Text
    outcome: ShellOutcome
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class ShellCallOutputItem(CallOutputItem):
    """The results of a shell call, one for each command. `call_id` is that of the ShellCallItem, the call."""

    type: Literal["shell_call_output"]
    call_id: NonEmptyText
    output: Annotated[list[ShellOutput], elements(MAX_PARTS)]
    max_output_length: int | None = Field(None, description="No effect: the client has cut the output.")
    status: Status | Literal["failed"] | None = None


class LocalShellAction(StrictModel):
    """What a call of the tool local_shell runs: one program with its arguments, and optionally its environment
    variables, user, working directory and time limit in milliseconds.
    """

    type: Literal["exec"]
    command: Annotated[list[Text], elements(MAX_PARTS)]
    env: Annotated[dict[str, Text], Field(max_length=_MAX_VARIABLES), members(_MAX_VARIABLES)] | None = None
    timeout_ms: int | None = None
    user: Text | None = None
    working_directory: Text | None = None


class LocalShellCallItem(CallItem):
    """A call of local_shell, OpenAI's older shell tool, made by the model in an earlier turn. The client runs it."""

    type: Literal["local_shell_call"]
    action: LocalShellAction


class LocalShellCallOutputItem(CallOutputItem):
    """What the command of a local_shell call has written, as a text. The id of the call is in the field `id` in
    OpenAI's API, and in `call_id` in requests of agents; one of them is required.
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
    """A call of OpenAI's tool tool_search: the model asks for further tools, and the client searches for them."""

    type: Literal["tool_search_call"]
    arguments: Annotated[Any, AfterValidator(writable)] = None
    execution: Literal["server", "client"] | None = None


class ToolSearchOutputItem(CallOutputItem):
    """The definitions of the tools that the client has found in a tool search. The model may call these tools from this
    item on.
    """

    type: Literal["tool_search_output"]
    call_id: NonEmptyText
    tools: Annotated[list[ItemTool], elements(MAX_TOOLS)]
    execution: Literal["server", "client"] | None = None
    status: Status | None = None


class AdditionalToolsItem(Item):
    """Definitions of tools that the client adds within a conversation. The model may call these tools from this item
    on.
    """

    type: Literal["additional_tools"]
    role: Any = Field(None, description="No effect: not part of the prompt.")
    tools: Annotated[list[ItemTool], elements(MAX_TOOLS)]


class CompactionItem(ItemWithStatus):
    """A summary that stands for earlier turns of the conversation. It was returned by /v1/responses/compact, the
    endpoint that shortens conversations.
    """

    type: Literal["compaction"]
    encrypted_content: Text = Field(description="Value returned by this server, unchanged.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class ReasoningItem(ItemWithStatus):
    """The model's reasoning in an earlier turn. The prompt contains `content` or, without it, the text in
    `encrypted_content` or, without both, `summary`.
    """

    type: Literal["reasoning"]
    summary: Thoughts | None = None
    content: Thoughts | None = None
    encrypted_content: Text | None = Field(None, description="Value returned by this server, unchanged.")


class ItemReference(StrictModel):
    """An item that stands for a stored one: the input or output item with this id of a stored response. A request is
    converted as if it had the stored item in its place.
    """

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
    """An item of a type that this server does not support, such as a call of a tool that only another provider has. It
    may have any fields. The model reads a note: a text with the item's type and fields.
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
        """Return all fields of the item, including `type` and those without a definition, but without `id`."""
        return {"type": self.type, **(self.model_extra or {})}


def _form_of(value: Any) -> str | None:
    """Return the form of a request's field `input`: "text" for a string, "items" for a list, and None for any other
    value, which is then refused.
    """
    return "text" if isinstance(value, str) else "items" if isinstance(value, list) else None


def _type_of(item: Any) -> str | None:
    """Return the tag of the class in the union `InputItem` with which `item` is validated: the type of a supported
    item, or "foreign" for any other type. None if the value is not an item, which is then refused.

    An item without a type is a message if it has a role, and otherwise a reference to a stored item.
    """
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
