"""Bodies of the embedding, rerank and score endpoints: OpenAI's, vLLM's, Jina's and Cohere's."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from genai_server.apis.scoring import LabelScoreRequest
from genai_server.generation.parameters.base import NonEmptyText, ResultFields, Text, Wire, elements, field_error
from genai_server.generation.parameters.completion_body import Tokens, form_of_texts
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import LeftOut

# Texts of a request, as in OpenAI's API.
MAX_INPUTS = 2048
MAX_INSTRUCTION_LENGTH = 8192
Texts = Annotated[list[Text], elements(MAX_INPUTS, min_length=1)]

Inputs = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[list[Tokens], elements(MAX_INPUTS, min_length=1), Tag("lists")],
    Discriminator(
        form_of_texts,
        custom_error_type="input",
        custom_error_message="must be a text, a list of token ids, or a list of either",
    ),
]


class PooledFields(ResultFields):
    """Fields of all endpoints for embedding models and reranking models."""

    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Truncate longer texts to this number of tokens; -1 truncates to the model's maximum."
    )
    user: Any = Field(None, description="Accepted, but has no effect.")

    @model_validator(mode="after")
    def _cuts_to_something(self) -> Self:
        if self.truncate_prompt_tokens == 0:
            raise field_error("truncate_prompt_tokens", "must be -1 or at least 1; given 0")
        return self


class EmbeddingRequest(PooledFields):
    """Body of /v1/embeddings. Texts may contain special tokens, which are encoded as such; token ids are used
    unchanged.
    """

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="`float`: a list of numbers. `base64`: little-endian float32 numbers."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Length of each vector; shorter than the model's own only if the model supports it."
    )
    prompt_name: str | None = Field(
        None, max_length=1024, description="Name of one of the model's prompts, which is prepended to each text."
    )

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each input, as text or as token ids."""
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)


class Document(Wire):
    """A document, given as an object with a text."""

    text: Text


class RerankRequest(PooledFields):
    """Body of /v1/rerank, in the format of Jina, vLLM and llama.cpp, or in Cohere's."""

    query: NonEmptyText
    documents: Annotated[list[Text | Document], elements(MAX_INPUTS, min_length=1)]
    top_n: int | None = Field(None, ge=0, description="Maximum number of results; 0 or null returns all.")
    return_documents: bool | None = Field(None, description="Whether to include the text of each document.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="Truncate longer documents to this number of tokens."
    )
    rank_fields: Annotated[list[Literal["text"]], elements(1, min_length=1)] | None = Field(
        None, description="Only `text`: documents are ranked by their texts."
    )
    instruction: Annotated[str, Field(min_length=1, max_length=MAX_INSTRUCTION_LENGTH)] | None = Field(
        None, description="What makes a document relevant, for models that accept instructions."
    )

    @property
    def texts(self) -> list[str]:
        """The text of each document."""
        return [document if isinstance(document, str) else document.text for document in self.documents]


# Removed from rerank requests: documents are not divided into chunks; one that is too long is truncated or refused.
RERANKING = LeftOut(fields=("max_chunks_per_doc",), forms={"documents[]": Document})


class ScoreRequest(PooledFields):
    """Body of /v1/score, in vLLM's format."""

    text_1: Text | Texts
    text_2: Text | Texts
    instruction: Annotated[str, Field(min_length=1, max_length=MAX_INSTRUCTION_LENGTH)] | None = Field(
        None, description="What makes two texts match, for models that accept instructions."
    )

    @model_validator(mode="after")
    def _can_be_paired(self) -> Self:
        first, second = self._texts(self.text_1), self._texts(self.text_2)
        if len(first) not in (1, len(second)):
            raise field_error(
                "text_1", f"must be one text, or as many texts as text_2; given {len(first)} and {len(second)}"
            )
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of texts to score. A single first text is paired with each second text."""
        first, second = self._texts(self.text_1), self._texts(self.text_2)
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    @staticmethod
    def _texts(given: str | list[str]) -> list[str]:
        return [given] if isinstance(given, str) else given


def _form_of_scoring(given: Any) -> str:
    """The format of a body of /v1/score: "labels" for SGLang's, "pairs" for vLLM's."""
    has_labels = "label_token_ids" in given if isinstance(given, dict) else isinstance(given, LabelScoreRequest)
    return "labels" if has_labels else "pairs"


AnyScoreRequest = Annotated[
    Annotated[ScoreRequest, Tag("pairs")] | Annotated[LabelScoreRequest, Tag("labels")], Discriminator(_form_of_scoring)
]


class PooledUsage(BaseModel):
    """Number of tokens processed."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(BaseModel):
    """The embedding of one input."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    """Response of /v1/embeddings."""

    object: str
    data: list[EmbeddingEntry]
    model: str
    usage: PooledUsage


class RerankResult(BaseModel):
    """The index of a document in the request, and its score. `document` is present only with `return_documents`."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankResponse(BaseModel):
    """Response of /v1/rerank. The most relevant document comes first."""

    id: str
    object: str
    model: str
    results: list[RerankResult]
    usage: PooledUsage
    meta: JsonObject


class ScoreEntry(BaseModel):
    """The score of one pair."""

    object: str
    index: int
    score: float


class LabelScoresResponse(BaseModel):
    """Response of /v1/score in SGLang's format: for each item, the probabilities of the given tokens."""

    object: str
    model: str
    scores: list[list[float]]
    usage: JsonObject


class ScoreResponse(BaseModel):
    """Response of /v1/score."""

    id: str
    object: str
    created: int
    model: str
    data: list[ScoreEntry]
    usage: PooledUsage
