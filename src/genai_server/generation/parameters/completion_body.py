"""The body of OpenAI's older endpoint /v1/completions, which continues one or several texts without a chat template, as
a pydantic model (`CompletionRequest`).
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Discriminator, Field, Tag, model_validator

from genai_server.generation.parameters.base import RouterFields, Text, elements, field_error
from genai_server.generation.parameters.sampling_parameters import (
    MAX_CHOICES,
    GenerationFields,
    OtherStructureFields,
    StreamFields,
)

MAX_PROMPTS = 128
# No prompt is longer.
MAX_TOKENS = 1024 * 1024
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], elements(MAX_TOKENS, min_length=1)]
Texts = Annotated[list[Text], elements(MAX_PROMPTS, min_length=1)]


def form_of_texts(prompt: Any) -> str | None:
    """Return the form of the field `prompt`, judged by its first element: "text", "tokens" (a list of token ids),
    "texts", or "lists" (several lists of token ids); None for any other value. pydantic selects the validator of the
    field by it.
    """
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    if not prompt or isinstance(prompt[0], (int, float)):
        return "tokens"
    return "texts" if isinstance(prompt[0], str) else "lists" if isinstance(prompt[0], list) else None


Prompts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[list[Tokens], elements(MAX_PROMPTS, min_length=1), Tag("lists")],
    Discriminator(
        form_of_texts,
        custom_error_type="prompt",
        custom_error_message="must be a text, a list of token ids, or a list of either",
    ),
]


class CompletionRequest(GenerationFields, StreamFields, RouterFields, OtherStructureFields):
    """Body of /v1/completions, which continues one or several prompts. Special tokens in the text of a prompt are
    encoded as special tokens. In a chat this would let a text imitate another turn, but a text completion has no turns.
    """

    prompt: Prompts
    max_tokens: int | None = Field(
        None, ge=0, description="Maximum number of tokens of the answer; by default 16, as OpenAI's."
    )
    # OpenAI's default outside chats.
    default_max_tokens: ClassVar[int | None] = 16
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Number of answers to each prompt.")
    best_of: int | None = Field(None, ge=1, description="Must equal n.")
    echo: bool | None = Field(None, description="Return the prompt before the answer, with its log probabilities.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Return the log probability of each token and of the N most likely ones at its position.",
    )
    suffix: Text | None = Field(
        None, description="Text after the answer, for models with fill-in-the-middle tokens; not allowed with echo."
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's special tokens around text prompts; true by default."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise field_error("best_of", f"must equal n ({self.n or 1}), given {self.best_of}: answers are not ranked")
        if self.suffix and self.echo:
            raise field_error("suffix", "cannot be combined with echo")
        if self.max_tokens == 0 and not self.echo:
            raise field_error("max_tokens", "may be 0 only with echo: true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """All prompts of the request in order, each as a text or as token ids, even if the field `prompt` has
        only one.
        """
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
