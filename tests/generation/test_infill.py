"""Prompts with a suffix, in the formats of families of code models."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.generation.infill import infill_tokens, with_suffix
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.messages.worker_tasks import TaskOwner
from genai_server.text.codec import TextCodec, load_text_codec
from tests.running_server import DEMO


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
