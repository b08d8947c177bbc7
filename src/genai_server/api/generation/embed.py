"""Vectors of texts and scores of pairs: `embed` and `score`, from the texts to the numbers.

Other APIs call these two as well. Every refusal is raised before any work of the engine.
"""

import asyncio
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from genai_server.api.catalog import ChosenModel, ServedModel
from genai_server.api.generation.answers import ABORT
from genai_server.api.generation.request_context import RequestContext
from genai_server.api.services import Services
from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.stream import TokenStream
from genai_server.errors import DeadlinePassed, InvalidField, RequestCancelled, SessionTerminated
from genai_server.generation import FinishReason, GenerationRequest, ModelInfo, PooledText
from genai_server.openai_api.usage import Usage
from genai_server.pooling_model import PoolingModel, Task
from genai_server.text.pooled_texts import CUT_BY, EncodedText, Pair, PooledTexts, TextLimit, named_prompt
from genai_server.timing import Stopwatch, Timings


@dataclass(frozen=True)
class PoolingOptions:
    """What a request may say beside its texts."""

    # The served model's id; None for the first that can do it.
    model: str | None = None
    device: str | None = None
    # Longer texts are cut to so many tokens, with -1 to the most that the model reads; None refuses them.
    cut_to: int | None = None
    # Lower values are served earlier.
    priority: int = 0
    # Seconds; None for the server's limit.
    timeout: float | None = None
    # What a request of this API says to have texts cut to what the model reads.
    remedy: str = f"{CUT_BY}: -1"


@dataclass(frozen=True)
class Embeddings:
    """The vectors of some texts."""

    # The model's name in answers.
    model: str
    # In the order of the texts; float32.
    vectors: Sequence["array[float]"]
    # Of all texts, with the special tokens around them.
    num_tokens: int


@dataclass(frozen=True)
class PairScores:
    """The scores of some pairs; a higher one is better."""

    # The model's name in answers.
    model: str
    # In the order of the pairs.
    scores: Sequence[float]
    # Of all pairs, with the special tokens around them.
    num_tokens: int


class PooledAnswer:
    """What log, metrics and traces tell of a request for vectors or scores."""

    def __init__(self, stream: TokenStream, stopwatch: Stopwatch) -> None:
        self._stream = stream
        self._stopwatch = stopwatch

    @property
    def outcome(self) -> str:
        """How the request ended: its finish reason, its error's code, or `abort` if the client left first."""
        reason = self._stream.reason
        return reason.value if reason is not None else self._stream.error_code or ABORT

    @property
    def usage(self) -> Usage:
        """The tokens of the texts."""
        return Usage(self._stopwatch.input_tokens)

    def timings(self) -> Timings:
        """The request's timings; known at the end."""
        return self._stopwatch.timings(self._stream.phases, 0)

    def close(self) -> None:
        """Cancel the request in the engine if it still runs."""
        self._stream.close()


async def embed(
    services: Services,
    context: RequestContext,
    inputs: Sequence[str | list[int]],
    options: PoolingOptions,
    *,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> Embeddings:
    """The vectors of texts, or of token ids, which are read as they are.

    `dimensions` makes vectors shorter, and `prompt_name` names one of the model's texts before a text. Raises
    RequestError, Unavailable, GenerationFailed, and ClientLeft as soon as the client has disconnected. Then nothing is
    left running.
    """

    def check(model: PoolingModel) -> None:
        named_prompt(model, prompt_name)
        if dimensions is not None and not model.takes_length(dimensions):
            raise InvalidField(
                f"dimensions must be one that the model is trained for: {model.lengths()}; given {dimensions}",
                param="dimensions",
            )

    def encode(texts: PooledTexts, model: PoolingModel, limit: TextLimit) -> list[EncodedText]:
        return texts.encode(inputs, limit, prompt=named_prompt(model, prompt_name))

    request = _PooledRequest(services, context, options, Task.EMBED, "input")
    pooled = await context.waits_for(request.run(check, encode))
    vectors = pooled.vectors
    if dimensions is not None and dimensions < len(vectors[0]):
        vectors = await asyncio.to_thread(_shortened, vectors, dimensions, normalizes=pooled.about.normalizes)
    return Embeddings(pooled.model, vectors, pooled.num_tokens)


async def score(
    services: Services,
    context: RequestContext,
    pairs: Sequence[Pair],
    options: PoolingOptions,
    *,
    param: str,
    instruction: str | None = None,
    document_tokens: int | None = None,
) -> PairScores:
    """The scores of pairs of a query and a document.

    `param` is the field of the documents. `instruction` says what makes a document relevant, for models that read such
    a text. Documents are cut to `document_tokens`. Raises what `embed` raises.
    """

    def encode(texts: PooledTexts, model: PoolingModel, limit: TextLimit) -> list[EncodedText]:
        limit = msgspec.structs.replace(limit, document=document_tokens)
        return texts.encode_pairs(pairs, limit, instruction=instruction, param=param)

    request = _PooledRequest(services, context, options, Task.RERANK, param)
    pooled = await context.waits_for(request.run(lambda model: None, encode))
    return PairScores(pooled.model, [vector[0] for vector in pooled.vectors], pooled.num_tokens)


@dataclass(frozen=True)
class _Pooled:
    model: str
    about: PoolingModel
    vectors: Sequence["array[float]"]
    num_tokens: int


@dataclass(frozen=True)
class _PooledRequest:
    """A request on its way from the texts to the engine's numbers."""

    services: Services
    context: RequestContext
    options: PoolingOptions
    task: Task
    # The field of the texts.
    param: str

    async def run(
        self,
        check: Callable[[PoolingModel], None],
        encode: Callable[[PooledTexts, PoolingModel, TextLimit], list[EncodedText]],
    ) -> _Pooled:
        """Encode the texts and have the engine read them."""
        self.services.drain.require_open()
        chosen, served = await self._model()
        engine, info = served.router.pick(self.options.device)
        self.context.record.model, self.context.record.device = chosen.id, engine.device
        engine.require_capacity(1, param=self.param)
        codec = served.codec_of(engine.device)
        about = codec.pooling
        if about is None:
            raise InvalidField(f"model {chosen.id} has changed; it generates text now", param="model")
        check(about)
        limit = self._limit(info)
        order, texts, prompt = await codec.encode_pooled(
            lambda pooled: self._in_order(encode(pooled, about, limit), info.vocab_size)
        )
        engine.require_capacity(1, [len(prompt)], param=self.param)
        data = await self._read(engine, prompt, texts)
        found = _vectors(data, len(texts))
        vectors: list[array[float]] = [found[0]] * len(texts)
        for number, vector in zip(order, found, strict=True):
            vectors[number] = vector
        return _Pooled(chosen.id, about, vectors, len(prompt))

    async def _model(self) -> tuple[ChosenModel, ServedModel]:
        models, context = self.services.models, self.context
        chosen = models.choose_for(self.options.model, self.task)
        if self.options.timeout is not None:
            context.deadline.tighten(self.options.timeout, param="timeout")
        with context.record.arrival.loading():
            return await models.serving(chosen, context.deadline.seconds_left)

    def _limit(self, info: ModelInfo) -> TextLimit:
        own = self.services.settings.max_length
        limit = min(own, info.context_length)
        source = "GENAI_MAX_LENGTH" if own < info.context_length else "the model's limit"
        cut_to = self.options.cut_to
        if cut_to is not None and cut_to > limit:
            raise InvalidField(f"{CUT_BY} must be at most {limit} ({source}), given {cut_to}", param=CUT_BY)
        return TextLimit(limit, source, limit if cut_to == -1 else cut_to, remedy=self.options.remedy)

    def _in_order(self, texts: Sequence[EncodedText], vocab_size: int) -> tuple[list[int], list[PooledText], list[int]]:
        """The order in which the engine reads the texts, similar lengths together; and texts and tokens in it."""
        order = sorted(range(len(texts)), key=lambda number: -texts[number].about.num_tokens)
        for number, text in enumerate(texts):
            if (strange := max(text.tokens)) >= vocab_size:
                place = self.param if len(texts) == 1 else f"{self.param}[{number}]"
                raise InvalidField(
                    f"{place} must have token ids below {vocab_size}, the model's vocabulary; given {strange}",
                    param=place,
                )
        prompt = [token for number in order for token in texts[number].tokens]
        return order, [texts[number].about for number in order], prompt

    async def _read(self, engine: EngineClient, prompt: list[int], texts: list[PooledText]) -> bytes:
        context = self.context
        request = GenerationRequest(
            context.request_id,
            prompt,
            max_tokens=0,
            max_length=len(prompt),
            priority=self.options.priority,
            timeout=context.deadline.seconds_left,
            unique_id=context.unique_id,
            texts=texts,
        )
        stopwatch = Stopwatch(context.record.arrival, len(prompt))
        (stream,) = await engine.in_flight.submit(request)
        context.record.pooled(PooledAnswer(stream, stopwatch))
        try:
            data = await stream.vectors()
        finally:
            stopwatch.stop()
            stream.close()
        match stream.reason:
            case FinishReason.TIMEOUT:
                most = f"{context.deadline.seconds:g} s"
                raise DeadlinePassed(f"the request was not done within {most} (GENAI_REQUEST_TIMEOUT, or its own)")
            case FinishReason.TERMINATED:
                raise SessionTerminated("the operator has terminated the device's session")
            case FinishReason.CANCELLED:
                raise RequestCancelled("the operator has cancelled the request")
        return data


def _vectors(data: bytes, count: int) -> list["array[float]"]:
    """`count` vectors of equal lengths in the bytes of float32 numbers, lowest byte first."""
    size = len(data) // count
    found = []
    for start in range(0, len(data), size):
        vector = array("f", data[start : start + size])
        if sys.byteorder == "big":
            vector.byteswap()
        found.append(vector)
    return found


def _shortened(vectors: "Sequence[array[float]]", dimensions: int, *, normalizes: bool) -> "list[array[float]]":
    """The first numbers of each vector, of length 1 again if the model's vectors are."""
    found = []
    for vector in vectors:
        short = vector[:dimensions]
        length = math.hypot(*short) if normalizes else 1.0
        found.append(array("f", [number / length for number in short]) if length else short)
    return found
