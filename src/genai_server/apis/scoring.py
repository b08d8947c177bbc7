"""The endpoints /v1/generative_scoring and /v1/classify, in vLLM's and SGLang's formats. With a model that generates
text, the first returns how likely given tokens are after each text, and the second which of the client's labels fits
each text.
"""

import json
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Self

from fastapi.responses import Response
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from genai_server.apis.shared.router import VersionedRouter
from genai_server.errors import GenerationFailed, InvalidField, PromptTooLong
from genai_server.generation.dependencies import (
    RequestContext,
    RequestContextDep,
    Services,
    ServicesDep,
    choose_by_prompt,
    choose_engine,
    within,
)
from genai_server.generation.next_tokens import (
    ChatWithOptions,
    NextTokens,
    NextTokenScorer,
    OptionScores,
    encode_chats_with_options,
    log_shares,
    score_options,
)
from genai_server.generation.parameters.base import NonEmptyText, ResultFields, Text, elements, field_error
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.parameters.completion_body import Tokens, form_of_texts
from genai_server.generation.parameters.sampling_parameters import MAX_SALT_LENGTH
from genai_server.generation.prompts import EncodedPrompt
from genai_server.http.body_route import BodyRoute
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject, json_response
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import ModelInfo
from genai_server.model_files.pooling_model import Task
from genai_server.text.codec import TextCodec

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
    """Body of /v1/generative_scoring in vLLM's format, and of /v1/score in SGLang's format. For each item, a prompt is
    made of the query and the item; the client asks how likely the tokens `label_token_ids` are after this prompt.

    Special tokens that are written in a text are encoded as special tokens.
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
    """A result of /v1/generative_scoring: the probability of the first of the request's `label_token_ids` after one
    item. `index` is the item's position in the request.
    """

    index: int
    object: str
    score: float


class LabelScoreResponse(BaseModel):
    """Response of /v1/generative_scoring in vLLM's format: one score for each item, in the order of the request."""

    id: str
    object: str
    created: int
    model: str
    data: list[LabelScore]
    usage: JsonObject


class ClassifyRequest(ResultFields):
    """Body of /v1/classify in vLLM's format: the texts to classify and, because a model that generates text has none of
    its own, the labels to choose from. `instructions` says what the labels are about.
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
        """The texts to classify as a list, even if the body has only one."""
        return [self.input] if isinstance(self.input, str) else self.input


class TextClass(BaseModel):
    """A result of /v1/classify: the most likely label of one text, and the probabilities of all labels in the order of
    the request. `index` is the text's position in the request.
    """

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(BaseModel):
    """Response of /v1/classify in vLLM's format: one result for each text, in the order of the request."""

    id: str
    object: str
    created: int
    model: str
    data: list[TextClass]
    usage: JsonObject


_NAMES = FieldNames({"messages": "input"})
_INSTRUCTIONS = "Choose the label that fits the text."


@dataclass(frozen=True)
class ScoredTexts:
    """The result of `label_scores` or `classify`: for each text, the probability of each token or label, in the order
    of the request, with the model's name and the token counts.
    """

    # The model's name in responses.
    model: str
    probabilities: Sequence[Sequence[float]]
    tokens: Usage

    @property
    def usage(self) -> JsonObject:
        """The token counts as the object `usage` in vLLM's format."""
        return {"prompt_tokens": self.tokens.prompt, "total_tokens": self.tokens.prompt, "completion_tokens": 0}


async def label_scores(
    services: Services, body: LabelScoreRequest, context: RequestContext, *, normalizes: bool
) -> ScoredTexts:
    """Compute how likely the request's `label_token_ids` are as the next token after each prompt, which consists of the
    query and one item. Returns a probability for each prompt and token.

    `normalizes` says whether the probabilities of these tokens are scaled to a sum of 1 if the request does not say so
    with `apply_softmax`. Raises RequestError if the request is invalid, Unavailable if no engine can take it,
    GenerationFailed, and ClientLeft when the client disconnects.
    """
    return await context.run_while_connected(_label_scores(services, body, context, normalizes))


async def classify(services: Services, body: ClassifyRequest, context: RequestContext) -> ScoredTexts:
    """Compute how likely each of the request's labels is for each text, by the probabilities with which the model would
    answer with the labels. Returns a probability for each text and label.

    Raises RequestError if the request is invalid, Unavailable if no engine can take it, GenerationFailed, and
    ClientLeft when the client disconnects.
    """
    return await context.run_while_connected(_classify(services, body, context))


async def _label_scores(
    services: Services, body: LabelScoreRequest, context: RequestContext, normalizes: bool
) -> ScoredTexts:
    items = [body.items] if isinstance(body.items, str) else body.items
    context.count_answers(len(items), "items")
    choice = await choose_engine(services, context, body, Task.GENERATE)
    chosen, _, engine, model, codec = choice
    engine.require_capacity(1, param="items", tenant=context.tenant, low_priority=context.low_priority)
    async with within(context.deadline):
        prompts = await _prompts(body, items, codec, model, context)
    choice = choose_by_prompt(context, choice, prompts[0].head.text, device=body.device, cache_salt=body.cache_salt)
    with closing(NextTokenScorer(services, context, choice, body, param="items")) as scorer:
        results = await scorer.run(prompts)
    normalizes = normalizes if body.apply_softmax is None else body.apply_softmax
    probabilities = []
    for logprobs in results:
        if isinstance(logprobs, GenerationFailed):
            raise logprobs
        shares = log_shares(logprobs) if normalizes else logprobs
        probabilities.append([math.exp(shares[token]) for token in body.label_token_ids])
    return ScoredTexts(chosen.id, probabilities, scorer.usage)


async def _prompts(
    body: LabelScoreRequest,
    items: Sequence[str | list[int]],
    codec: TextCodec,
    model: ModelInfo,
    context: RequestContext,
) -> list[NextTokens]:
    """Encode the prompts of a request, one for each item. A prompt consists of the query and an item, in the order that
    the request asks for.

    If all prompts begin with the query, its tokens are counted as prompt tokens only once. Raises InvalidField for
    unknown token ids and for an empty prompt, and PromptTooLong.
    """
    add_special = body.add_special_tokens is not False
    query = await _encode(body.query, "query", codec, context, add_special=add_special)
    paths = [f"items[{number}]" for number in range(len(items))]
    encoding = zip(items, paths, strict=True)
    parts = [await _encode(item, path, codec, context, add_special=False) for item, path in encoding]
    for name, tokens in (("label_token_ids", body.label_token_ids), ("query", query), *zip(paths, parts, strict=True)):
        if (largest := max(tokens, default=0)) >= model.vocab_size:
            raise InvalidField(name, "must have token ids below", limit=model.vocab_size, given=largest)
    head = EncodedPrompt([] if body.item_first else query)
    tails = [[*part, *query] for part in parts] if body.item_first else parts
    prompts = []
    for number, tail in enumerate(tails):
        prompt = NextTokens(head, tail, body.label_token_ids, len(head.tokens) if number else 0)
        if not prompt.num_tokens:
            raise InvalidField("query", "must have at least one token, together with the item")
        if prompt.num_tokens >= model.max_length:
            limit, source = model.max_length, model.limited_by
            raise PromptTooLong(paths[number], tokens=prompt.num_tokens, limit=limit, limited_by=source)
        prompts.append(prompt)
    return prompts


async def _encode(
    value: str | list[int], param: str, codec: TextCodec, context: RequestContext, *, add_special: bool
) -> list[int]:
    if not isinstance(value, str):
        return value
    return await codec.encode_text(value, add_special, param=param, owner=context.owner)


async def _classify(services: Services, body: ClassifyRequest, context: RequestContext) -> ScoredTexts:
    context.count_answers(len(body.inputs), "input")
    choice = await choose_engine(services, context, body, Task.GENERATE)
    chosen, _, engine, _, codec = choice
    engine.require_capacity(1, param="input", tenant=context.tenant, low_priority=context.low_priority)
    with context.leniency.with_names(_NAMES):
        async with within(context.deadline):
            chats = await context.in_turn(lambda: [_asked(body, *entry) for entry in enumerate(body.inputs)])
            prompts = await encode_chats_with_options(services, chats, codec, context)
    choice = choose_by_prompt(context, choice, prompts[0].head.text, device=body.device, cache_salt=body.cache_salt)
    with closing(NextTokenScorer(services, context, choice, body, param="input")) as scorer:
        results = await score_options(scorer, prompts, choice.model)
    scores = []
    for result in results:
        if not isinstance(result, OptionScores):
            raise result
        scores.append(result.probabilities)
    return ScoredTexts(chosen.id, scores, scorer.usage)


def _asked(body: ClassifyRequest, number: int, text: str) -> ChatWithOptions:
    """Write the chat request in which the model would choose one of the request's labels for `text`, whose index in the
    request is `number`. The prompts for all texts begin alike, so that they share a cached prefix.
    """
    labels = "".join(f"\n- {json.dumps(label, ensure_ascii=False)}" for label in body.labels)
    head = f'{body.instructions or _INSTRUCTIONS}{labels}\nAnswer {{"answer": …}} with one of these.'
    chat = ChatParameters.model_validate(
        {
            "messages": [{"role": "user", "content": f"{head}\n\nText:\n{text}"}],
            "reasoning_effort": "none",
            "cache_salt": body.cache_salt,
        }
    )
    answers = [json.dumps({"answer": label}, ensure_ascii=False) for label in body.labels]
    return ChatWithOptions(chat, answers, "input" if isinstance(body.input, str) else f"input[{number}]")


router = VersionedRouter(BodyRoute, "scoring", codes=(504,))


@router.post("/v1/generative_scoring", response_model=LabelScoreResponse)
async def generative_scoring(body: LabelScoreRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get, for each item, the probability of the first of the given tokens (`label_token_ids`) after the query and the
    item.
    """
    scored = await label_scores(services, body, context, normalizes=True)
    data = [
        {"index": n, "object": "score", "score": probabilities[0]}
        for n, probabilities in enumerate(scored.probabilities)
    ]
    response = {"id": context.answer_id("generative-scoring-"), "object": "list", "created": int(time.time())}
    return json_response(response | {"model": scored.model, "data": data, "usage": scored.usage})


@router.post("/v1/classify", response_model=ClassifyResponse)
async def classify_texts(body: ClassifyRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get the most likely of the given labels for each text, with the probabilities of all labels."""
    scored = await classify(services, body, context)
    data = [
        {"index": n, "label": body.labels[probs.index(max(probs))], "probs": probs, "num_classes": len(probs)}
        for n, probs in enumerate(map(list, scored.probabilities))
    ]
    response = {"id": context.answer_id("classify-"), "object": "list", "created": int(time.time())}
    return json_response(response | {"model": scored.model, "data": data, "usage": scored.usage})
