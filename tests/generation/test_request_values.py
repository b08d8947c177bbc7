"""The tokens that a request excludes, from its words and ids."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genai_server.apis.own_chat import ChatRequest
from genai_server.errors import InvalidField
from genai_server.generation.generate import reasoning_rules, with_default_budget, with_exclusions
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.http.leniency import IGNORED_HEADER, Leniency, RemovalRules
from genai_server.messages.generation_request import ModelInfo, ReasoningRules, Sampling
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.text.answers.reasoning import HARMONY, THINK
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer, Tokenizer
from genai_server.text.tool_formats.all_formats import PLAIN, Dialect
from tests.running_server import DEMO

pytestmark = pytest.mark.anyio


async def excluded(tokenizer: Tokenizer, vocab_size: int = 10**6, **fields: Any) -> Sampling:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    return await with_exclusions(Sampling(), body, tokenizer, ModelInfo(100, vocab_size, [1], Sampling()))


async def test_word_is_banned_at_the_beginning_and_after_a_space() -> None:
    tokenizer = ModelTokenizer(DEMO)
    found = await excluded(tokenizer, bad_words=["  Paris", "\n", "<|im_end|>"])
    texts = ["Paris", " Paris", "\n", "<|im_end|>", " <|im_end|>"]
    assert found.bad_words == [tokenizer.encode(text) for text in texts]
    assert [tokenizer.special_tokens["<|im_end|>"]] in found.bad_words


async def test_words_that_are_equal_or_that_the_model_cannot_write_are_left_out() -> None:
    found = await excluded(ByteTokenizer(), vocab_size=100, bad_words=["a", " a", "a", "xy"])
    assert found.bad_words == [[97], [32, 97]]


async def test_allowed_tokens_are_bits() -> None:
    found = await excluded(ByteTokenizer(), vocab_size=19, allowed_token_ids=[0, 9, 18, 9])
    bits = np.unpackbits(np.frombuffer(found.allowed_tokens, np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [0, 9, 18]
    assert len(found.allowed_tokens) == 3


QUESTION = {"role": "user", "content": "x"}
# It writes thoughts as some models do: without a line break before the end.
TEMPLATE = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>\n{% endif %}"
    "{{ m.content }}{% endfor %}"
)


def body(**fields: Any) -> ChatParameters:
    return ChatParameters.model_validate({"messages": [QUESTION], **fields})


async def rules(
    given: ChatParameters, prompt: str = "x", *, dialect: Dialect | None = None, leniency: Leniency | None = None
) -> ReasoningRules | None:
    codec = TextCodec({"default": ChatTemplate(TEMPLATE)}, ByteTokenizer(), dialect or Dialect(reasoning=THINK))
    context: Any = SimpleNamespace(leniency=leniency or Leniency(), owner=TaskOwner())
    try:
        return await reasoning_rules(given, codec, list(prompt.encode()), context)
    finally:
        codec.close()


async def test_a_thought_is_closed_with_the_message_and_as_the_template_writes_it() -> None:
    found = await rules(body(thinking_token_budget=7, reasoning_budget_message=" So."))
    assert found is not None
    assert (found.budget, bytes(found.end), bytes(found.later_end)) == (7, b" So.</think>\n", b"</think>\n")
    assert not found.allows_several


@pytest.mark.parametrize(
    ("prompt", "message", "is_open"),
    [
        ("x", None, False),
        ("x<think>\n", None, True),
        ("x<think>\n\n</think>\n\n", None, False),
        ("x<think>I", "<think>I", True),
        ("x<think>I</think>Yes", "<think>I</think>Yes", False),
    ],
)
async def test_prompts_and_continued_messages_may_end_within_a_thought(
    prompt: str, message: str | None, *, is_open: bool
) -> None:
    fields: dict[str, Any] = {}
    if message is not None:
        fields = {"messages": [QUESTION, {"role": "assistant", "content": message}]}
        fields["chat_template_kwargs"] = {"continue_final_message": True}
    found = await rules(body(**fields), prompt)
    assert found is not None
    assert found.is_open is is_open


async def test_channels_may_have_several_thoughts_of_which_a_later_one_leads_to_the_answer() -> None:
    found = await rules(body(), dialect=Dialect(reasoning=HARMONY))
    assert found is not None
    assert found.allows_several
    assert bytes(found.end) == b"<|end|><|start|>assistant"
    assert bytes(found.later_end) == bytes(found.end) + b"<|channel|>final<|message|>"


async def test_a_message_must_not_end_the_thought_itself() -> None:
    with pytest.raises(InvalidField, match="reasoning_budget_message must not have </think>"):
        await rules(body(reasoning_budget_message="So.</think>"))


async def test_a_budget_is_refused_without_a_known_format_unless_lenient() -> None:
    given = body(thinking_token_budget=7, reasoning_budget_message="So.")
    with pytest.raises(InvalidField, match="thinking_token_budget has no effect with this model"):
        await rules(given, dialect=PLAIN)
    leniency = Leniency(RemovalRules())
    assert await rules(given, dialect=PLAIN, leniency=leniency) is None
    assert leniency.report() == {IGNORED_HEADER: "thinking_token_budget, reasoning_budget_message"}
    for budget in (0, -1):
        assert await rules(body(thinking_token_budget=budget), dialect=PLAIN) is None


@pytest.mark.parametrize(
    ("fields", "dialect", "budget"),
    [
        ({}, Dialect(reasoning=THINK), 9),
        ({"thinking_token_budget": 5}, Dialect(reasoning=THINK), 5),
        ({"thinking_token_budget": -1}, Dialect(reasoning=THINK), -1),
        ({}, PLAIN, None),
    ],
)
async def test_a_default_is_for_models_that_think_and_requests_without_a_budget(
    fields: dict[str, Any], dialect: Dialect, budget: int | None
) -> None:
    codec = TextCodec({"default": ChatTemplate(TEMPLATE)}, ByteTokenizer(), dialect)
    assert with_default_budget(body(**fields), 9, codec).thinking_token_budget == budget
    assert with_default_budget(body(), None, codec).thinking_token_budget is None
    codec.close()
