"""The tokens that a request excludes, from its words and ids."""

from typing import Any

import numpy as np
import pytest

from genai_server.apis.own_chat import ChatRequest
from genai_server.generation.sampling_values import with_exclusions
from genai_server.messages.generation_request import ModelInfo, Sampling
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer, Tokenizer
from tests.running_server import DEMO


async def excluded(tokenizer: Tokenizer, vocab_size: int = 10**6, **fields: Any) -> Sampling:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    return await with_exclusions(Sampling(), body, tokenizer, ModelInfo(100, vocab_size, [1], Sampling()))


@pytest.mark.anyio
async def test_word_is_banned_at_the_beginning_and_after_a_space() -> None:
    tokenizer = ModelTokenizer(DEMO)
    found = await excluded(tokenizer, bad_words=["  Paris", "\n", "<|im_end|>"])
    texts = ["Paris", " Paris", "\n", "<|im_end|>", " <|im_end|>"]
    assert found.bad_words == [tokenizer.encode(text) for text in texts]
    assert [tokenizer.special_tokens["<|im_end|>"]] in found.bad_words


@pytest.mark.anyio
async def test_words_with_the_same_tokens_count_once() -> None:
    found = await excluded(ByteTokenizer(), bad_words=["a", " a", "a"])
    assert found.bad_words == [[97], [32, 97]]


@pytest.mark.anyio
async def test_word_that_the_model_cannot_write_is_left_out() -> None:
    found = await excluded(ByteTokenizer(), vocab_size=100, bad_words=["ab", "xy"])
    assert found.bad_words == [[97, 98], [32, 97, 98]]


@pytest.mark.anyio
async def test_allowed_tokens_are_bits() -> None:
    found = await excluded(ByteTokenizer(), vocab_size=19, allowed_token_ids=[0, 9, 18, 9])
    bits = np.unpackbits(np.frombuffer(found.allowed_tokens, np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [0, 9, 18]
    assert len(found.allowed_tokens) == 3
