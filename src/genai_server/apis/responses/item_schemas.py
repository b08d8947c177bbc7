"""Input items of OpenAI's Responses API, one class for each type."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from genai_server.apis.shared.base import ByType, NonEmptyText, Text, Wire, elements, field_error, missing_error
from genai_server.apis.shared.chat_messages import (
    MAX_MESSAGES,
    MAX_NAME_LENGTH,
    MAX_PARTS,
    DirectCaller,
    FunctionName,
    ImageDetail,
    InputAudio,
)

# A chat message may correspond to several items: reasoning, text and tool calls.
MAX_ITEMS = 4 * MAX_MESSAGES
Status = Literal["in_progress", "completed", "incomplete"]
# Name in the prompt of OpenAI's tool of this type.
APPLY_PATCH = "apply_patch"


def full_name(name: str, namespace: str | None) -> str:
    """The name of a function in the prompt. Functions in different namespaces may share a name."""
    return f"{namespace}__{name}" if namespace else name


def check_full_name(name: str, namespace: str | None) -> None:
    """Raises if a function's full name is too long."""
    given = len(full_name(name, namespace))
    if given > MAX_NAME_LENGTH:
        raise field_error(
            "namespace", f"and name, with __ between them, may have at most {MAX_NAME_LENGTH} characters; given {given}"
        )


class InputText(Wire):
    """Text in a message or in a tool's result."""

    type: Literal["input_text"]
    text: Text
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")


class InputImage(Wire):
    """An image in a message or in a tool's result, for models that take images."""

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


class InputAudioPart(Wire):
    """A sound in a message or in a tool's result, for models that take sounds."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class OutputText(Wire):
    """One part of the model's text."""

    type: Literal["output_text"]
    text: Text
    annotations: Any = Field(None, description="No effect: not part of the prompt.")
    logprobs: Any = Field(None, description="No effect: not part of the prompt.")


InputPart = Annotated[InputText | InputImage | InputAudioPart, ByType("part")]
MessagePart = Annotated[InputText | InputImage | InputAudioPart | OutputText, ByType("part")]


class ReasoningText(Wire):
    """One part of the model's reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


Thoughts = Annotated[list[ReasoningText], elements(MAX_PARTS)]


class Item(Wire):
    """Fields of all items. Unknown fields that are null are ignored: OpenAI's client writes out a null for each field
    of its types.
    """

    id: NonEmptyText | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name in cls.model_fields}


class ItemWithStatus(Item):
    """Fields of most items."""

    status: Status | None = None


class MessageItem(ItemWithStatus):
    """One turn of the conversation; with role assistant, the model's text."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Annotated[list[MessagePart], elements(MAX_PARTS)]
    phase: Any = Field(None, description="No effect: not part of the prompt.")


class FunctionCallItem(ItemWithStatus):
    """A function call made by the model. `arguments` is a JSON object as text."""

    type: Literal["function_call"]
    call_id: NonEmptyText
    name: FunctionName
    arguments: Text
    namespace: FunctionName | None = Field(None, description="Namespace of the function.")
    caller: DirectCaller | None = None

    @model_validator(mode="after")
    def _has_a_name_that_fits(self) -> Self:
        check_full_name(self.name, self.namespace)
        return self


class FunctionCallOutputItem(ItemWithStatus):
    """The result of the call with this `call_id`."""

    type: Literal["function_call_output"]
    call_id: NonEmptyText
    output: Text | Annotated[list[InputPart], elements(MAX_PARTS)]
    name: NonEmptyText | None = None
    caller: DirectCaller | None = None


class CustomToolCallItem(ItemWithStatus):
    """A custom tool call made by the model."""

    type: Literal["custom_tool_call"]
    call_id: NonEmptyText
    name: FunctionName
    input: Text
    caller: DirectCaller | None = None


class CustomToolCallOutputItem(ItemWithStatus):
    """The result of the custom tool call with this `call_id`."""

    type: Literal["custom_tool_call_output"]
    call_id: NonEmptyText
    output: Text | Annotated[list[InputPart], elements(MAX_PARTS)]
    name: NonEmptyText | None = None
    caller: DirectCaller | None = None


class PatchOperation(Wire):
    """The change that a patch makes to one file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: NonEmptyText
    diff: Text | None = Field(None, description="The change in V4A format; not allowed with type delete_file.")

    @model_validator(mode="after")
    def _has_a_diff(self) -> Self:
        if (self.diff is None) != (self.type == "delete_file"):
            rule = "is only allowed with type create_file or update_file"
            raise missing_error("diff", f"with type {self.type}") if self.diff is None else field_error("diff", rule)
        return self


class ApplyPatchCallItem(ItemWithStatus):
    """An apply_patch call made by the model."""

    type: Literal["apply_patch_call"]
    call_id: NonEmptyText
    operation: PatchOperation
    caller: DirectCaller | None = None
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class ApplyPatchCallOutputItem(Item):
    """The result of the patch with this `call_id`."""

    type: Literal["apply_patch_call_output"]
    call_id: NonEmptyText
    status: Literal["completed", "failed"]
    output: Text | None = None
    caller: DirectCaller | None = None
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class CompactionItem(ItemWithStatus):
    """The compacted form of earlier turns, made by /v1/responses/compact."""

    type: Literal["compaction"]
    encrypted_content: Text = Field(description="Value returned by this server, unchanged.")
    created_by: Any = Field(None, description="Accepted, but has no effect.")


class ReasoningItem(ItemWithStatus):
    """Earlier reasoning. The prompt contains `content`, else `encrypted_content`, else `summary`."""

    type: Literal["reasoning"]
    summary: Thoughts = []
    content: Thoughts | None = None
    encrypted_content: Text | None = Field(None, description="Value returned by this server, unchanged.")


class ItemReference(Wire):
    """Refers to an input or output item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: NonEmptyText


def _form_of(given: Any) -> str | None:
    """The form of an input: text or items."""
    return "text" if isinstance(given, str) else "items" if isinstance(given, list) else None


def _type_of(item: Any) -> Any:
    """An item's type, inferred if absent; None if the value is not an item."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message" if "role" in item else "item_reference")
    return "item_reference" if kind is None else str(kind)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[CustomToolCallItem, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ApplyPatchCallItem, Tag("apply_patch_call")]
    | Annotated[ApplyPatchCallOutputItem, Tag("apply_patch_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _type_of,
        custom_error_type="item",
        custom_error_message="must be an item of type message, function_call, function_call_output, "
        "custom_tool_call, custom_tool_call_output, apply_patch_call, apply_patch_call_output, reasoning, compaction "
        "or item_reference",
    ),
]
Input = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[InputItem], elements(MAX_ITEMS, min_length=1), Tag("items")],
    Discriminator(_form_of, custom_error_type="input", custom_error_message="must be a text or a list of items"),
]
