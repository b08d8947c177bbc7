"""What the input of OpenAI's Responses API is made of, one class for each type of item."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from genai_server.openai_api.schemas.base import NonEmptyText, Text, Wire, elements, field_error, missing_error
from genai_server.openai_api.schemas.chat import MOST_MESSAGES, MOST_OF_NAME, MOST_PARTS, FunctionName

# A message of a chat may be several items: what is thought, said and called.
MOST_ITEMS = 4 * MOST_MESSAGES
Status = Literal["in_progress", "completed", "incomplete"]
# What the model calls OpenAI's tool of this type.
APPLY_PATCH = "apply_patch"


def full_name(name: str, namespace: str | None) -> str:
    """What the model calls a function, which in different namespaces may have the same name."""
    return f"{namespace}__{name}" if namespace else name


def check_full_name(name: str, namespace: str | None) -> None:
    """Raises for a function whose full name is longer than a name may be."""
    given = len(full_name(name, namespace))
    if given > MOST_OF_NAME:
        raise field_error(
            "namespace", f"and name, with __ between them, may have at most {MOST_OF_NAME} characters; given {given}"
        )


class InputText(Wire):
    """A piece of what the model is told; this server's models read text only."""

    type: Literal["input_text"]
    text: Text
    prompt_cache_breakpoint: Any = Field(None, description="Has no effect here.")


class OutputText(Wire):
    """A piece of what the model has said."""

    type: Literal["output_text"]
    text: Text
    annotations: Any = Field(None, description="Has no effect here: the model is not told.")
    logprobs: Any = Field(None, description="Likewise.")


class ReasoningText(Wire):
    """A piece of what the model has thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


Thoughts = Annotated[list[ReasoningText], elements(MOST_PARTS)]


class Item(Wire):
    """What all items may have when they come back; a null of any other name is nothing: OpenAI's client writes such out
    for all that its types have.
    """

    id: NonEmptyText | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name in cls.model_fields}


class ItemWithStatus(Item):
    """What most items may have, too."""

    status: Status | None = None


class MessageItem(ItemWithStatus):
    """One turn of the conversation; with role assistant, what the model has said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Annotated[list[InputText | OutputText], elements(MOST_PARTS)]
    phase: Any = Field(None, description="Has no effect here: the model is not told.")


class DirectCaller(Wire):
    """Who has made a call: the model itself, and no program of OpenAI's."""

    type: Literal["direct"]


class FunctionCallItem(ItemWithStatus):
    """A call that the model made; `arguments` is the text of a JSON object."""

    type: Literal["function_call"]
    call_id: NonEmptyText
    name: FunctionName
    arguments: Text
    namespace: FunctionName | None = Field(None, description="Of the function.")
    caller: DirectCaller | None = None

    @model_validator(mode="after")
    def _has_a_name_that_fits(self) -> Self:
        check_full_name(self.name, self.namespace)
        return self


class FunctionCallOutputItem(ItemWithStatus):
    """What the call with this `call_id` gave."""

    type: Literal["function_call_output"]
    call_id: NonEmptyText
    output: Text | Annotated[list[InputText], elements(MOST_PARTS)]
    name: NonEmptyText | None = None
    caller: DirectCaller | None = None


class CustomToolCallItem(ItemWithStatus):
    """A call of a custom tool that the model made."""

    type: Literal["custom_tool_call"]
    call_id: NonEmptyText
    name: FunctionName
    input: Text
    caller: DirectCaller | None = None


class CustomToolCallOutputItem(ItemWithStatus):
    """What the call of a custom tool with this `call_id` gave."""

    type: Literal["custom_tool_call_output"]
    call_id: NonEmptyText
    output: Text | Annotated[list[InputText], elements(MOST_PARTS)]
    name: NonEmptyText | None = None
    caller: DirectCaller | None = None


class PatchOperation(Wire):
    """What a patch does to one file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: NonEmptyText
    diff: Text | None = Field(None, description="In the V4A format; not with type delete_file.")

    @model_validator(mode="after")
    def _has_a_diff(self) -> Self:
        if (self.diff is None) != (self.type == "delete_file"):
            rule = "is only allowed with type create_file or update_file"
            raise missing_error("diff", f"with type {self.type}") if self.diff is None else field_error("diff", rule)
        return self


class ApplyPatchCallItem(ItemWithStatus):
    """A call of the tool apply_patch that the model made."""

    type: Literal["apply_patch_call"]
    call_id: NonEmptyText
    operation: PatchOperation
    caller: DirectCaller | None = None
    created_by: Any = Field(None, description="Has no effect here.")


class ApplyPatchCallOutputItem(Item):
    """What became of the patch with this `call_id`."""

    type: Literal["apply_patch_call_output"]
    call_id: NonEmptyText
    status: Literal["completed", "failed"]
    output: Text | None = None
    caller: DirectCaller | None = None
    created_by: Any = Field(None, description="Has no effect here.")


class CompactionItem(ItemWithStatus):
    """What /v1/responses/compact has made of the turns before."""

    type: Literal["compaction"]
    encrypted_content: Text = Field(description="As this server gave it.")
    created_by: Any = Field(None, description="Has no effect here.")


class ReasoningItem(ItemWithStatus):
    """What the model thought before; it is told the first of content, encrypted content and summary that is there."""

    type: Literal["reasoning"]
    summary: Thoughts = []
    content: Thoughts | None = None
    encrypted_content: Text | None = Field(None, description="As this server gave it.")


class ItemReference(Wire):
    """An item of a response that is kept: of its input, or of its output."""

    type: Literal["item_reference"] | None = None
    id: NonEmptyText


def _form_of(given: Any) -> str | None:
    """Which of its two forms an input has."""
    return "text" if isinstance(given, str) else "items" if isinstance(given, list) else None


def _type_of(item: Any) -> Any:
    """An item's type, or what the item is without one; None for what is no item."""
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
    Annotated[Text, Tag("text")] | Annotated[list[InputItem], elements(MOST_ITEMS, least=1), Tag("items")],
    Discriminator(_form_of, custom_error_type="input", custom_error_message="must be a text or a list of items"),
]
