"""The bodies of requests to Ollama's API and of its errors, as pydantic models (https://docs.ollama.com/api): chat and
prompt completions with their sampling options, embeddings, and the description and download of models. Also converts
Ollama's durations.
"""

import json
import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from genai_server.apis.embeddings import MAX_INPUTS
from genai_server.generation.parameters.base import (
    NonEmptyText,
    StrictModel,
    Text,
    elements,
    field_error,
    missing_error,
)
from genai_server.generation.parameters.chat_messages import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Function,
    FunctionName,
    NamedFunction,
    ReasoningEffort,
)
from genai_server.generation.parameters.completion_body import MAX_TOKENS
from genai_server.generation.parameters.sampling_parameters import MAX_STOP_STRINGS, StopText
from genai_server.http.json_response import JsonObject

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?(0|({_PART})+)")


def seconds(value: float | str) -> float:
    """Convert a number of seconds or a duration such as "5m" to seconds. A negative value means forever and becomes
    infinity. Raises ValueError for any other text.
    """
    if isinstance(value, str):
        if not _DURATION.fullmatch(value):
            raise ValueError('must be a number of seconds or a duration such as "5m"')
        parts = re.findall(_PART, value)
        total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        value = -total if value.startswith("-") else total
    return math.inf if value < 0 else value


def nanoseconds(seconds: float) -> int:
    """Convert seconds to whole nanoseconds, the unit of durations in Ollama's responses. The result is at least 1,
    because clients divide by durations.
    """
    return max(1, round(seconds * 1e9))


# Other names of an option, at the top level.
_NAMES_OF_LIMIT = {"max_tokens": "num_predict", "max_output_tokens": "num_predict"}
# Default of a request with a penalty, as in Ollama.
DEFAULT_REPEAT_LAST_N = 64


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _duration(value: float | str) -> float | str:
    seconds(value)
    return value


# Some clients write integers as 40.0.
Whole = Annotated[int, BeforeValidator(_whole)]
KeepAlive = Annotated[float | Annotated[str, Field(max_length=64)], AfterValidator(_duration)]
# Some clients send an empty list with each message.
Images = Annotated[list[NonEmptyText], elements(MAX_PARTS)]


class _SamplingOptions(StrictModel):
    num_predict: Whole | None = Field(
        None, description="Maximum number of tokens of the answer; 0 or less for all that fit."
    )
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_k: Whole | None = Field(None, ge=-1, le=1_000_000, description="0 or -1 considers all tokens.")
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    typical_p: float | None = Field(None, ge=1.0, le=1.0, description="Only 1, which has no effect, is accepted.")
    repeat_penalty: float | None = Field(None, ge=0.01, le=10.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repeat_last_n: Whole | None = Field(
        None,
        ge=-1,
        le=1_000_000,
        description="Number of most recent tokens that penalties apply to: -1 for all, 0 for none; 64 with a penalty.",
    )
    seed: Whole | None = Field(None, ge=-(2**63), le=2**63 - 1, description="-1 for a random seed.")
    stop: StopText | Annotated[list[StopText], elements(MAX_STOP_STRINGS)] | None = None


class Options(_SamplingOptions):
    """Body field `options` of Ollama's API: the sampling options, such as `num_predict`, `temperature` and `stop`. For
    absent options the model's defaults apply.
    """

    @property
    def num_penalized(self) -> int | None:
        """To how many of the most recent tokens the penalties apply: `repeat_last_n` or, if it is absent but a penalty
        is given, Ollama's default of 64. None if neither is given, so that the model's default applies.
        """
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        is_default = self.repeat_last_n is None and any(penalty is not None for penalty in penalties)
        return DEFAULT_REPEAT_LAST_N if is_default else self.repeat_last_n


class KeepAliveFields(StrictModel):
    """Base class of the bodies of all endpoints that use a model: which model (`model`), and how long it stays loaded
    without requests (`keep_alive`).
    """

    model: NonEmptyText | None = Field(None, description="Id of a served model; by default the first suitable one.")
    keep_alive: KeepAlive | None = Field(
        None, description="How long the model stays loaded without requests; only allowed with an admin key."
    )

    @property
    def seconds_to_keep(self) -> float | None:
        """The field `keep_alive`, how long the model stays loaded, in seconds: infinite for "always"; None if the field
        is absent.
        """
        return None if self.keep_alive is None else seconds(self.keep_alive)


class AnswerFields(KeepAliveFields, _SamplingOptions):
    """Base class of the bodies of /api/chat and /api/generate, the endpoints that generate text: streaming, format of
    the answer, sampling options, reasoning (`think`) and log probabilities.

    Some clients send sampling options as fields of the body itself instead of in `options`. If both are given, the
    value in `options` is used.
    """

    stream: bool | None = Field(None, description="true by default.")
    format: Literal["", "json"] | JsonObject | None = Field(
        None, description="`json`, or a JSON schema that the answer must match."
    )
    options: Options | None = None
    max_tokens: Whole | None = Field(None, description="Another name for `num_predict`.")
    max_output_tokens: Whole | None = Field(None, description="Another name for `num_predict`.")
    think: bool | ReasoningEffort | Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="Whether, and how much, the model reasons before it answers; a number is that of its tokens."
    )
    truncate: Literal[False] | None = Field(
        None, description="Only false is accepted: a prompt that is too long is an error."
    )
    shift: Literal[False] | None = Field(
        None, description="Only false is accepted: an answer ends at the context limit."
    )
    logprobs: bool | None = Field(None, description="Return the log probability of each token of the answer.")
    top_logprobs: Whole | None = Field(
        None, ge=0, le=20, description="Also return the N most likely tokens at each position."
    )

    @model_validator(mode="after")
    def _scores_belong_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", "is only allowed with logprobs: true")
        return self

    @property
    def all_options(self) -> tuple[Options, list[str]]:
        """All sampling options of the request: those in the field `options` and those that are fields of the body
        itself.

        The second value has the names of the body's own fields that are ignored because `options` has another value.
        """
        options = Options.model_validate({}) if self.options is None else self.options
        values = options.model_dump(exclude_none=True)
        overridden = []
        for name in (*_SamplingOptions.model_fields, *_NAMES_OF_LIMIT):
            value = getattr(self, name)
            if value is not None and value != values.setdefault(_NAMES_OF_LIMIT.get(name, name), value):
                overridden.append(name)
        return Options.model_validate(values), overridden


def _as_text(arguments: Any) -> str:
    """Convert the arguments of a tool call to JSON text; a string is returned unchanged, and None becomes "{}". The
    arguments need not be an object, since the call may come from another server or may have been cut off. Raises
    ValueError if they are not valid Unicode.
    """
    text = (
        arguments
        if isinstance(arguments, str)
        else "{}"
        if arguments is None
        else json.dumps(arguments, ensure_ascii=False)
    )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode") from None
    return text


class OllamaCalledFunction(StrictModel):
    """The field `function` of a tool call in Ollama's format: the name of the called tool and the arguments, which are
    converted to JSON text.
    """

    index: Whole | None = None
    name: NonEmptyText
    arguments: Annotated[Any, AfterValidator(_as_text)] = Field(
        "{}", description="An object, or what a model has written in its place."
    )


class OllamaToolCall(StrictModel):
    """A tool call in a message of the assistant, in Ollama's format."""

    id: Text | None = None
    index: Whole | None = None
    type: Literal["function"] | None = None
    function: OllamaCalledFunction


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class OllamaMessage(StrictModel):
    """A message of the conversation in the body of /api/chat: the role, the text, the assistant's reasoning
    (`thinking`) and tool calls, images in base64 and, in a tool's result, the tool's name and the id of the call.
    Validation refuses tool calls in messages that are not the assistant's.
    """

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_lower)]
    content: Text | None = None
    thinking: Text | None = Field(None, description="The assistant's reasoning.")
    images: Images | None = Field(None, description="Image files in base64, for models that take images.")
    tool_calls: Annotated[list[OllamaToolCall], elements(MAX_PARTS)] | None = Field(
        None, description="The assistant's tool calls."
    )
    tool_name: Text | None = Field(None, description="In a tool's result: name of the tool.")
    tool_call_id: Text | None = Field(None, description="In a tool's result: id of the call it answers.")

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise field_error("tool_calls", f"is only allowed with role assistant; given with role {self.role}")
        return self


class OllamaTool(StrictModel):
    """A tool that the model may call, in the body of /api/chat: the definition of a function."""

    type: Literal["function"] | None = None
    function: Function


class OllamaChosenTool(StrictModel):
    """The field `tool_choice` of /api/chat that makes the model call one particular tool, named either by `name` or by
    `function.name`.
    """

    type: Literal["function"]
    name: FunctionName | None = None
    function: NamedFunction | None = None

    @model_validator(mode="after")
    def _has_one_name(self) -> Self:
        if self.name is None and self.function is None:
            raise missing_error("name", "without function")
        if self.name is not None and self.function is not None:
            raise field_error("name", "cannot be combined with function")
        return self


class OllamaChatRequest(AnswerFields):
    """Body of /api/chat: the messages of the conversation, the tools that the model may call, and the options of
    generation. A request without messages only loads the model, or unloads it if `keep_alive` is 0.
    """

    messages: Annotated[list[OllamaMessage], elements(MAX_MESSAGES)] | None = None
    tools: Annotated[list[OllamaTool], elements(MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | OllamaChosenTool | None = Field(
        None, description="Whether a tool must be called, and which one, as in OpenAI's APIs."
    )

    @model_validator(mode="after")
    def _has_tools_to_choose(self) -> Self:
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise field_error("tool_choice", "is only allowed with tools")
        return self


class GenerateRequest(AnswerFields):
    """Body of /api/generate: a prompt, optionally with a system message, images or a suffix, and the options of
    generation. A request without prompt and images only loads the model, or unloads it if `keep_alive` is 0.
    """

    prompt: Text | None = None
    suffix: Text | None = Field(None, description="Text after the answer, for fill-in-the-middle models.")
    system: Text | None = None
    raw: bool | None = Field(None, description="Use the prompt unchanged, without a chat template.")
    images: Images | None = Field(None, description="Image files in base64, for models that take images.")
    template: Text | None = Field(None, description="Only an empty text: the model's own template is used.")
    context: Annotated[list[Whole], elements(MAX_TOKENS)] | None = Field(
        None, description="Only an empty list: use /api/chat for conversations."
    )

    @model_validator(mode="after")
    def _can_be_honoured(self) -> Self:
        if self.template:
            raise field_error("template", "is not supported: the model's own template is used, or none with raw: true")
        if self.context:
            raise field_error("context", "is not supported: send the conversation to /api/chat")
        if self.is_raw:
            with_it = "raw: true" if self.raw else "suffix"
            for field in ("system", "think", "images"):
                if getattr(self, field):
                    raise field_error(field, f"is not allowed with {with_it}: no chat template is used")
        return self

    @property
    def is_raw(self) -> bool:
        """Whether the prompt is used without a chat template, because the request has `raw: true` or a suffix."""
        return bool(self.raw) or bool(self.suffix)


class EmbedRequest(KeepAliveFields):
    """Body of /api/embed: one text or a list of texts to embed, whether to truncate long texts, and the length of the
    vectors. A request without a text only loads the model, or unloads it if `keep_alive` is 0.
    """

    input: Text | Annotated[list[Text], elements(MAX_INPUTS)] | None = None
    truncate: bool | None = Field(
        None, description="Whether to truncate texts to the model's maximum length; true by default."
    )
    dimensions: Whole | None = Field(None, ge=0, description="Length of the vectors; 0 for the model's own.")

    @property
    def texts(self) -> list[str]:
        """The texts to embed as a list; empty for a request that only loads or unloads the model."""
        return [self.input] if isinstance(self.input, str) and self.input else list(self.input or [])


class EmbeddingsRequest(KeepAliveFields):
    """Body of /api/embeddings, Ollama's older endpoint that embeds a single text (`prompt`)."""

    prompt: Text | None = None


class ShowRequest(StrictModel):
    """Body of /api/show, which describes one model. The model is named by `model` or by the older field `name`."""

    model: Text | None = Field(None, description="Name of the model.")
    name: Text | None = Field(None, description="Older name for model.")
    verbose: bool | None = Field(None, description="Accepted, but has no effect.")


class PullRequest(StrictModel):
    """Body of /api/pull, which downloads a model. `model`, or the older field `name`, is a repository on the Hugging
    Face Hub such as `owner/name`, or `owner/name:folder` for one of several models in it.
    """

    model: Text | None = Field(
        None,
        description="A repository on the hub, such as owner/name, or owner/name:folder if it contains several models.",
    )
    name: Text | None = Field(None, description="Older name for model.")
    stream: bool | None = Field(None, description="true by default.")
    insecure: Literal[False] | None = None


class OllamaErrorResponse(BaseModel):
    """Body of all error responses of Ollama's API: an object whose only field `error` is the message."""

    error: str
