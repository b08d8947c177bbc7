"""Bodies of the endpoints that score and classify texts by a generative model, in vLLM's and SGLang's formats."""

from typing import Annotated, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from genai_server.generation.parameters.base import NonEmptyText, ResultFields, Text, elements, field_error
from genai_server.generation.parameters.completion_body import Tokens, form_of_texts
from genai_server.generation.parameters.sampling_parameters import MAX_SALT_LENGTH
from genai_server.http.json_response import JsonObject

MAX_ITEMS = 2048
MAX_LABELS = 255

_Query = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Tokens, Tag("tokens")],
    Discriminator(
        form_of_texts, custom_error_type="query", custom_error_message="must be a text or a list of token ids"
    ),
]
_Items = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], elements(MAX_ITEMS, min_length=1), Tag("texts")]
    | Annotated[list[Tokens], elements(MAX_ITEMS, min_length=1), Tag("lists")],
    Discriminator(
        form_of_texts,
        custom_error_type="items",
        custom_error_message="must be a list of texts or of lists of token ids",
    ),
]
_Salt = Annotated[str, Field(min_length=1, max_length=MAX_SALT_LENGTH)]
_SALT = "Share cached prefixes only with requests that have the same salt. Use a random secret."


class LabelScoreRequest(ResultFields):
    """Body of vLLM's /generative_scoring, and of /v1/score in SGLang's format: asks for the probabilities of tokens
    after each prompt, which consists of the query and one item.

    Texts may contain special tokens, which are encoded as such.
    """

    query: _Query
    items: _Items
    label_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], elements(MAX_LABELS, min_length=1)]
    apply_softmax: bool | None = Field(
        None,
        description="Normalize over the labels. Default: true, and in SGLang's form false, which takes all tokens.",
    )
    item_first: bool | None = Field(None, description="Put the item before the query; false by default.")
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's special tokens around a text query; true by default."
    )
    cache_salt: _Salt | None = Field(None, description=_SALT)

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len(set(self.label_token_ids)) < len(self.label_token_ids):
            raise field_error("label_token_ids", "must differ from each other")
        return self


class LabelScore(BaseModel):
    """The probability of the first of the given tokens after one item."""

    index: int
    object: str
    score: float


class LabelScoreResponse(BaseModel):
    """Response of /generative_scoring."""

    id: str
    object: str
    created: int
    model: str
    data: list[LabelScore]
    usage: JsonObject


class ClassifyRequest(ResultFields):
    """Body of /classify in vLLM's format. It also has the labels, which vLLM reads from a classifier's
    configuration.
    """

    input: Text | Annotated[list[Text], elements(MAX_ITEMS, min_length=1)]
    labels: Annotated[list[NonEmptyText], elements(MAX_LABELS, min_length=2)]
    instructions: NonEmptyText | None = Field(None, description="What the labels are about.")
    cache_salt: _Salt | None = Field(None, description=_SALT)

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise field_error("labels", "must differ from each other")
        return self

    @property
    def inputs(self) -> list[str]:
        """The texts to classify, as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


class TextClass(BaseModel):
    """The most likely label of a text, and the probabilities of all labels in the order of the request."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(BaseModel):
    """Response of /classify."""

    id: str
    object: str
    created: int
    model: str
    data: list[TextClass]
    usage: JsonObject
