"""Long texts are encoded elsewhere, so that the event loop goes on."""

import asyncio

import pytest

from genai_server.errors import InvalidField
from genai_server.text.encoder import LONGEST_WORD, SHORT_TEXT, SHORT_WORD, Encoder
from genai_server.text.tokenizer import ModelTokenizer
from tests.running_server import DEMO

LONG_TEXT = "some words and an emoji 👋 " * (SHORT_TEXT // 20)
LONG_WORD = "w" * (SHORT_WORD + 1)


@pytest.mark.parametrize("text", ["short", LONG_TEXT, LONG_WORD], ids=["short", "long text", "long word"])
def test_a_text_has_the_same_tokens_wherever_it_is_encoded(text: str) -> None:
    tokenizer = ModelTokenizer(DEMO)
    encoder = Encoder(tokenizer, DEMO)
    try:
        assert asyncio.run(encoder.encode(text)) == tokenizer.encode(text)
    finally:
        encoder.close()


def test_while_a_long_text_is_encoded_the_event_loop_goes_on() -> None:
    async def test() -> None:
        encoder = Encoder(ModelTokenizer(DEMO), DEMO)
        try:
            encoding = asyncio.create_task(encoder.encode(" ".join(["x" * LONGEST_WORD] * 30)))
            turns = 0
            while not encoding.done():
                await asyncio.sleep(0.001)
                turns += 1
            assert turns > 20
        finally:
            encoder.close()

    asyncio.run(test())


def test_a_word_that_would_take_too_long_is_refused_with_limit_and_length() -> None:
    encoder = Encoder(ModelTokenizer(DEMO), DEMO)
    with pytest.raises(InvalidField, match=f"a word of {LONGEST_WORD + 1} characters; at most {LONGEST_WORD} can"):
        asyncio.run(encoder.encode("x" * (LONGEST_WORD + 1)))
