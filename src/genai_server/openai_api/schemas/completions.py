"""Body of OpenAI's older endpoint, /v1/completions: text in, more of it out, without a chat template."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Discriminator, Field, Tag, model_validator

from genai_server.openai_api.schemas.base import RouterFields, Text, elements, field_error
from genai_server.openai_api.schemas.sampling import MOST_CHOICES, GenerationFields, OtherStructureFields, StreamFields
from genai_server.openai_api.schemas.tokens import MOST_TOKENS

MOST_PROMPTS = 128
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], elements(MOST_TOKENS, least=1)]
Texts = Annotated[list[Text], elements(MOST_PROMPTS, least=1)]


def form_of_texts(given: Any) -> str | None:
    """Which of its forms a prompt has, by its first element."""
    if isinstance(given, str):
        return "text"
    if not isinstance(given, list):
        return None
    if not given or isinstance(given[0], (int, float)):
        return "tokens"
    return "texts" if isinstance(given[0], str) else "lists" if isinstance(given[0], list) else None


Prompts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[list[Tokens], elements(MOST_PROMPTS, least=1), Tag("lists")],
    Discriminator(
        form_of_texts,
        custom_error_type="prompt",
        custom_error_message="must be a text, a list of token ids, or a list of either",
    ),
]


class CompletionRequest(GenerationFields, StreamFields, RouterFields, OtherStructureFields):
    """Special tokens in a prompt are read as such: there is no turn that could be forged."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, description="Most tokens of the answer; 16 if left out, as OpenAI's.")
    # OpenAI's outside chats.
    default_max_tokens: ClassVar[int | None] = 16
    n: int | None = Field(None, ge=1, le=MOST_CHOICES, description="So many answers to each prompt.")
    best_of: int | None = Field(None, ge=1, description="Nothing but the value of n.")
    echo: bool | None = Field(None, description="The prompt before the answer, with its log probabilities.")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Log probabilities of each token and so many likeliest."
    )
    suffix: Text | None = Field(
        None, description="Text after the answer, for models with tokens to fill in the middle; not with echo."
    )
    add_special_tokens: bool | None = Field(
        None, description="Begin text prompts as the tokenizer does; true if left out."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise field_error("best_of", f"must be n ({self.n or 1}), given {self.best_of}: nothing chooses among more")
        if self.suffix and self.echo:
            raise field_error("suffix", "cannot be given beside echo")
        if self.max_tokens == 0 and not self.echo:
            raise field_error("max_tokens", "may be 0 only with echo: true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
