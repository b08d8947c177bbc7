"""Bodies of the endpoints that convert between text and token ids, in vLLM's and llama.cpp's formats."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from genai_server.generation.parameters.base import NullFields, Text, elements
from genai_server.generation.parameters.chat_messages import Messages, Tools
from genai_server.generation.parameters.completion_body import MAX_TOKENS

_SOURCES = ("prompt", "content", "messages")
_ONLY_WITH = {
    "add_special_tokens": "prompt",
    "add_special": "content",
    "parse_special": "content",
    "tools": "messages",
    "chat_template_kwargs": "messages",
}


class TokenizeRequest(NullFields):
    """Body of /tokenize, with exactly one of `prompt`, `content` (llama.cpp's name for it) and `messages`."""

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    prompt: Text | None = None
    content: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(
        None, description="With `prompt`: add the special tokens around it; true by default."
    )
    add_special: bool | None = Field(
        None, description="With `content`: add the special tokens around it; false by default."
    )
    parse_special: bool | None = Field(None, description="With `content`: false encodes special tokens as plain text.")
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    with_pieces: bool | None = Field(None, description="Also return the text of each token.")

    @field_validator(*_SOURCES)
    @classmethod
    def _only_one(cls, value: Any, info: ValidationInfo) -> Any:
        other = next((name for name in _SOURCES if name != info.field_name and info.data.get(name) is not None), None)
        if value is not None and other is not None:
            raise ValueError(f"cannot be combined with {other}")
        return value

    @field_validator(*_ONLY_WITH)
    @classmethod
    def _only_with(cls, value: Any, info: ValidationInfo) -> Any:
        source = _ONLY_WITH[info.field_name or ""]
        if value is not None and info.data.get(source) is None:
            raise ValueError(f"is only allowed with {source}")
        return value

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if all(getattr(self, name) is None for name in _SOURCES):
            raise ValueError("must have one of prompt, content and messages")
        return self


class RenderedPrompt(BaseModel):
    """The tokens of a prompt, as /v1/chat/completions/render and /v1/completions/render return them."""

    token_ids: list[int]


class TokenizeResponse(BaseModel):
    """Response of /tokenize. In `pieces`, a token whose bytes are not valid UTF-8 on their own is a list of bytes."""

    tokens: list[int]
    count: int
    max_model_len: int | None = Field(description="null if it is unknown until an engine has loaded the model.")
    pieces: list[str | list[int]] = Field(default_factory=list, description="Only with with_pieces.")


class TokenizerInfo(BaseModel):
    """Response of /tokenizer_info, with vLLM's field names. Fields are null if the model has no such token or no
    template.
    """

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class DetokenizeRequest(NullFields):
    """Body of /detokenize."""

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    tokens: Annotated[list[int], elements(MAX_TOKENS)]


class DetokenizeResponse(BaseModel):
    """Response of /detokenize. The text is in vLLM's field `prompt` and in llama.cpp's field `content`."""

    prompt: str
    content: str


class ApplyTemplateRequest(NullFields):
    """Body of /apply-template."""

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    messages: Messages
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ApplyTemplateResponse(BaseModel):
    """Response of /apply-template."""

    prompt: str
