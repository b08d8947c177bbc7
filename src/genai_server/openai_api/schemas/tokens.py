"""The bodies of the endpoints between text and token ids, in vLLM's form and in llama.cpp's."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from genai_server.openai_api.schemas.base import Text, Wire, elements
from genai_server.openai_api.schemas.chat import Messages, Tools

# More than any prompt has.
MOST_TOKENS = 1024 * 1024
_SOURCES = ("prompt", "content", "messages")
_ONLY_WITH = {
    "add_special_tokens": "prompt",
    "add_special": "content",
    "parse_special": "content",
    "tools": "messages",
    "chat_template_kwargs": "messages",
}


class TokenizeRequest(Wire):
    """Body of /tokenize: one of `prompt`, `content` (llama.cpp's name for it) and `messages`."""

    model: str | None = Field(None, description="The served model's id.")
    prompt: Text | None = None
    content: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(None, description="With `prompt`: also those around it; true if left out.")
    add_special: bool | None = Field(None, description="With `content`: also those around it; false if left out.")
    parse_special: bool | None = Field(None, description="With `content`: false takes special tokens for text.")
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    with_pieces: bool | None = Field(None, description="Also what each token stands for.")

    @field_validator(*_SOURCES)
    @classmethod
    def _only_one(cls, value: Any, info: ValidationInfo) -> Any:
        other = next((name for name in _SOURCES if name != info.field_name and info.data.get(name) is not None), None)
        if value is not None and other is not None:
            raise ValueError(f"is not allowed beside {other}")
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
    """A prompt as /v1/chat/completions/render and /v1/completions/render give it."""

    token_ids: list[int]


class TokenizeResponse(BaseModel):
    """Answer of /tokenize; `pieces` only if asked for, bytes where a token's are no characters by themselves."""

    tokens: list[int]
    count: int
    max_model_len: int
    pieces: list[str | list[int]] = Field(default_factory=list, description="Only if they are asked for.")


class TokenizerInfo(BaseModel):
    """Answer of /tokenizer_info, with vLLM's names; null is what the model does not have."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class DetokenizeRequest(Wire):
    """Body of /detokenize."""

    model: str | None = Field(None, description="The served model's id.")
    tokens: Annotated[list[int], elements(MOST_TOKENS)]


class DetokenizeResponse(BaseModel):
    """Answer of /detokenize, under vLLM's name and under llama.cpp's."""

    prompt: str
    content: str


class ApplyTemplateRequest(Wire):
    """Body of /apply-template."""

    model: str | None = Field(None, description="The served model's id.")
    messages: Messages
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ApplyTemplateResponse(BaseModel):
    """Answer of /apply-template."""

    prompt: str
