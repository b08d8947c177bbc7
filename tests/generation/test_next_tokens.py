"""How many prompts of one request an engine has at a time."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import GenerationFailed, InvalidField, PromptTooLong, RunnerFailed
from genai_server.generation.dependencies import RequestContext
from genai_server.generation.next_tokens import (
    ChatWithOptions,
    Logprobs,
    NextTokens,
    NextTokenScorer,
    OptionScores,
    PromptWithOptions,
    encode_chats_with_options,
    score_options,
)
from genai_server.generation.parameters.base import ResultFields
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.prompts import EncodedPrompt
from genai_server.messages.engine_protocol import Accepted, Failed, Finished, Tokens
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import (
    FinishReason,
    GenerationRequest,
    ModelInfo,
    Phases,
    Sampling,
    TokenLogprob,
)
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer
from genai_server.text.tool_formats.all_formats import read_dialect
from tests.text.small_tokenizers import sentencepiece

pytestmark = pytest.mark.anyio

SLOTS, LOGPROB = 16, -0.5
HEAD = EncodedPrompt([1, 2, 3])


class Fields(ResultFields):
    cache_salt: str | None = None


class Engine:
    """Has as many requests of others as a test says, and answers one of the scorer's at a time."""

    def __init__(self, num_others: int) -> None:
        self.in_flight = self
        self.is_connected = True
        self.batching = SimpleNamespace(num_slots=SLOTS)
        self.num_others = num_others
        self.streams: list[TokenStream] = []
        self.most = 0

    @property
    def work(self) -> int:
        return self.num_others + len(self.streams)

    def require_capacity(self, *_: Any, **__: Any) -> None:
        pass

    async def submit(self, request: GenerationRequest) -> list[TokenStream]:
        stream = TokenStream(lambda: None)
        stream.receive(Accepted(0))
        self.streams.append(stream)
        self.most = max(self.most, len(self.streams))
        return [stream]

    def answer(self) -> None:
        stream = self.streams.pop(0)
        stream.receive(Tokens(0, [7], [TokenLogprob(7, 0.0, [(9, LOGPROB)])]))
        stream.receive(Finished(0, FinishReason.LENGTH, Phases(), num_cached=0))

    def fail(self) -> None:
        self.streams.pop(0).receive(Failed(0, ErrorInfo.from_error(RunnerFailed("the pass failed"))))


def scorer_of(engine: Engine, context: RequestContext) -> NextTokenScorer:
    services: Any = SimpleNamespace(settings=SimpleNamespace(exact=False))
    chosen, model = SimpleNamespace(adapter=None), SimpleNamespace(max_length=100)
    choice: Any = (chosen, None, engine, model, None)
    return NextTokenScorer(services, context, choice, Fields.model_validate({}), param="questions")


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("num_others", "most"), [(0, SLOTS), (1, 2), (5, 5), (100, SLOTS)])
async def test_next_to_others_there_are_no_more_than_these(context: RequestContext, num_others: int, most: int) -> None:
    engine = Engine(num_others)
    asked = [NextTokens(HEAD, [n], [9], 3 if n else 0) for n in range(40)]
    running = asyncio.ensure_future(scorer_of(engine, context).run(asked))
    await settled()
    assert len(engine.streams) == 1  # the first is read alone
    while not running.done():
        engine.answer()
        await settled()
    assert (engine.most, running.result()) == (most, [{9: LOGPROB}] * 40)


async def test_those_that_come_later_make_them_fewer(context: RequestContext) -> None:
    engine = Engine(0)
    running = asyncio.ensure_future(scorer_of(engine, context).run([NextTokens(HEAD, [], [9])] * 40))
    await settled()
    engine.answer()
    await settled()
    assert len(engine.streams) == SLOTS
    engine.num_others = 3
    for _ in range(SLOTS):
        engine.answer()
        await settled()
    assert len(engine.streams) == 3
    running.cancel()


async def test_a_prompt_that_fails_costs_no_other_one(context: RequestContext) -> None:
    engine = Engine(0)
    running = asyncio.ensure_future(scorer_of(engine, context).run([NextTokens(HEAD, [], [9])] * 3))
    await settled()
    engine.answer()
    await settled()
    engine.fail()
    engine.answer()
    first, second, third = await running
    assert (first, third) == ({9: LOGPROB}, {9: LOGPROB})
    assert isinstance(second, RunnerFailed)


PROMPT = EncodedPrompt([1, 2])
MODEL = ModelInfo(20, 100, [0], Sampling())
USERS = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


class Scorer:
    """Knows the log probabilities after some ends of prompts, or why there are none."""

    def __init__(self, known: dict[tuple[int, ...], Logprobs]) -> None:
        self.known = known
        self.asked: list[NextTokens] = []

    async def run(self, asked: list[NextTokens]) -> list[Logprobs]:
        self.asked += asked
        return [self.known[tuple(one.tail)] for one in asked]


def logs(**shares: float) -> Logprobs:
    return {int(token[1:]): math.log(share) for token, share in shares.items()}


async def scored(known: dict[tuple[int, ...], Logprobs], *prompts: PromptWithOptions, **fields: Any) -> Any:
    scorer: Any = Scorer(known)
    return await score_options(scorer, prompts, MODEL, **fields), scorer.asked


async def test_an_option_has_the_product_of_its_shares_where_options_part() -> None:
    # 5 6 7, 5 6 8 and 9 part after the prompt and after 5 6.
    prompt = PromptWithOptions(PROMPT, [3], [[5, 6, 7], [5, 6, 8], [9, 6, 7]], "questions[0]")
    known = {(3,): logs(t5=0.3, t9=0.1), (3, 5, 6): logs(t7=0.02, t8=0.06)}
    (found,), asked = await scored(known, prompt)
    assert isinstance(found, OptionScores)
    assert found.probabilities == pytest.approx([0.75 * 0.25, 0.75 * 0.75, 0.25])
    assert found.mass == pytest.approx(0.4)
    assert [(one.tail, one.tokens, one.num_counted) for one in asked] == [([3], [5, 9], 0), ([3, 5, 6], [7, 8], 3)]


async def test_a_temperature_makes_options_alike() -> None:
    prompt = PromptWithOptions(PROMPT, [], [[5], [6]], "questions[0]")
    (found,), _ = await scored({(): logs(t5=0.4, t6=0.1)}, prompt, temperature=2.0)
    assert found.probabilities == pytest.approx([2 / 3, 1 / 3])
    assert found.mass == pytest.approx(0.5)


async def test_what_prompts_have_in_common_counts_once() -> None:
    prompts = [PromptWithOptions(PROMPT, [n], [[5], [6]], f"questions[{n}]") for n in (3, 4)]
    failed = RunnerFailed("the pass failed")
    (first, second), asked = await scored({(3,): failed, (4,): logs(t5=0.5, t6=0.5)}, *prompts)
    assert [one.num_counted for one in asked] == [0, 2]
    assert isinstance(first, GenerationFailed)
    assert second.probabilities == pytest.approx([0.5, 0.5])


async def test_a_prompt_that_is_too_long_is_named() -> None:
    prompts = [PromptWithOptions(PROMPT, [7] * n, [[5], [6]], f"questions[{n}]") for n in (1, 18)]
    with pytest.raises(PromptTooLong) as error:
        await scored({}, *prompts)
    assert error.value.param == "questions[18]"


async def encoded(context: RequestContext, codec: TextCodec, *answers: str) -> list[PromptWithOptions]:
    services: Any = None  # for images only
    chat = ChatParameters.model_validate({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "none"})
    try:
        return await encode_chats_with_options(
            services, [ChatWithOptions(chat, answers, "questions[0]")], codec, context
        )
    finally:
        codec.close()


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (USERS, "hi\n"),
        # A model that always thinks ends the thought at once.
        (f"{USERS}{{# </think> #}}<think>\n\n", "hi\n<think>\n</think>\n\n"),
        (
            f"{USERS}{{% if enable_thinking is false %}}<think>\n\n</think>\n\n{{% endif %}}",
            "hi\n<think>\n\n</think>\n\n",
        ),
        # One that writes on channels writes on that for the user.
        (
            f"{USERS}{{# <|channel|>analysis<|message|> #}}<|start|>assistant",
            "hi\n<|start|>assistant<|channel|>final<|message|>",
        ),
    ],
    ids=["plain", "always", "switch", "channels"],
)
async def test_an_answer_begins_after_all_thinking(context: RequestContext, source: str, prompt: str) -> None:
    codec = TextCodec({"default": ChatTemplate(source)}, ByteTokenizer(), read_dialect(source))
    (found,) = await encoded(context, codec, "a", "b")
    assert bytes([*found.head.tokens, *found.tail]).decode() == prompt
    assert found.options == [[ord("a")], [ord("b")]]


async def test_an_answer_has_no_blank_in_front(context: RequestContext, tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(sentencepiece(tmp_path))
    (found,) = await encoded(context, TextCodec({"default": ChatTemplate(USERS)}, tokenizer), "hi", "x")
    assert found.options == [tokenizer.encode("a" + text)[len(tokenizer.encode("a")) :] for text in ("hi", "x")]
    assert [tokenizer.token_bytes(option[0])[:1] for option in found.options] == [b"h", b"x"]


async def test_options_that_begin_with_others_are_refused(context: RequestContext) -> None:
    codec = TextCodec({"default": ChatTemplate(USERS)}, ByteTokenizer())
    with pytest.raises(InvalidField) as error:
        await encoded(context, codec, "abc", "x", "ab")
    assert error.value.param == "questions[0]"
