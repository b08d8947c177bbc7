"""The endpoints for embedding models and reranking models: /v1/embeddings of OpenAI's API computes vectors, /v1/rerank
and /v2/rerank sort documents by relevance as in the APIs of Jina, vLLM and Cohere, and /v1/score scores pairs of texts
as in vLLM.

The function `embed` computes the embeddings of texts, and `score` the scores of text pairs; other APIs use them, too.
Invalid requests are refused before an engine does any work.
"""

import asyncio
import base64
import math
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

import msgspec
from fastapi.responses import Response
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from genai_server.apis.scoring import LabelScoreRequest, label_scores
from genai_server.apis.shared.router import VersionedRouter
from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import (
    RequestContext,
    RequestContextDep,
    Services,
    ServicesDep,
    choose_engine,
    within,
)
from genai_server.generation.parameters.base import NonEmptyText, ResultFields, StrictModel, Text, elements, field_error
from genai_server.generation.parameters.completion_body import Tokens, form_of_texts
from genai_server.http.body_route import BodyRoute, lenient_route
from genai_server.http.json_response import JsonObject, built_response, json_response
from genai_server.http.leniency import RemovalRules
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures, Usage
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, PooledText
from genai_server.model_files.pooling_model import PoolingModel, Task
from genai_server.text.pooled_texts import (
    TRUNCATION,
    TRUNCATION_FIELD,
    EncodedText,
    Pair,
    PooledTexts,
    TextLimit,
    named_prompt,
)
from genai_server.timing import Stopwatch, Timings

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
    """Base class of the bodies of all endpoints for embedding models and reranking models, which pool the output for a
    text to a vector or score: the model, how to schedule the request, and whether to truncate long texts.
    """

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
    """Body of /v1/embeddings, in OpenAI's format: one or more inputs, the format and the length of the vectors, and a
    prompt to put in front of each text.

    Special tokens that are written in a text are encoded as special tokens. Inputs that are lists of token ids are used
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
        """The inputs to embed as a list, even if the body has only one. Each is a text or a list of token ids."""
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)


class Document(StrictModel):
    """A document in a rerank request or its response: an object whose field `text` has the document's text."""

    text: Text


class RerankRequest(PooledFields):
    """Body of /v1/rerank and /v2/rerank, in the format of Jina, vLLM, llama.cpp or Cohere: a query, the documents to
    sort by their relevance to the query, and how many results to return.
    """

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
        """The text of each document, in the order of the request, whether the document is given as a text or as an
        object.
        """
        return [document if isinstance(document, str) else document.text for document in self.documents]


# Removed from rerank requests: documents are not divided into chunks; one that is too long is truncated or refused.
RERANKING = RemovalRules(fields=("max_chunks_per_doc",), forms={"documents[]": Document})


class ScoreRequest(PooledFields):
    """Body of /v1/score in vLLM's format: the texts `text_1` and `text_2`, which are paired and scored. Either may be a
    list; `text_1` is one text or has as many texts as `text_2`.
    """

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
        """The pairs of texts to score. If `text_1` is a single text, it is paired with each text in `text_2`."""
        first, second = self._texts(self.text_1), self._texts(self.text_2)
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    @staticmethod
    def _texts(value: str | list[str]) -> list[str]:
        return [value] if isinstance(value, str) else value


def _form_of_scoring(body: Any) -> str:
    """Return the format of a body of /v1/score: "labels" for SGLang's, which asks for probabilities of tokens, or
    "pairs" for vLLM's, which scores pairs of texts. Pydantic calls it to choose the schema that validates the body.
    """
    has_labels = "label_token_ids" in body if isinstance(body, dict) else isinstance(body, LabelScoreRequest)
    return "labels" if has_labels else "pairs"


AnyScoreRequest = Annotated[
    Annotated[ScoreRequest, Tag("pairs")] | Annotated[LabelScoreRequest, Tag("labels")], Discriminator(_form_of_scoring)
]


class PooledUsage(BaseModel):
    """The field `usage` of the responses for embeddings and scores: the number of tokens of all texts. Both of its
    fields have the same value, since no tokens are generated.
    """

    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(BaseModel):
    """The embedding of one input: the input's index in the request, and the vector as a list of
    numbers or in base64.
    """

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    """Response of /v1/embeddings in OpenAI's format: one entry for each input, in order, and the number of tokens."""

    object: str
    data: list[EmbeddingEntry]
    model: str
    usage: PooledUsage


class RerankResult(BaseModel):
    """A result of a rerank request: the index of a document in the request and its relevance score. /v1/rerank includes
    the document's text as `document` unless the request declines it, /v2/rerank only if the request asks for it.
    """

    index: int
    relevance_score: float
    document: Document | None = None


class RerankResponse(BaseModel):
    """Response of /v1/rerank and /v2/rerank. The result for the most relevant document comes first."""

    id: str
    object: str
    model: str
    results: list[RerankResult]
    usage: PooledUsage
    meta: JsonObject


class ScoreEntry(BaseModel):
    """The score of one pair of texts in the response of /v1/score. `index` is the pair's position in the request."""

    object: str
    index: int
    score: float


class LabelScoresResponse(BaseModel):
    """Response of /v1/score in SGLang's format: for each item of the request, the probabilities of the tokens in
    `label_token_ids`.
    """

    object: str
    model: str
    scores: list[list[float]]
    usage: JsonObject


class ScoreResponse(BaseModel):
    """Response of /v1/score in vLLM's format: a score for each pair of texts, in the order of the request."""

    id: str
    object: str
    created: int
    model: str
    data: list[ScoreEntry]
    usage: PooledUsage


@dataclass(frozen=True)
class Pooled:
    """The result of `embed` or `score`: the embeddings of texts, or the scores of text pairs as vectors of length 1, in
    the order of the request, with the model's name and the token count.
    """

    # The model's name in responses.
    model: str
    # float32, in the order of the texts.
    vectors: Sequence["array[float]"]
    # Tokens of all texts, including special tokens.
    num_tokens: int
    # Whether vectors have length 1.
    is_normalized: bool = False

    @property
    def scores(self) -> list[float]:
        """The scores of text pairs, in the order of the request; a higher score means that the texts match better. Only
        for the results of `score`.
        """
        return [vector[0] for vector in self.vectors]

    @property
    def usage(self) -> JsonObject:
        """The token counts as the object `usage` in OpenAI's format."""
        return {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens}


class PooledAnswer(AnswerFigures):
    """The figures of a request for embeddings or scores that the log, metrics and traces report: how it ended, its
    token counts and its times. They are read from the stream of the engine's replies.
    """

    def __init__(self, stream: TokenStream, stopwatch: Stopwatch) -> None:
        self._stream = stream
        self._stopwatch = stopwatch

    @property
    def outcome(self) -> str:
        reason = self._stream.reason
        return reason.value if reason is not None else self._stream.error_code or ABORT

    @property
    def usage(self) -> Usage:
        return Usage(self._stopwatch.input_tokens)

    def timings(self) -> Timings:
        return self._stopwatch.timings(self._stream.phases, 0)

    def close(self) -> None:
        self._stream.close()


async def embed(
    services: Services,
    context: RequestContext,
    inputs: Sequence[str | list[int]],
    body: PooledFields,
    *,
    dimensions: int | None = None,
    prompt_name: str | None = None,
    remedy: str = TRUNCATION,
) -> Pooled:
    """Compute the embeddings of texts with an embedding model, and return them in order. An input that is a list of
    token ids is used unchanged.

    `body` says which model to use, and whether to truncate long texts. `dimensions` is the length of the vectors, if
    they are to be shorter than the model's own; `prompt_name` selects one of the model's prompts, which is put in front
    of each text. `remedy` is the part of error messages that says how a client of this API asks for truncation. Raises
    RequestError if the request is invalid, Unavailable if no engine can take it, GenerationFailed, and ClientLeft when
    the client disconnects, after which nothing is left running.
    """

    def encode(texts: PooledTexts, model: PoolingModel, limit: TextLimit) -> list[EncodedText]:
        prompt = named_prompt(model, prompt_name)
        if dimensions is not None and not model.takes_length(dimensions):
            raise InvalidField("dimensions", f"must be supported by the model ({model.lengths()})", given=dimensions)
        return texts.encode(inputs, limit, prompt=prompt)

    request = _PooledRequest(services, context, body, Task.EMBED, "input", remedy)
    pooled = await context.run_while_connected(request.run(encode))
    if dimensions is None or dimensions >= len(pooled.vectors[0]):
        return pooled
    vectors = await asyncio.to_thread(_shortened, pooled.vectors, dimensions, normalizes=pooled.is_normalized)
    return replace(pooled, vectors=vectors)


async def score(
    services: Services,
    context: RequestContext,
    pairs: Sequence[Pair],
    body: PooledFields,
    *,
    param: str,
    instruction: str | None = None,
    document_tokens: int | None = None,
) -> Pooled:
    """Compute the relevance scores of pairs of a query and a document with a reranking model, and return them in order.

    `body` says which model to use, and whether to truncate long texts. `param` is the field with the documents, for
    error messages. `instruction` says what makes a document relevant, for models that accept such a text. Documents are
    truncated to `document_tokens` tokens, if it is given. Raises RequestError if the request is invalid, Unavailable if
    no engine can take it, GenerationFailed, and ClientLeft when the client disconnects.
    """

    def encode(texts: PooledTexts, model: PoolingModel, limit: TextLimit) -> list[EncodedText]:
        limit = msgspec.structs.replace(limit, document=document_tokens)
        return texts.encode_pairs(pairs, limit, instruction=instruction, param=param)

    request = _PooledRequest(services, context, body, Task.RERANK, param)
    return await context.run_while_connected(request.run(encode))


@dataclass(frozen=True)
class _PooledRequest:
    """Runs one request for embeddings or scores, from the choice of the model to the result. `embed` and `score` create
    one for each request and call `run`. `task` says which kind of model is needed, and `param` is the field with the
    texts, for error messages.
    """

    services: Services
    context: RequestContext
    body: PooledFields
    task: Task
    # The name of the texts' field.
    param: str
    remedy: str = TRUNCATION

    async def run(self, encode: Callable[[PooledTexts, PoolingModel, TextLimit], list[EncodedText]]) -> Pooled:
        """Run the request, and return the vectors or scores of its texts. `encode` is a function that converts the
        texts to tokens for the chosen model, within the limits for their lengths. Raises the errors that it raises,
        RequestError, Unavailable and GenerationFailed.
        """
        chosen, _, engine, info, codec = await choose_engine(self.services, self.context, self.body, self.task)
        require_capacity = partial(
            engine.require_capacity,
            1,
            param=self.param,
            tenant=self.context.tenant,
            low_priority=self.context.low_priority,
        )
        require_capacity()
        pooling = codec.pooling
        if pooling is None:
            raise InvalidField("model", f"{chosen.id} has been replaced by one that generates text")
        limit = self._limit(info)
        async with within(self.context.deadline):
            order, texts, prompt = await codec.encode_pooled(
                lambda pooled: self._in_order(encode(pooled, pooling, limit), info.vocab_size), self.context.owner
            )
        require_capacity([len(prompt)])
        data = await self._read(engine, prompt, texts)
        outputs = _vectors(data, len(texts))
        vectors: list[array[float]] = [outputs[0]] * len(texts)
        for number, vector in zip(order, outputs, strict=True):
            vectors[number] = vector
        return Pooled(chosen.id, vectors, len(prompt), pooling.normalizes)

    def _limit(self, info: ModelInfo) -> TextLimit:
        limit, source = info.max_length, info.limited_by
        cut_to = self.body.truncate_prompt_tokens
        if cut_to is not None and cut_to > limit:
            raise InvalidField(TRUNCATION_FIELD, "must be at most", limit=limit, limited_by=source, given=cut_to)
        return TextLimit(limit, source, limit if cut_to == -1 else cut_to, remedy=self.remedy)

    def _in_order(self, texts: Sequence[EncodedText], vocab_size: int) -> tuple[list[int], list[PooledText], list[int]]:
        """Sort the texts by length, longest first, so that the engine gets texts of similar length together.

        Returns the index that each text had before sorting, the sorted texts, and the tokens of all of them in one
        list. Raises InvalidField for a token id that the model does not have.
        """
        order = sorted(range(len(texts)), key=lambda number: -texts[number].about.num_tokens)
        for number, text in enumerate(texts):
            if (largest := max(text.tokens)) >= vocab_size:
                path = self.param if len(texts) == 1 else f"{self.param}[{number}]"
                raise InvalidField(
                    path, f"must have token ids below {vocab_size}, the model's vocabulary size", given=largest
                )
        prompt = [token for number in order for token in texts[number].tokens]
        return order, [texts[number].about for number in order], prompt

    async def _read(self, engine: EngineClient, prompt: list[int], texts: list[PooledText]) -> bytes:
        context = self.context
        request = GenerationRequest(
            context.record.request_id,
            prompt,
            max_tokens=0,
            max_length=len(prompt),
            tenant=context.tenant,
            priority=self.body.priority or 0,
            precedence=context.precedence(self.body.priority),
            low_priority=context.low_priority,
            timeout=context.deadline.seconds_left,
            unique_id=context.record.unique_id,
            key_name=context.record.key_name,
            texts=texts,
        )
        stopwatch = Stopwatch(context.record.arrival, len(prompt))
        (stream,) = await engine.in_flight.submit(request)
        context.record.answers = [PooledAnswer(stream, stopwatch)]
        try:
            data = await stream.vectors()
        finally:
            stopwatch.stop()
            stream.close()
        context.deadline.require_end(stream.reason)
        return data


def _vectors(data: bytes, count: int) -> list["array[float]"]:
    """Split `data`, the bytes of little-endian float32 numbers, into `count` vectors of equal
    length, and return them.
    """
    size = len(data) // count
    vectors = []
    for start in range(0, len(data), size):
        vector = array("f", data[start : start + size])
        if sys.byteorder == "big":
            vector.byteswap()
        vectors.append(vector)
    return vectors


def _shortened(vectors: "Sequence[array[float]]", dimensions: int, *, normalizes: bool) -> "list[array[float]]":
    """Return copies of the vectors that are cut to their first `dimensions` numbers. If the model normalizes vectors
    (`normalizes`), the short ones are scaled to length 1 again.
    """
    shortened = []
    for vector in vectors:
        short = vector[:dimensions]
        length = math.hypot(*short) if normalizes else 1.0
        shortened.append(array("f", [number / length for number in short]) if length else short)
    return shortened


router = VersionedRouter(BodyRoute, "openai", codes=(504,))
rerank_router = VersionedRouter(lenient_route(RERANKING), "rerank", codes=(504,))
# Responses with more numbers are encoded in a thread.
FEW_NUMBERS = 4096


@router.post("/v1/embeddings", response_model=EmbeddingResponse)
@router.post("/api/v0/embeddings", include_in_schema=False)  # LM Studio's name
async def create_embeddings(body: EmbeddingRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Compute the embeddings of texts: for each input, a vector that represents its meaning. Needs
    an embedding model.
    """
    pooled = await embed(services, context, body.inputs, body, dimensions=body.dimensions, prompt_name=body.prompt_name)
    as_base64 = body.encoding_format == "base64"
    return await built_response(
        lambda: embeddings_body(pooled, as_base64=as_base64),
        is_long=len(pooled.vectors) * len(pooled.vectors[0]) > FEW_NUMBERS,
    )


def embeddings_body(pooled: Pooled, *, as_base64: bool) -> JsonObject:
    """Return OpenAI's response body with the embeddings in the order of the texts, as lists of numbers, or with
    `as_base64` as little-endian float32 numbers in base64.
    """
    entries = [
        {"object": "embedding", "index": index, "embedding": _as_base64(vector) if as_base64 else vector.tolist()}
        for index, vector in enumerate(pooled.vectors)
    ]
    return {"object": "list", "data": entries, "model": pooled.model, "usage": pooled.usage}


def _as_base64(vector: "array[float]") -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()


@rerank_router.post("/v1/rerank", response_model=RerankResponse, response_model_exclude_none=True)
async def rerank(body: RerankRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Sort documents by their relevance to a query. This is Jina's rerank API, which vLLM and llama.cpp also have, and
    version 1 of Cohere's. Needs a reranking model.
    """
    return await _ranked(body, services, context, shows=body.return_documents is not False)


@rerank_router.post("/v2/rerank", response_model=RerankResponse, response_model_exclude_none=True)
async def rerank_v2(body: RerankRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Sort documents by their relevance to a query. This is version 2 of Cohere's rerank API, which returns the
    documents' texts only on request. Needs a reranking model.
    """
    return await _ranked(body, services, context, shows=bool(body.return_documents))


@rerank_router.post("/v1/score", response_model=ScoreResponse | LabelScoresResponse)
async def score_pairs(body: AnyScoreRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Score how well pairs of texts match, as in vLLM's API, which needs a reranking model, or get the probabilities of
    given tokens after each item, as in SGLang's, which needs a model that generates text.
    """
    if isinstance(body, LabelScoreRequest):
        scored = await label_scores(services, body, context, normalizes=False)
        response = {"object": "scoring", "model": scored.model, "scores": scored.probabilities}
        return json_response(response | {"usage": scored.usage})
    pairs = [
        Pair(first, second, _place("text_1", body.text_1, number), _place("text_2", body.text_2, number))
        for number, (first, second) in enumerate(body.pairs)
    ]
    pooled = await score(services, context, pairs, body, param="text_2", instruction=body.instruction)
    return json_response(scores_body(context.answer_id("score-"), int(time.time()), pooled))


def _place(field: str, value: str | list[str], number: int) -> str:
    """For error messages, return where the text of the pair with the index `number` is in the request body, such as
    `text_2[3]`.

    `value` is the value of the field `field`. The path of a single text, which belongs to all pairs, has no index.
    """
    return field if isinstance(value, str) or len(value) == 1 else f"{field}[{number}]"


async def _ranked(body: RerankRequest, services: Services, context: RequestContext, *, shows: bool) -> Response:
    pooled = await score(
        services,
        context,
        [Pair(body.query, text, "query", f"documents[{number}]") for number, text in enumerate(body.texts)],
        body,
        param="documents",
        instruction=body.instruction,
        document_tokens=body.max_tokens_per_doc,
    )
    documents = body.texts if shows else None
    return json_response(rerank_body(context.answer_id("rerank-"), pooled, top_n=body.top_n, documents=documents))


def rerank_body(id: str, pooled: Pooled, *, top_n: int | None, documents: Sequence[str] | None) -> JsonObject:
    """Return a response body in Jina's format, best document first, with the additional fields that Cohere's clients
    read.

    At most `top_n` documents are included; None or 0 includes all. `documents`, if given, are the texts to return with
    the results, in the order of the request. `id` is the response's id.
    """
    scores = pooled.scores
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: top_n or None]
    results: list[JsonObject] = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    if documents is not None:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    meta = {"tokens": {"input_tokens": pooled.num_tokens, "output_tokens": 0}}
    body = {"id": id, "object": "list", "model": pooled.model, "results": results}
    return body | {"usage": pooled.usage, "meta": meta}


def scores_body(id: str, created: int, pooled: Pooled) -> JsonObject:
    """Return a response body in vLLM's format, with the scores in the order of the pairs. `id` is the response's id,
    and `created` its time in seconds since 1970.
    """
    entries = [{"object": "score", "index": index, "score": score} for index, score in enumerate(pooled.scores)]
    body = {"id": id, "object": "list", "created": created, "model": pooled.model, "data": entries}
    return body | {"usage": pooled.usage}
