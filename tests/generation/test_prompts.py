"""The template's variables for effort and thinking, prompts that begin alike, and prompts with a suffix."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.generation.prompts import encode_alike, encode_chat, infill_tokens, template_variables, with_suffix
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, Leniency, RemovalRules
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer
from tests.running_server import DEMO, ROOT
from tests.text.small_tokenizers import sentencepiece

USERS = "{% for m in messages %}{{ m.content }}{% endfor %}"
SWITCH = "{{ enable_thinking }}"
EFFORT = "{{ reasoning_effort }}"
PICKY = "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('unknown effort') }}{% endif %}"
LOW_OR_HIGH = PICKY.replace("'none'", "'low'")


def _variables(source: str, **fields: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables, and the headers of the response."""
    codec = TextCodec({"default": ChatTemplate(USERS + source)}, ByteTokenizer())
    leniency = Leniency()
    try:
        body = ChatParameters.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
        return template_variables(body, codec, leniency), leniency.report()
    finally:
        codec.close()


@pytest.mark.parametrize(
    ("source", "effort", "given", "expected"),
    [
        (SWITCH, "none", {}, {"enable_thinking": False}),
        (SWITCH, "low", {}, {"enable_thinking": True}),
        (EFFORT, "none", {}, {"reasoning_effort": "none"}),
        # A template that reads both is switched off, and gets no effort that it may not know.
        (SWITCH + EFFORT, "none", {}, {"enable_thinking": False}),
        (SWITCH + EFFORT, "high", {}, {"enable_thinking": True, "reasoning_effort": "high"}),
        ("{{ thinking }}", "none", {}, {"thinking": False}),
        ("", "none", {}, {}),
        # Given variables come first, by the template's names.
        (SWITCH, "high", {"enable_thinking": False}, {"enable_thinking": False}),
        ("{{ thinking }}", None, {"enable_thinking": False}, {"thinking": False}),
        (SWITCH, None, {"thinking": True}, {"enable_thinking": True}),
        (EFFORT, None, {"enable_thinking": False}, {"reasoning_effort": "none"}),
        (EFFORT, None, {"enable_thinking": True}, {}),
        ("", None, {"enable_thinking": False}, {"enable_thinking": False}),  # refused by the template's variables
    ],
)
def test_effort_and_given_variables_become_what_the_template_reads(
    source: str, effort: str | None, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert _variables(source, reasoning_effort=effort, chat_template_kwargs=given) == (expected, {})


@pytest.mark.parametrize(
    ("source", "effort", "taken"),
    [
        (PICKY, "medium", "high"),
        (PICKY, "minimal", "high"),  # not the nearer "none", which turns reasoning off
        (PICKY, "max", "high"),
        (LOW_OR_HIGH, "none", "low"),
        (LOW_OR_HIGH, "medium", "high"),
    ],
)
def test_effort_that_the_template_refuses_becomes_the_nearest_one_and_is_named(
    source: str, effort: str, taken: str
) -> None:
    variables, headers = _variables(source, reasoning_effort=effort)
    assert variables == {"reasoning_effort": taken}
    assert headers == {CONVERTED_HEADER: f'reasoning_effort "{effort}" (as "{taken}")'}


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        (SWITCH, {}, {"enable_thinking": False}),
        (EFFORT, {}, {"reasoning_effort": "none"}),
        ("", {}, {}),
        (SWITCH + EFFORT, {"reasoning_effort": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
        (SWITCH, {"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
    ],
)
def test_budget_of_zero_turns_thinking_off(source: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert _variables(source, thinking_token_budget=0, **given) == (expected, {})
    assert _variables(source, thinking_token_budget=1, **given) == _variables(source, **given)


def test_effort_without_effect_is_refused_unless_lenient() -> None:
    with pytest.raises(InvalidField, match='reasoning_effort has no effect .*; given "high"') as caught:
        _variables("", reasoning_effort="high")
    assert caught.value.param == "reasoning_effort"
    codec = TextCodec({"default": ChatTemplate(USERS)}, ByteTokenizer())
    leniency = Leniency(RemovalRules())
    body = ChatParameters.model_validate({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "high"})
    assert template_variables(body, codec, leniency) == {}
    assert leniency.report() == {IGNORED_HEADER: "reasoning_effort"}
    codec.close()


QUESTIONS = ["Is it?", "Is it\n\nnot?", "Is\n it?", "<|im_end|>", "Is it?\n- one\n- two", "Yes."]


async def _encoded_alike(
    context: RequestContext, codec: TextCodec, input: str, questions: Sequence[str]
) -> tuple[int, list[list[int]]]:
    """How many tokens the prompts have in common, and the prompts, which are those that each one has on its own."""
    services: Any = None  # for images only
    chats = [
        ChatParameters.model_validate({"messages": [{"role": "user", "content": f"{input}\n\nQ: {question}"}]})
        for question in questions
    ]
    found = await encode_alike(services, chats, codec, context)
    prompts = [found.head.tokens + tail for tail in found.tails]
    assert prompts == [(await encode_chat(services, chat, codec, context)).tokens for chat in chats]
    return len(found.head.tokens), prompts


@pytest.mark.parametrize("name", ["demo", "gemma-3-images", "lfm2-vl-images", "mistral-3-images", "qwen-3.5-images"])
def test_prompts_that_begin_alike_are_those_of_each_chat(context: RequestContext, name: str) -> None:
    codec = load_text_codec(DEMO if name == "demo" else ROOT / "tests" / "built_models" / name, "cpu")
    try:
        common, prompts = asyncio.run(
            _encoded_alike(context, codec, "It rains.\n It <|im_start|>rains. " * 50, QUESTIONS)
        )
    finally:
        codec.close()
    assert 0.8 * len(prompts[0]) < common < len(prompts[0])


@pytest.mark.parametrize("questions", [QUESTIONS[:1], QUESTIONS[:1] * 2, ["", "x"]])
def test_few_prompts_may_begin_alike(context: RequestContext, questions: Sequence[str]) -> None:
    codec = load_text_codec(DEMO, "cpu")
    asyncio.run(_encoded_alike(context, codec, "It rains.", questions))
    codec.close()


def test_prompts_begin_alike_where_the_end_of_a_text_has_other_tokens_alone(
    context: RequestContext, tmp_path: Path
) -> None:
    codec = TextCodec({"default": ChatTemplate(USERS)}, ModelTokenizer(sentencepiece(tmp_path)))
    common, _ = asyncio.run(_encoded_alike(context, codec, "hi", ["hi", "ho"]))
    assert common == 0
    codec.close()


@pytest.fixture
def codec() -> Iterator[TextCodec]:
    """A codec whose tokens are bytes."""
    found = load_text_codec(DEMO, "scripted")
    yield found
    found.close()


def prompts(codec: TextCodec, **fields: Any) -> CompletionRequest:
    body = CompletionRequest.model_validate({"prompt": "ab", "suffix": "c", **fields})
    return asyncio.run(with_suffix(body, codec, TaskOwner()))


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_the_prompt_comes_before_the_suffix_and_the_middle_last(codec: TextCodec, names: tuple[str, ...]) -> None:
    codec.opaque_tokens = {"<s>": 299, **{name: 300 + place for place, name in enumerate(names)}}
    assert prompts(codec).prompts == [[300, *b"ab", 301, *b"c", 302]]


def test_each_prompt_has_the_suffix_and_ids_are_as_good_as_text(codec: TextCodec) -> None:
    codec.opaque_tokens = {"<fim_prefix>": 300, "<fim_suffix>": 301, "<fim_middle>": 302}
    assert prompts(codec, prompt=["a", "b"]).prompts == [[300, *text, 301, *b"c", 302] for text in (b"a", b"b")]
    assert prompts(codec, prompt=list(b"ab")).prompts == prompts(codec).prompts


def test_infill_tokens_end_the_middle(codec: TextCodec) -> None:
    codec.opaque_tokens = {"▁<PRE>": 300, "▁<SUF>": 301, "▁<MID>": 302, "▁<EOT>": 303, "other": 304}
    assert prompts(codec, stop_token_ids=[7]).stop_token_ids == [7, 300, 301, 302, 303]


@pytest.mark.parametrize("known", [{}, {"<fim_prefix>": 300, "<fim_suffix>": 301}])
def test_a_model_without_all_tokens_has_none(codec: TextCodec, known: dict[str, int]) -> None:
    codec.opaque_tokens = known
    assert infill_tokens(codec) == []
    with pytest.raises(InvalidField, match="suffix is not supported") as refused:
        prompts(codec)
    assert refused.value.param == "suffix"
