"""A text chunk encoded by its template equals the one that the builder makes."""

from typing import Any

import msgspec
import pytest

from genai_server.answer_parts import Content
from genai_server.apis.chat_completions.response import ChatCompletionBuilder
from genai_server.apis.completions.response import CompletionBuilder


@pytest.mark.parametrize("options", [{}, {"has_usage": True}, {"has_logprobs": True}], ids=str)
@pytest.mark.parametrize("build", [ChatCompletionBuilder, CompletionBuilder])
def test_a_chunk_of_text_is_the_built_one(build: type[Any], options: dict[str, bool]) -> None:
    builder = build("id", 'a "text":"" of "content":""', 1, **options)
    for index in (0, 1, 0):
        for text in ("", "plain", 'a "quoted"\n\\ ü\u2028'):
            expected = msgspec.json.encode(builder.part(index, [Content(text)], []))
            assert builder.text(index, text) == expected
