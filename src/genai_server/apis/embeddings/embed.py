"""Computes embeddings of texts (`embed`) and scores of text pairs (`score`), from the texts to the numbers.

Several APIs use these functions. Invalid requests are refused before an engine does any work.
"""

import asyncio
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from genai_server.apis.embeddings.schemas import PooledFields
from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext, Services, choose_engine, within
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures
from genai_server.http.telemetry.usage import Usage
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, PooledText
from genai_server.model_files.pooling_model import PoolingModel, Task
from genai_server.text.pooled_texts import CUT_BY, TRUNCATION, EncodedText, Pair, PooledTexts, TextLimit, named_prompt
from genai_server.timing import Stopwatch, Timings


@dataclass(frozen=True)
class Pooled:
    """The result of a request: the embeddings of texts, or the scores of text pairs, with the model's name and the
    token count.
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
        """The scores of text pairs; higher is better."""
        return [vector[0] for vector in self.vectors]

    @property
    def usage(self) -> JsonObject:
        """The token counts in OpenAI's format."""
        return {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens}


class PooledAnswer(AnswerFigures):
    """What log, metrics and traces report about a request for embeddings or scores."""

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
    """The embeddings of texts. An input that is a list of token ids is used unchanged.

    `dimensions` is the length of the vectors, if they are to be shorter than the model's own, and `prompt_name` selects
    one of the model's prompts, which is put in front of each text. `remedy` is the part of error messages that says how
    a client of this API asks for truncation. Raises RequestError, Unavailable, GenerationFailed, and ClientLeft when
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
    """The relevance scores of pairs of a query and a document.

    `param` is the field with the documents, for error messages. `instruction` says what makes a document relevant, for
    models that accept such a text. Documents are truncated to `document_tokens` tokens, if it is given. Raises the same
    errors as `embed`.
    """

    def encode(texts: PooledTexts, model: PoolingModel, limit: TextLimit) -> list[EncodedText]:
        limit = msgspec.structs.replace(limit, document=document_tokens)
        return texts.encode_pairs(pairs, limit, instruction=instruction, param=param)

    request = _PooledRequest(services, context, body, Task.RERANK, param)
    return await context.run_while_connected(request.run(encode))


@dataclass(frozen=True)
class _PooledRequest:
    """Runs one request for embeddings or scores, from the choice of the model to the result."""

    services: Services
    context: RequestContext
    body: PooledFields
    task: Task
    # The name of the texts' field.
    param: str
    remedy: str = TRUNCATION

    async def run(self, encode: Callable[[PooledTexts, PoolingModel, TextLimit], list[EncodedText]]) -> Pooled:
        """Convert the request's texts to tokens with the function `encode`, run the model on them, and return its
        vectors or scores.
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
        found = _vectors(data, len(texts))
        vectors: list[array[float]] = [found[0]] * len(texts)
        for number, vector in zip(order, found, strict=True):
            vectors[number] = vector
        return Pooled(chosen.id, vectors, len(prompt), pooling.normalizes)

    def _limit(self, info: ModelInfo) -> TextLimit:
        limit, source = info.max_length, info.limited_by
        cut_to = self.body.truncate_prompt_tokens
        if cut_to is not None and cut_to > limit:
            raise InvalidField(CUT_BY, "must be at most", limit=limit, limited_by=source, given=cut_to)
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
    """Split little-endian float32 data into `count` vectors of equal length."""
    size = len(data) // count
    found = []
    for start in range(0, len(data), size):
        vector = array("f", data[start : start + size])
        if sys.byteorder == "big":
            vector.byteswap()
        found.append(vector)
    return found


def _shortened(vectors: "Sequence[array[float]]", dimensions: int, *, normalizes: bool) -> "list[array[float]]":
    """Cut each vector to `dimensions` numbers. If the model normalizes vectors, the short ones get length 1 again."""
    found = []
    for vector in vectors:
        short = vector[:dimensions]
        length = math.hypot(*short) if normalizes else 1.0
        found.append(array("f", [number / length for number in short]) if length else short)
    return found
