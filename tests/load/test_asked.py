"""The requests of the load tools are valid where they should be."""

import asyncio

import pytest
from _load.asked import MAX_LENGTH, full_length

from genai_server.apis.own_chat.routes import ChatRequest
from genai_server.text.codec import load_text_codec
from tests.running_server import DEMO


@pytest.mark.parametrize("number", [0, 99])
def test_full_length_question_is_valid_and_nearly_fills_a_slot(number: int) -> None:
    body = full_length(number)
    ChatRequest.model_validate(body)
    prompt = asyncio.run(load_text_codec(DEMO, "cpu").encode_chat(body["messages"])).tokens
    assert MAX_LENGTH / 2 < len(prompt) < MAX_LENGTH
