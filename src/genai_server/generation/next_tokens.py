"""Log probabilities of tokens that may come next, after each of many prompts of one HTTP request (`NextTokenScorer`);
and from these, how likely a model answers a prompt with each of several given options, without generating text
(`score_options`).

The options form a tree of tokens. If all options continue with the same token, an answer that must be one of them has
no other choice, so the token has the probability 1. Where options branch, the model's probabilities of their tokens are
normalized over these tokens. An option's probability is the product along its tokens, and those of all options sum to
1. This is how often a model that samples at temperature 1, and must write one of the options, would write this one. So
if an option has more than half of the probability, each of its tokens is the most likely one that is allowed, and
greedy decoding under a grammar of the options writes it, too.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

from msgspec import structs

from genai_server.engine_client.client import EngineClient
from genai_server.errors import DeadlinePassed, GenerationFailed, InvalidField, PromptTooLong, RequestCancelled
from genai_server.generation.dependencies import EngineChoice, RequestContext, Services
from genai_server.generation.engine_requests import EngineRequests
from genai_server.generation.output_spec import reasoning_state
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.prompts import EncodedPrompt, encode_alike, encode_chat, engine_images
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import GenerationRequest, ModelInfo
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.codec import TextCodec


@dataclass(frozen=True)
class NextTokens:
    """A question for the engine: how likely is each of the token ids `tokens` as the next token after a prompt? The
    caller of NextTokenScorer creates it.

    The prompt consists of `head`, which the prompts of other questions may share, and `tail`, further token ids.
    """

    head: EncodedPrompt
    tail: list[int]
    tokens: list[int]
    # Tokens at the beginning of the prompt that an earlier one of the same HTTP request counts in the usage.
    num_counted: int = 0

    @property
    def num_tokens(self) -> int:
        """Length of the whole prompt, `head` and `tail`, in tokens."""
        return len(self.head.tokens) + len(self.tail)


class ScoredFields(Protocol):
    """The fields of a request's body that NextTokenScorer reads: the device, the priority, and the salt of the prefix
    cache.
    """

    device: str | None
    priority: int | None
    cache_salt: str | None


# The log probability of each token, or why there is none.
Logprobs = dict[int, float] | GenerationFailed


class NextTokenScorer:
    """Asks one engine for log probabilities of next tokens, for many prompts of one HTTP request. `choice` has the
    model and the engine, and `param` is the field of the body that errors name. The caller must close it.

    The engine gets at most as many of the prompts at a time as it can run at the same time, and fewer while it has
    requests of other clients. So the prompts never fill the engine's queue, and each API key keeps its share. The first
    prompt is processed alone, so that the other prompts find the beginning that they share with it in the prefix cache.
    """

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        choice: EngineChoice,
        body: ScoredFields,
        *,
        param: str,
    ) -> None:
        chosen, served, engine, model, _ = choice

        async def pick() -> EngineClient:
            if engine.is_connected:
                return engine
            return served.router.pick(body.device, tenant=context.tenant, low_priority=context.low_priority)[0]

        self._requests = EngineRequests(context, pick, param=param, generates=False)
        self._engine = engine
        self._base = GenerationRequest(
            context.record.request_id,
            [],
            max_tokens=1,
            max_length=model.max_length,
            # The most likely token may be one that ends answers.
            ignore_eos=True,
            cache_salt=context.cache_salt(body.cache_salt),
            tenant=context.tenant,
            priority=body.priority or 0,
            precedence=context.precedence(body.priority),
            low_priority=context.low_priority,
            exact=services.settings.exact,
            top_logprobs=0,
            adapter=chosen.adapter,
            unique_id=context.record.unique_id,
            key_name=context.record.key_name,
        )

    @property
    def usage(self) -> Usage:
        """The token counts of all prompts together. Tokens at the beginning of a prompt that an earlier prompt has
        counted count once.
        """
        return self._requests.usage

    async def run(self, questions: Sequence[NextTokens]) -> list[Logprobs]:
        """Ask all questions, at least one, and return for each, in order, the natural log probabilities by token id, or
        the error with which this question failed.

        Raises Unavailable if the first prompt is refused, and DeadlinePassed, SessionTerminated and RequestCancelled,
        which end all questions.
        """
        results = [await self._logprobs(questions[0])]
        running: set[asyncio.Future[Logprobs]] = set()
        tasks: list[asyncio.Future[Logprobs]] = []
        try:
            for question in questions[1:]:
                while len(running) >= self._width(len(running)):
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()  # raises what ends all
                tasks.append(asyncio.ensure_future(self._logprobs(question)))
                running.add(tasks[-1])
                await asyncio.sleep(0)  # it is submitted, and counts as work of the engine
            results += await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        self._requests.finish()
        return results

    def _width(self, num_own: int) -> int:
        """Return the maximum number of this scorer's prompts that the engine may have at a time. It has `num_own` of
        them now.

        Without requests of other clients, this is the number of sequences that the engine runs at the same time.
        Otherwise it is the number of the other clients' requests, but at least two, so that one prompt is processed
        while another is on its way. More prompts at a time would slow down the streams of other clients, as if each
        prompt came from a client of its own.
        """
        num_slots = max(1, self._engine.batching.num_slots)
        num_others = self._engine.work - (0 if self._base.low_priority else num_own)
        return num_slots if num_others <= 0 else min(num_slots, max(2, num_others))

    def close(self) -> None:
        """Cancel all prompts that the engine still processes."""
        self._requests.close()

    async def _logprobs(self, question: NextTokens) -> Logprobs:
        request = structs.replace(
            self._base,
            prompt=question.head.tokens + question.tail,
            images=engine_images(question.head, self._base.cache_salt),
            scored_tokens=question.tokens,
        )
        try:
            answer = await self._requests.run(request, num_counted=question.num_counted)
        except (DeadlinePassed, RequestCancelled):  # they end all
            raise
        except GenerationFailed as error:
            return error
        return dict(answer.logprobs[0].top)


# Maximum number of tokens of all prompts of one HTTP request. A beginning that several prompts share counts once.
MAX_TOKENS = 1024 * 1024
# Maximum number of images and audio parts in all prompts of one HTTP request.
MAX_IMAGES = 128
# A text before which nothing is put, and which no tokenizer joins with what follows.
_ANCHOR = "a"

# The tokens of an option before one of them.
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class OptionScores:
    """How likely a model answers a prompt with each of the prompt's options: a probability for each option, in their
    order, which sum to 1, and `mass`, the probability of answering with any of them. `score_options` returns it.
    """

    probabilities: Sequence[float]
    # The model's own probability that it continues with a token of the options, where these part first.
    mass: float


@dataclass(frozen=True)
class PromptWithOptions:
    """A prompt, and the token ids of at least two different options, one of which is to answer the prompt.
    `encode_chats_with_options` creates it, and `score_options` scores its options.

    The prompt consists of `head`, which other prompts may share, and `tail`, further token ids.
    """

    head: EncodedPrompt
    tail: list[int]
    options: Sequence[Sequence[int]]
    # The field that errors name.
    param: str

    @property
    def num_tokens(self) -> int:
        """Length of the whole prompt, `head` and `tail`, in tokens."""
        return len(self.head.tokens) + len(self.tail)

    def asked(self, num_counted: int) -> dict[Prefix, NextTokens]:
        """Return the questions to ask the engine in order to score the options. Each asks for the probabilities of the
        next tokens at one branch: a place where options that have begun with the same tokens continue with different
        ones.

        The key of a question has the tokens with which the options of its branch begin. The first `num_counted` tokens
        of the prompt are left out of the token counts, because earlier prompts have counted them.
        """
        return {
            prefix: NextTokens(self.head, [*self.tail, *prefix], tokens, self.num_tokens if number else num_counted)
            for number, (prefix, tokens) in enumerate(_branches(self.options).items())
        }


async def score_options(
    scorer: NextTokenScorer, prompts: Sequence[PromptWithOptions], model: ModelInfo, *, temperature: float = 1.0
) -> list[OptionScores | GenerationFailed]:
    """Find out how likely the model answers each prompt with each of its options. Returns for each prompt, in order,
    the options' probabilities or the error that prevented them.

    `temperature` divides the logarithms of the probabilities, so a value above 1 makes options more equally likely.
    Raises PromptTooLong and InvalidField before any work, and Unavailable, DeadlinePassed, SessionTerminated and
    RequestCancelled if the engine does not complete the work.
    """
    heads = [prompt.head for prompt in prompts]
    first = {id(head): number for number, head in reversed(list(enumerate(heads)))}
    questions = [
        (number, prefix, question)
        for number, prompt in enumerate(prompts)
        for prefix, question in prompt.asked(0 if first[id(prompt.head)] == number else len(prompt.head.tokens)).items()
    ]
    _check_lengths(prompts, [(number, question) for number, _, question in questions], model)
    logprobs: list[dict[Prefix, Mapping[int, float]]] = [{} for _ in prompts]
    errors: dict[int, GenerationFailed] = {}
    for (number, prefix, _), result in zip(
        questions, await scorer.run([question for *_, question in questions]), strict=True
    ):
        if isinstance(result, GenerationFailed):
            errors.setdefault(number, result)
        else:
            logprobs[number][prefix] = result
    return [
        errors[number] if number in errors else _scores(prompt.options, logprobs[number], temperature)
        for number, prompt in enumerate(prompts)
    ]


def _branches(options: Sequence[Sequence[int]]) -> dict[Prefix, list[int]]:
    """Find the places where options, given as token ids, branch. Return a dictionary: its keys are the beginnings that
    several options share and after which they continue differently, shorter ones first, and its values are the ids of
    the tokens that come next in these options.
    """
    following: dict[Prefix, dict[int, None]] = {}
    for option in options:
        for length, token in enumerate(option):
            following.setdefault(tuple(option[:length]), {})[token] = None
    parting = ((prefix, list(tokens)) for prefix, tokens in following.items() if len(tokens) > 1)
    return dict(sorted(parting, key=lambda branch: len(branch[0])))


def _scores(
    options: Sequence[Sequence[int]], logprobs: Mapping[Prefix, Mapping[int, float]], temperature: float
) -> OptionScores:
    """Compute the probability of each option, given as token ids, and the model's own probability of answering with one
    of the options at all.

    `logprobs` has the model's log probabilities, by token id, at each branch: its keys are the beginnings after which
    options continue differently, and its values are about the tokens that continue an option there. The probability of
    an option is the product over these branches, each at the temperature and normalized over the tokens that continue
    an option. All other tokens count as certain. The model's own probability is the sum at the first branch, without
    normalization.
    """
    shares = {prefix: log_shares(tokens, temperature) for prefix, tokens in logprobs.items()}

    def probability(option: Sequence[int]) -> float:
        logs = (shares.get(tuple(option[:length]), {}).get(token, 0.0) for length, token in enumerate(option))
        return math.exp(math.fsum(logs))

    first = logprobs[min(logprobs, key=len)]
    return OptionScores(list(map(probability, options)), min(1.0, math.fsum(map(math.exp, first.values()))))


def log_shares(logprobs: Mapping[int, float], temperature: float = 1.0) -> dict[int, float]:
    """Normalize log probabilities, keyed by token id, so that the probabilities sum to 1 at a temperature. Returns
    natural logarithms. A temperature above 1 makes the probabilities more equal.
    """
    highest = max(logprobs.values())
    scaled = {token: (logprob - highest) / temperature for token, logprob in logprobs.items()}
    log_of_sum = math.log(math.fsum(map(math.exp, scaled.values())))
    return {token: value - log_of_sum for token, value in scaled.items()}


def _check_lengths(
    prompts: Sequence[PromptWithOptions], questions: Sequence[tuple[int, NextTokens]], model: ModelInfo
) -> None:
    """Raise PromptTooLong for a prompt that exceeds the model's maximum length, and InvalidField if all prompts
    together have more than MAX_TOKENS tokens.

    `questions` has all questions, each with the index of its prompt in `prompts`. Tokens that several questions share
    count once.
    """
    total = 0
    for number, question in questions:
        if question.num_tokens >= model.max_length:
            limit, source = model.max_length, model.limited_by
            raise PromptTooLong(prompts[number].param, tokens=question.num_tokens, limit=limit, limited_by=source)
        total += question.num_tokens - question.num_counted
    if total > MAX_TOKENS:
        raise InvalidField(
            prompts[-1].param.partition("[")[0],
            "may have at most",
            limit=f"{MAX_TOKENS} tokens in total",
            limited_by="counting once what all have in common",
            given=total,
        )


@dataclass(frozen=True)
class ChatWithOptions:
    """A chat whose answer must be one of several texts, `answers`, each of which is to get a probability. Routes create
    it for `encode_chats_with_options`.
    """

    chat: ChatParameters
    answers: Sequence[str]
    # The field that errors name.
    param: str
    # How many images its last message has that the chats asked with it do not have.
    num_own_images: int = 0


async def encode_chats_with_options(
    services: Services, questions: Sequence[ChatWithOptions], codec: TextCodec, context: RequestContext
) -> list[PromptWithOptions]:
    """Encode the prompts and the answers of chats whose prompts differ only in the end of their last message. What the
    prompts have in common is encoded once. Returns a prompt with its options for each chat, in order.

    Raises NoChatTemplate and InvalidField if a prompt cannot be encoded. Raises InvalidField for more than MAX_IMAGES
    images in all chats, where common images count once, and for answers that the tokenizer does not distinguish.
    """
    num_images = sum(1 for message in questions[0].chat.messages for _ in message.media)
    num_images += sum(question.num_own_images for question in questions[1:])
    if num_images > MAX_IMAGES:
        raise InvalidField("messages", "may have at most", limit=f"{MAX_IMAGES} images in total", given=num_images)
    alike = [number for number, question in enumerate(questions) if not question.num_own_images]
    encoded: dict[int, tuple[EncodedPrompt, list[int]]] = {}
    if alike:
        shared = await encode_alike(services, [questions[number].chat for number in alike], codec, context)
        encoded = {number: (shared.head, tail) for number, tail in zip(alike, shared.tails, strict=True)}
    opening: list[int] | None = None
    prompts = []
    for number, question in enumerate(questions):
        if number not in encoded:
            encoded[number] = await encode_chat(services, question.chat, codec, context), []
        head, tail = encoded[number]
        if opening is None:
            opening = await _answer_opening(question.chat, [*head.tokens, *tail], codec, context.owner)
        options = await _encode_answers(question.answers, codec, context.owner, param=question.param)
        prompts.append(PromptWithOptions(head, [*tail, *opening], options, question.param))
        await asyncio.sleep(0)  # many options together take long
    return prompts


async def _answer_opening(chat: ChatParameters, prompt: list[int], codec: TextCodec, owner: TaskOwner) -> list[int]:
    """Return the ids of the tokens between a chat's prompt and the answer proper, for a model that reasons or that,
    like gpt-oss, writes messages on channels; empty for other models.

    If the encoded prompt `prompt` ends within reasoning, these tokens end the reasoning at once.
    """
    reasoning = codec.dialect.reasoning
    if reasoning is None:
        return []
    state = reasoning_state(chat, codec, prompt)
    text = reasoning.answer_opening if state is ReasoningState.BEFORE else ""
    if state is ReasoningState.INSIDE:
        text = f"{reasoning.closing}\n\n"
    return await codec.encode_text(text, add_special=False, owner=owner) if text else []


async def _encode_answers(texts: Sequence[str], codec: TextCodec, owner: TaskOwner, *, param: str) -> list[list[int]]:
    """Encode each text as an answer, which follows other text, and return its token ids. Special tokens are encoded as
    plain text.

    Raises InvalidField for the field `param` if two texts have the same tokens, or if one text's tokens are the
    beginning of another's.
    """
    encode = partial(codec.encode_text, add_special=False, parse_special=False, param=param, owner=owner)
    # Some tokenizers put a space before the first word of a text.
    anchor = await encode(_ANCHOR)
    encoded = []
    for text in texts:
        tokens = await encode(_ANCHOR + text)
        encoded.append(tokens[len(anchor) :] if tokens[: len(anchor)] == anchor else await encode(text))
    for shorter, longer in pairwise(sorted(encoded)):
        if longer[: len(shorter)] == shorter:
            raise InvalidField(param, "has options that the model's tokenizer does not tell apart")
    return encoded
