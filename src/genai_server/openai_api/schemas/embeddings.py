"""Bodies of the endpoints that give vectors and scores of texts: OpenAI's, vLLM's, Jina's and Cohere's."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from genai_server.openai_api.schemas.base import JsonObject, NonEmptyText, Text, Wire, elements, field_error
from genai_server.openai_api.schemas.completions import Tokens, form_of_texts

# Most texts of a request, as OpenAI's.
MOST_INPUTS = 2048
MOST_INSTRUCTION = 8192
Texts = Annotated[list[Text], elements(MOST_INPUTS, least=1)]

Inputs = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[list[Tokens], elements(MOST_INPUTS, least=1), Tag("lists")],
    Discriminator(
        form_of_texts,
        custom_error_type="input",
        custom_error_message="must be a text, a list of token ids, or a list of either",
    ),
]


class PooledFields(Wire):
    """What every endpoint takes whose model reads whole texts."""

    model: str | None = Field(None, description="The served model's id; the first that can do it if left out.")
    device: str | None = Field(None, description="The configured device to run on; the least busy one if left out.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Longer texts are cut to so many tokens, with -1 to the most that the model reads."
    )
    priority: int | None = Field(None, ge=-1000, le=1000, description="Lower is served earlier; 0 if left out.")
    timeout: float | None = Field(None, gt=0, description="Seconds after which the request fails, waiting included.")
    user: Any = Field(None, description="Has no effect here.")

    @model_validator(mode="after")
    def _cuts_to_something(self) -> Self:
        if self.truncate_prompt_tokens == 0:
            raise field_error("truncate_prompt_tokens", "must be -1 or at least 1; given 0")
        return self


class EmbeddingRequest(PooledFields):
    """Body of /v1/embeddings. Special tokens in a text are read as such; token ids are read as they are."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="`float`, a list of numbers, or `base64`, the bytes of float32 numbers, lowest first."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Numbers of each vector; fewer than the model's own only where it is trained for that."
    )
    prompt_name: str | None = Field(
        None, max_length=1024, description="The name of one of the model's prompts, which is put before each text."
    )

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each input, as text or as token ids."""
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)


class Document(Wire):
    """A document as an object."""

    text: Text


class RerankRequest(PooledFields):
    """Body of /v1/rerank, in Jina's form, which vLLM and llama.cpp have as well, or in Cohere's."""

    query: NonEmptyText
    documents: Annotated[list[Text | Document], elements(MOST_INPUTS, least=1)]
    top_n: int | None = Field(None, ge=0, description="Most results; all if left out or 0.")
    return_documents: bool | None = Field(None, description="Whether results have their texts.")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Longer documents are cut to so many tokens.")
    instruction: Annotated[str, Field(min_length=1, max_length=MOST_INSTRUCTION)] | None = Field(
        None, description="What makes a document relevant; for models that read such a text."
    )

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [document if isinstance(document, str) else document.text for document in self.documents]


class ScoreRequest(PooledFields):
    """Body of /v1/score, in vLLM's form."""

    text_1: Text | Texts
    text_2: Text | Texts
    instruction: Annotated[str, Field(min_length=1, max_length=MOST_INSTRUCTION)] | None = Field(
        None, description="What makes two texts belong together; for models that read such a text."
    )

    @model_validator(mode="after")
    def _can_be_paired(self) -> Self:
        first, second = self._texts(self.text_1), self._texts(self.text_2)
        if len(first) not in (1, len(second)):
            raise field_error(
                "text_1", f"must be one text, or as many as text_2 has; given {len(first)} beside {len(second)}"
            )
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs to score: one text with each of the others, or the first with the first, and so on."""
        first, second = self._texts(self.text_1), self._texts(self.text_2)
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    @staticmethod
    def _texts(given: str | list[str]) -> list[str]:
        return [given] if isinstance(given, str) else given


class PooledUsage(BaseModel):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(BaseModel):
    """A vector."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    """Answer of /v1/embeddings."""

    object: str
    data: list[EmbeddingEntry]
    model: str
    usage: PooledUsage


class RerankResult(BaseModel):
    """A document's place among the others; `document` only if documents are returned."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankResponse(BaseModel):
    """Answer of /v1/rerank: the best document first."""

    id: str
    object: str
    model: str
    results: list[RerankResult]
    usage: PooledUsage
    meta: JsonObject


class ScoreEntry(BaseModel):
    """The score of a pair."""

    object: str
    index: int
    score: float


class ScoreResponse(BaseModel):
    """Answer of /v1/score."""

    id: str
    object: str
    created: int
    model: str
    data: list[ScoreEntry]
    usage: PooledUsage
