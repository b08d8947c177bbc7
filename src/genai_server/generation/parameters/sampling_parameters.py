"""The fields that all requests for generated text have in common, as pydantic models: sampling (`SamplingFields`), the
model and the limit of the answer (`GenerationFields`), structured outputs and streaming (`StreamFields`).
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from genai_server.generation.parameters.base import (
    NonEmptyText,
    NullFields,
    StrictModel,
    Text,
    WithoutEffect,
    elements,
    field_error,
    members,
)

# More than OpenAI's four: clients send the stop texts of a template, of an evaluation or of an editor's language.
MAX_STOP_STRINGS = 64
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 1024
# More than any vocabulary has.
MAX_ALLOWED_TOKENS = 2**19
MAX_CHOICES = 16
MAX_SALT_LENGTH = 1024
# Tokens of a pattern of which repetition is detected.
MAX_PATTERN = 1024
_TOKEN_ID_LIMIT = 2**31


def _token_ids(value: dict[str, float]) -> dict[str, float]:
    for key in value:
        if not (key.isascii() and key.isdecimal() and int(key) < _TOKEN_ID_LIMIT):
            raise ValueError("must have token ids as its keys")
    return value


Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[str, Bias], Field(max_length=1024), AfterValidator(_token_ids), members(1024)]


Schema = dict[str, Any] | bool | Text
Choice = Annotated[list[NonEmptyText], elements(1000, min_length=1)]


class StructuredOutputs(StrictModel):
    """What the answer must match: exactly one of a JSON schema, a regular expression, a list of choices, and a
    grammar.
    """

    json_: Schema | None = Field(None, alias="json", description="A JSON schema that the answer must match.")
    regex: NonEmptyText | None = Field(None, description="A regular expression in the syntax of Rust's regex crate.")
    choice: Choice | None = None
    grammar: NonEmptyText | None = Field(None, description="A Lark grammar in llguidance's dialect.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        names = [name for name in ("json_", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if not names:
            raise ValueError("must have one of json, regex, choice and grammar")
        if len(names) > 1:
            raise field_error(names[1], f"cannot be combined with {names[0].removesuffix('_')}")
        return self


class RepetitionDetection(StrictModel):
    """The repetition that ends an answer, in vLLM's form: the answer ends with the same sequence of tokens, `min_count`
    times in a row.
    """

    max_pattern_size: int = Field(
        0, ge=0, le=MAX_PATTERN, description="Maximum length in tokens of what is repeated; 0 detects nothing."
    )
    min_pattern_size: int = Field(0, ge=0, description="Minimum length in tokens; 0 is 1.")
    min_count: int = Field(0, ge=0, le=2**31 - 1, description="At least 2, unless max_pattern_size is 0.")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.max_pattern_size and self.min_count < 2:
            raise field_error("min_count", "must be at least 2 unless max_pattern_size is 0")
        if self.min_pattern_size > self.max_pattern_size:
            raise field_error("min_pattern_size", "must be at most max_pattern_size")
        return self


class StreamOptions(StrictModel):
    """What chunks of a streamed response contain besides the answer: OpenAI's stream options, and vLLM's
    `continuous_usage_stats`.
    """

    include_usage: bool | None = Field(None, description="Send the usage in an additional chunk at the end.")
    continuous_usage_stats: bool | None = Field(None, description="Send the usage so far in every chunk.")
    include_obfuscation: bool | None = Field(None, description="No effect: chunks are not padded.")


class StreamFields(StrictModel):
    """The streaming options of OpenAI's endpoints for text, and what this server adds to their responses on request."""

    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only allowed with stream: true.")
    include_metrics: bool | None = Field(None, description="Return the metrics of /v1/chat next to the usage.")
    return_progress: bool | None = Field(
        None, description="Report `prompt_progress` after each chunk of the prompt; only allowed with stream: true."
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
        """Whether the stream ends with an additional chunk that has the token counts
        (`stream_options.include_usage`).
        """
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Whether every chunk of the stream has the token counts so far (`stream_options.continuous_usage_stats`)."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


# vLLM and SGLang write -1 for "off".
TopK = Annotated[int, Field(ge=-1, le=1_000_000), AfterValidator(lambda given: max(0, given))]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]


class SamplingFields(NullFields):
    """The parameters by which tokens are sampled and answers end. An absent one has the default of the model's
    `genai_config.json`, or no effect.
    """

    temperature: float | None = Field(None, ge=0.0, le=2.0, description="0 always selects the most likely token.")
    top_p: float | None = Field(None, ge=0.0, le=1.0, description="0 always selects the most likely token.")
    top_k: TopK | None = Field(None, description="0 or -1 considers all tokens.")
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repeat_last_n: int | None = Field(
        None,
        ge=-1,
        le=1_000_000,
        description="Number of most recent tokens that penalties apply to: -1 (the default) for all, 0 for none.",
    )
    logit_bias: Biases | None = Field(
        None, description="Values added to the logits of token ids; 100 forces a token, -100 bans it."
    )
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: StopText | Annotated[list[StopText], elements(MAX_STOP_STRINGS, min_length=1)] | None = Field(
        None, description=f"Up to {MAX_STOP_STRINGS} texts that end the answer; they are not returned."
    )
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], elements(MAX_STOP_TOKENS)] | None = Field(
        None, description="Tokens that end the answer; they are not returned."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Return the text of `stop` that ended the answer as the answer's end."
    )
    bad_words: Annotated[list[StopText], elements(MAX_BAD_WORDS)] | None = Field(
        None, description="Words that the answer does not have: their last token is banned where the others precede it."
    )
    allowed_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0)]], elements(MAX_ALLOWED_TOKENS, min_length=1)] | None
    ) = Field(None, description="The only tokens that the answer may have, those that end it included.")
    min_tokens: int | None = Field(
        None,
        ge=0,
        description="Minimum number of tokens before an end or stop token ends the answer; a stop text still ends it.",
    )
    ignore_eos: bool | None = Field(None, description="Continue after the model's end-of-sequence token.")
    cache_prompt: bool | None = Field(
        None, description="Reuse the cached prefix of an earlier prompt; true by default."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SALT_LENGTH,
        description="Share cached prefixes only with requests that have the same salt. Use a random secret.",
    )
    priority: int | None = Field(
        None, ge=-1000, le=1000, description="Of a key's requests, those with lower values come first; 0 by default."
    )
    exact: bool | None = Field(None, description="Make the answer bitwise independent of other requests in the batch.")
    repetition_detection: RepetitionDetection | None = Field(
        None, description="End the answer when it repeats itself; by default in reasoning and tool calls only."
    )
    structured_outputs: StructuredOutputs | None = None
    timeout: float | None = Field(
        None,
        gt=0,
        description="Seconds, including waiting, after which the answer ends with the tokens generated so far.",
    )

    @model_validator(mode="after")
    def _shows_a_stop_text(self) -> Self:
        if self.include_stop_str_in_output and self.stop_token_ids:
            raise field_error("include_stop_str_in_output", "cannot be true with stop_token_ids, which have no text")
        return self

    @model_validator(mode="after")
    def _ends_early_or_not(self) -> Self:
        detection = self.repetition_detection
        if self.ignore_eos and detection is not None and detection.max_pattern_size:
            raise field_error("repetition_detection", "cannot be combined with ignore_eos: true")
        return self


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
    """Other servers' names for the fields of `structured_outputs`, such as vLLM's `guided_json`. `structured_outputs`
    gets their value. It may be given, too, if the values are equal.
    """

    guided_json: Schema | None = Field(None, description="vLLM's older name for structured_outputs.json.")
    guided_regex: NonEmptyText | None = Field(None, description="vLLM's older name for structured_outputs.regex.")
    guided_choice: Choice | None = Field(None, description="vLLM's older name for structured_outputs.choice.")
    guided_grammar: NonEmptyText | None = Field(None, description="vLLM's older name for structured_outputs.grammar.")
    regex: NonEmptyText | None = Field(None, description="SGLang's name for structured_outputs.regex.")
    ebnf: NonEmptyText | None = Field(None, description="SGLang's name for structured_outputs.grammar.")

    @model_validator(mode="after")
    def _are_structured_outputs(self) -> Self:
        first, *extra = [name for name in _OTHER_NAMES if getattr(self, name) is not None] or [""]
        if extra:
            raise field_error(extra[0], f"cannot be combined with {first}")
        if first:
            structured = StructuredOutputs.model_validate({_OTHER_NAMES[first]: getattr(self, first)})
            if self.structured_outputs not in (None, structured):
                raise field_error(first, "must equal structured_outputs if both are given")
            self.structured_outputs = structured
        return self

    @property
    def other_names(self) -> dict[str, str]:
        """The client's name for each field of `structured_outputs` that the client gave by another server's name, keyed
        by this server's name. Errors use it.
        """
        sent_name = next((name for name in _OTHER_NAMES if getattr(self, name) is not None), "")
        name = "structured_outputs"
        return {f"{name}.{_OTHER_NAMES[sent_name]}": sent_name, name: sent_name} if sent_name else {}


class GenerationFields(SamplingFields, WithoutEffect):
    """The fields that the bodies of all endpoints for generated text have in common: the model, the device, the maximum
    number of tokens, and the sampling parameters.
    """

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    device: str | None = Field(None, description="Configured device to run on; by default the least busy one.")
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens of the answer; by default all that fit."
    )
    # None: all tokens that fit.
    default_max_tokens: ClassVar[int | None] = None

    @property
    def stop_strings(self) -> list[str]:
        """The texts that end the answer, as a list; empty if the field `stop` is absent."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []
