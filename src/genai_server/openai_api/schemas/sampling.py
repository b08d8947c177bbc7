"""The fields that say how an answer is generated, the same on every endpoint that generates."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from genai_server.openai_api.schemas.base import NonEmptyText, Text, Wire, WithoutEffect, elements, field_error, members

MOST_STOP_STRINGS = 4
MOST_STOP_TOKENS = 128
MOST_CHOICES = 16
MOST_SALT = 1024
_TOKEN_ID_LIMIT = 2**31


def _token_ids(value: dict[str, float]) -> dict[str, float]:
    for key in value:
        if not (key.isascii() and key.isdecimal() and int(key) < _TOKEN_ID_LIMIT):
            raise ValueError("must have token ids as its keys")
    return value


Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[str, Bias], Field(max_length=1024), AfterValidator(_token_ids), members(1024)]


Schema = dict[str, Any] | bool | Text
Choice = Annotated[list[NonEmptyText], elements(1000, least=1)]


class StructuredOutputs(Wire):
    """What the answer must fit: exactly one of the fields."""

    json_: Schema | None = Field(None, alias="json", description="A JSON schema.")
    regex: NonEmptyText | None = Field(None, description="A regular expression, as Rust's crate regex has them.")
    choice: Choice | None = None
    grammar: NonEmptyText | None = Field(None, description="A Lark grammar in llguidance's dialect.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("json_", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if not given:
            raise ValueError("must have one of json, regex, choice and grammar")
        if len(given) > 1:
            raise field_error(given[1], f"cannot be given beside {given[0].removesuffix('_')}")
        return self


class StreamOptions(Wire):
    """OpenAI's options of a stream, and vLLM's `continuous_usage_stats`."""

    include_usage: bool | None = Field(None, description="One more chunk with the usage, before the end.")
    continuous_usage_stats: bool | None = Field(None, description="The usage up to then on every chunk.")
    include_obfuscation: bool | None = Field(None, description="Has no effect here: nothing is padded.")


class StreamFields(Wire):
    """Whether and how an answer of OpenAI's is streamed, and what this server tells beside it."""

    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with stream: true.")
    include_metrics: bool | None = Field(None, description="The metrics of /v1/chat beside the usage.")
    return_progress: bool | None = Field(
        None, description="A chunk with `prompt_progress` after each piece of the prompt; only with stream: true."
    )

    @model_validator(mode="after")
    def _only_with_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "is only allowed with stream: true")
        if self.return_progress and not self.stream:
            raise field_error("return_progress", "is only allowed with stream: true")
        return self

    @property
    def has_last_usage(self) -> bool:
        """Whether a chunk of its own has the usage at the end."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Whether every chunk has the usage up to then."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


StopText = Annotated[str, Field(min_length=1, max_length=1024)]


class SamplingFields(Wire):
    """A field that is left out has the value of the model directory's `genai_config.json`, or no effect."""

    temperature: float | None = Field(None, ge=0.0, le=2.0, description="0 takes the most likely token each time.")
    top_p: float | None = Field(None, ge=0.0, le=1.0, description="0 takes the most likely token each time.")
    top_k: int | None = Field(None, ge=0, le=1_000_000, description="0 considers all tokens.")
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repeat_last_n: int | None = Field(
        None,
        ge=-1,
        le=1_000_000,
        description="The last tokens that the penalties look at: -1 for all, 0 for none; -1 if left out.",
    )
    logit_bias: Biases | None = Field(
        None, description="Added to the logits of these token ids; 100 selects, -100 bans."
    )
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: StopText | Annotated[list[StopText], elements(MOST_STOP_STRINGS, least=1)] | None = Field(
        None, description="One to four texts that end the answer; they are not part of it."
    )
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], elements(MOST_STOP_TOKENS)] | None = Field(
        None, description="Tokens that end the answer; they are not part of it."
    )
    min_tokens: int | None = Field(None, ge=0, description="Nothing ends the answer by itself before so many tokens.")
    ignore_eos: bool | None = Field(None, description="Go on after the token that ends an answer.")
    cache_prompt: bool | None = Field(
        None, description="Reuse the cached prefix of an earlier prompt; true if left out."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_SALT,
        description="Only cached prefixes of requests with the same salt are reused; random, and kept secret.",
    )
    priority: int | None = Field(None, ge=-1000, le=1000, description="Lower is served earlier; 0 if left out.")
    exact: bool | None = Field(None, description="The answer is bitwise equal whatever else runs beside it.")
    structured_outputs: StructuredOutputs | None = None
    timeout: float | None = Field(
        None, gt=0, description="Seconds after which the answer ends as it is, waiting included."
    )


# Other servers' names for the fields of structured_outputs: vLLM's older ones, and SGLang's.
_OTHER_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}


class OtherStructureFields(SamplingFields):
    """Other servers' names for the fields of `structured_outputs`; given together, they must be equal."""

    guided_json: Schema | None = Field(None, description="vLLM's older name of structured_outputs.json.")
    guided_regex: NonEmptyText | None = Field(None, description="vLLM's older name of structured_outputs.regex.")
    guided_choice: Choice | None = Field(None, description="vLLM's older name of structured_outputs.choice.")
    guided_grammar: NonEmptyText | None = Field(None, description="vLLM's older name of structured_outputs.grammar.")
    regex: NonEmptyText | None = Field(None, description="SGLang's name of structured_outputs.regex.")
    ebnf: NonEmptyText | None = Field(None, description="SGLang's name of structured_outputs.grammar.")

    @model_validator(mode="after")
    def _are_structured_outputs(self) -> Self:
        first, *others = [name for name in _OTHER_NAMES if getattr(self, name) is not None] or [""]
        if others:
            raise field_error(others[0], f"cannot be given beside {first}")
        if first:
            same = StructuredOutputs.model_validate({_OTHER_NAMES[first]: getattr(self, first)})
            if self.structured_outputs not in (None, same):
                raise field_error(first, "must be the same as structured_outputs, if both are given")
            self.structured_outputs = same
        return self

    @property
    def other_names(self) -> dict[str, str]:
        """The client's names for fields of this server's own."""
        given = next((name for name in _OTHER_NAMES if getattr(self, name) is not None), "")
        name = "structured_outputs"
        return {f"{name}.{_OTHER_NAMES[given]}": given, name: given} if given else {}


class GenerationFields(SamplingFields, WithoutEffect):
    """What every endpoint that generates takes."""

    model: str | None = Field(None, description="The served model's id; the first model if left out.")
    device: str | None = Field(None, description="The configured device to run on; the least busy one if left out.")
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of the answer; all that fit if left out.")
    # None for all that fit.
    default_max_tokens: ClassVar[int | None] = None

    @property
    def stop_strings(self) -> list[str]:
        """The texts that end the answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []
