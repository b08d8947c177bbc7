"""Bodies of Ollama's API (https://docs.ollama.com/api)."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from genai_server.ollama_api.duration import seconds
from genai_server.openai_api.schemas.base import (
    JsonObject,
    NonEmptyText,
    Text,
    Wire,
    WritableObject,
    elements,
    field_error,
)
from genai_server.openai_api.schemas.chat import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS, Function, FunctionName
from genai_server.openai_api.schemas.embeddings import MOST_INPUTS
from genai_server.openai_api.schemas.sampling import StopText
from genai_server.openai_api.schemas.tokens import MOST_TOKENS

# More than OpenAI's: clients send those of a model's template, and of an editor's languages.
MOST_STOP_STRINGS = 64
# Of a request with a penalty, as in Ollama.
DEFAULT_REPEAT_LAST_N = 64


def _whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _duration(given: float | str) -> float | str:
    seconds(given)
    return given


# Some clients write all numbers alike, such as 40.0.
Whole = Annotated[int, BeforeValidator(_whole)]
KeepAlive = Annotated[float | Annotated[str, Field(max_length=64)], AfterValidator(_duration)]
# Some clients send an empty list with each message.
NoImages = Annotated[list[Any], elements(0)]
NoOptions = Annotated[JsonObject, Field(max_length=0)]


class Options(Wire):
    """How an answer is generated; what is left out has the model's own value."""

    num_predict: Whole | None = Field(None, description="Most tokens of the answer; 0 or less for all that fit.")
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_k: Whole | None = Field(None, ge=-1, le=1_000_000, description="0 or -1 considers all tokens.")
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    typical_p: float | None = Field(None, ge=1.0, le=1.0, description="Nothing but 1, which has no effect.")
    repeat_penalty: float | None = Field(None, ge=0.01, le=10.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repeat_last_n: Whole | None = Field(
        None,
        ge=-1,
        le=1_000_000,
        description="The last tokens that penalties look at: -1 for all, 0 for none; 64 with a penalty.",
    )
    seed: Whole | None = Field(None, ge=-(2**63), le=2**63 - 1, description="-1 is random.")
    stop: StopText | Annotated[list[StopText], elements(MOST_STOP_STRINGS)] | None = None

    @property
    def num_penalized(self) -> int | None:
        """How many of the last tokens penalties look at; None, the model's own, if nothing is said about penalties."""
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        is_default = self.repeat_last_n is None and any(penalty is not None for penalty in penalties)
        return DEFAULT_REPEAT_LAST_N if is_default else self.repeat_last_n


class KeptFields(Wire):
    """What all endpoints that use a model take."""

    model: NonEmptyText | None = Field(None, description="The served model's id; the first that can if left out.")
    keep_alive: KeepAlive | None = Field(
        None, description="How long the model stays loaded without a request; only for operators."
    )

    @property
    def seconds_to_keep(self) -> float | None:
        """The seconds of `keep_alive`, infinite for always; None if it is left out."""
        return None if self.keep_alive is None else seconds(self.keep_alive)


class _AnswerFields(KeptFields):
    """What both endpoints that answer take."""

    stream: bool | None = Field(None, description="true if left out.")
    format: Literal["", "json"] | JsonObject | None = Field(None, description="json, or a JSON schema.")
    options: Options | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        None, description="Whether the model thinks before it answers, and how much."
    )
    truncate: Literal[False] | None = Field(None, description="A prompt that is too long is an error.")
    shift: Literal[False] | None = Field(None, description="An answer ends where the context does.")
    logprobs: bool | None = Field(None, description="The log probability of each token of the answer.")
    top_logprobs: Whole | None = Field(None, ge=0, le=20, description="And of so many likeliest ones at its place.")

    @model_validator(mode="after")
    def _scores_belong_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", "is only allowed with logprobs: true")
        return self


class OllamaCalledFunction(Wire):
    """A call's name and arguments."""

    index: Whole | None = None
    name: FunctionName
    arguments: WritableObject | None = None


class OllamaToolCall(Wire):
    """A call that the assistant made."""

    id: Text | None = None
    index: Whole | None = None
    type: Literal["function"] | None = None
    function: OllamaCalledFunction


def _lower(given: Any) -> Any:
    return given.lower() if isinstance(given, str) else given


class OllamaMessage(Wire):
    """One turn of the conversation."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], BeforeValidator(_lower)]
    content: Text | None = None
    thinking: Text | None = Field(None, description="Of the assistant.")
    images: NoImages | None = Field(None, description="This server's models read text only.")
    tool_calls: Annotated[list[OllamaToolCall], elements(MOST_PARTS)] | None = Field(
        None, description="Of the assistant."
    )
    tool_name: Text | None = Field(None, description="Of a tool's result: the tool.")
    tool_call_id: Text | None = Field(None, description="Of a tool's result: the call that it answers.")

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise field_error("tool_calls", f"is only allowed of role assistant; given with role {self.role}")
        return self


class OllamaTool(Wire):
    """What the model may call."""

    type: Literal["function"] | None = None
    function: Function


class OllamaChatRequest(_AnswerFields):
    """Body of /api/chat. Without messages the model is loaded, or unloaded with a keep_alive of 0."""

    messages: Annotated[list[OllamaMessage], elements(MOST_MESSAGES)] | None = None
    tools: Annotated[list[OllamaTool], elements(MOST_TOOLS)] | None = None


class GenerateRequest(_AnswerFields):
    """Body of /api/generate. Without a prompt the model is loaded, or unloaded with a keep_alive of 0."""

    prompt: Text | None = None
    suffix: Text | None = Field(None, description="Text after the answer, for models that fill in the middle.")
    system: Text | None = None
    raw: bool | None = Field(None, description="The prompt is taken as it is, without a chat template.")
    images: NoImages | None = Field(None, description="This server's models read text only.")
    template: Text | None = Field(None, description="Nothing but empty: the model's own template is used.")
    context: Annotated[list[Whole], elements(MOST_TOKENS)] | None = Field(
        None, description="Nothing but empty: conversations are for /api/chat."
    )

    @model_validator(mode="after")
    def _can_be_honoured(self) -> Self:
        if self.template:
            raise field_error("template", "is not supported here: the model's own is used, or none with raw: true")
        if self.context:
            raise field_error("context", "is not supported here: send the conversation to /api/chat")
        if self.is_raw:
            with_it = "raw: true" if self.raw else "suffix"
            for field in ("system", "think"):
                if getattr(self, field):
                    raise field_error(field, f"is not allowed with {with_it}: there is no chat template")
        return self

    @property
    def is_raw(self) -> bool:
        """Whether the prompt is no message."""
        return bool(self.raw) or bool(self.suffix)


class EmbedRequest(KeptFields):
    """Body of /api/embed. Without a text the model is loaded, or unloaded with a keep_alive of 0."""

    input: Text | Annotated[list[Text], elements(MOST_INPUTS)] | None = None
    truncate: bool | None = Field(
        None, description="Whether longer texts are cut to what the model reads, as they are."
    )
    dimensions: Whole | None = Field(None, ge=0, description="Of the vectors; 0 for the model's own number.")
    options: NoOptions | None = Field(None, description="No option has an effect.")

    @property
    def texts(self) -> list[str]:
        """The texts; empty where only the model is to be loaded."""
        return [self.input] if isinstance(self.input, str) and self.input else list(self.input or [])


class EmbeddingsRequest(KeptFields):
    """Body of /api/embeddings, the older form for one text."""

    prompt: Text | None = None
    options: NoOptions | None = Field(None, description="No option has an effect.")


class ShowRequest(Wire):
    """Body of /api/show."""

    model: Text | None = Field(None, description="The model's name.")
    name: Text | None = Field(None, description="Older name of model.")
    verbose: bool | None = Field(None, description="Has no effect here.")


class PullRequest(Wire):
    """Body of /api/pull."""

    model: Text | None = Field(
        None, description="A repository of the hub, such as owner/name, or owner/name:folder if it has several models."
    )
    name: Text | None = Field(None, description="Older name of model.")
    stream: bool | None = Field(None, description="true if left out.")
    insecure: Literal[False] | None = None


class OllamaErrorResponse(BaseModel):
    """Every error's body, in Ollama's form."""

    error: str
